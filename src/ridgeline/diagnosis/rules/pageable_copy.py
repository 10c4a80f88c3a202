"""Batches are copied to the device from memory that is not pinned."""

import ast
from collections.abc import Iterator
from pathlib import PurePath

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._copies import (
    LEAST,
    Sent,
    beside,
    evidence,
    holds_up,
    named,
    only_the_loader,
    pinned_bound,
    pinned_share,
    repeated,
    sent,
    unblocked,
)
from ridgeline.diagnosis.rules._input_wait import feeder
from ridgeline.diagnosis.rules._loaders import made_at
from ridgeline.diagnosis.rules._sync import FEW
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.run import LoaderSeen
from ridgeline.source.file import SourceFile, last_name
from ridgeline.source.waiting import Line
from ridgeline.units import bytes_, percent, seconds

RULE = Rule(id="pageable-copy", family="transfer", budget="transfer", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    for one in sent(case):
        if not one.pageable or repeated(case, one) or only_the_loader(one, feeder(case)):
            continue
        left = max(pinned_share(case, one.bytes) - beside(case), 0.0)
        share = holds_up(case, one) - left
        if share < LEAST:
            continue
        loader = None if one.small else _unpinned(case)
        confidence: Confidence = "medium" if one.place is not None else "low"
        facts = list(evidence(case, one, share))
        if loader is not None:
            where = f" at {loader.place}" if loader.place else ""
            facts.append(
                Evidence(what="DataLoader", text=f"pin_memory=False{where}", source="read")
            )
        if one.small:
            facts.append(_held(one))
        if loader is not None or one.line is not None:
            confidence = "high"
        yield make_finding(
            RULE,
            claim=_claim(one, share),
            share=share,
            bound=_bound(case, one, share),
            evidence=facts,
            place=one.place,
            line=one.line.number if one.line is not None else None,
            change=_change(case, one, loader),
            confidence=confidence,
            doubt="" if one.place is not None else "the trace has no Python stacks",
        )


def _claim(one: Sent, share: float) -> str:
    """Of few bytes the copying is nothing: what holds up is that the host waits, behind all that
    was queued before."""
    size = bytes_(one.bytes)
    if not one.small:
        return (
            f"{named(one)} moves {size} a step from memory that is not pinned and holds up "
            f"{percent(share)} of it"
        )
    what = "An index on the host" if one.of_index and one.line is None else named(one)
    verb = "is copied to the GPU at each use" if one.of_index else "copies to the GPU"
    return (
        f"{what} {verb} ({size} a step), and the host waits for all that was queued before: "
        f"{percent(share)} of the step"
    )


def _bound(case: Case, one: Sent, share: float) -> float | None:
    return None if one.small and one.copies < FEW else pinned_bound(case, one.bytes, share)


def _held(one: Sent) -> Evidence:
    text = f"{seconds(one.held_ns / 1e9)} a traced step, not for so few bytes"
    return Evidence(what="host held", text=text, value=one.held_ns / 1e6)


def _unpinned(case: Case) -> LoaderSeen | None:
    loaders = case.capture.loaders if case.capture is not None else ()
    return next((ld for ld in loaders if ld.batches and not ld.pin_memory), None)


def _change(case: Case, one: Sent, loader: LoaderSeen | None) -> str:
    if one.of_index:
        return "index = index.to(device)  # once, where it is made: x[index] then copies nothing"
    line, sends = one.line, "batch = batch.to(device, non_blocking=True)"
    if line is not None:
        source = case.sources.get(one.place.file) if one.place is not None else None
        sends = _sends(source, line) if source is not None else unblocked(line.expression)
    if one.small:
        return f"{sends}  # so few bytes are taken over at once, pinned or not"
    if ".pin_memory()" in sends:
        return sends
    call = made_at(case, loader) if loader is not None else None
    pinned = call.with_options(pin_memory="True") if call is not None else ""
    if call is not None and pinned:
        first = f"# {PurePath(call.place.file).name}:{call.place.line}\n{pinned}"
        return (
            f"{first}\n# line {line.number}\n{sends}" if line is not None else f"{first}\n{sends}"
        )
    if loader is not None:
        return f"loader = DataLoader(dataset, batch_size, pin_memory=True)\n{sends}"
    name = line.on if line is not None and line.on.isidentifier() else "batch"
    return (
        f"{name} = {name}.pin_memory()  # once, where it is made: it returns a pinned copy\n{sends}"
    )


def _sends(source: SourceFile, line: Line) -> str:
    """The statement with its copies not waited for; of a loop's head the call alone."""
    if isinstance(line.node, ast.Call) and last_name(line.node) in ("tensor", "as_tensor"):
        return _made_there(line.node)
    statement = source.statement_of(line.node) if line.node is not None else None
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return unblocked(line.expression)
    text = source.written(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and last_name(node) in ("to", "cuda", "copy_"):
            call = source.written(node)
            text = text.replace(call, unblocked(call), 1) if "cpu" not in call else text
    return text


def _made_there(call: ast.Call) -> str:
    """torch.tensor(x, device=device): made in pinned memory and sent without waiting."""
    device = next((ast.unparse(k.value) for k in call.keywords if k.arg == "device"), "device")
    kept = [k for k in call.keywords if k.arg != "device"]
    made = ast.unparse(ast.Call(func=call.func, args=call.args, keywords=kept))
    return f"{made}.pin_memory().to({device}, non_blocking=True)"
