"""Batches are copied to the device from memory that is not pinned."""

import ast
from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._input_wait import feeder
from ridgeline.diagnosis.rules._loaders import loader_with, made_at
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.diagnosis.rules._waits import (
    MIN_SHARE,
    MIN_WAITS_FOR_HIDDEN_LAUNCHES,
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
from ridgeline.records.finding import Confidence, Finding
from ridgeline.records.run import LoaderSeen
from ridgeline.source.file import SourceFile, last_name
from ridgeline.source.waiting import Line
from ridgeline.units import bytes_, percent, seconds

RULE = Rule(id="pageable-copy", family="transfer", budget="transfer", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    for copies in sent(case):
        if not copies.pageable or repeated(case, copies) or only_the_loader(copies, feeder(case)):
            continue
        left = max(pinned_share(case, copies.bytes) - beside(case), 0.0)
        share = holds_up(case, copies) - left
        if share < MIN_SHARE:
            continue
        loaders = case.capture.loaders if case.capture is not None else ()
        unpinned = (ld for ld in loaders if ld.batches and not ld.pin_memory)
        loader = None if copies.small else next(unpinned, None)
        facts = list(evidence(case, copies, share))
        if loader is not None:
            where = f" at {loader.place}" if loader.place else ""
            facts.append(read("DataLoader", f"pin_memory=False{where}"))
        if copies.small:
            held = f"{seconds(copies.held_ns / 1e9)} a traced step, not for so few bytes"
            facts.append(measured("host held", held, copies.held_ns / 1e6))
        confidence: Confidence = "medium" if copies.place is not None else "low"
        if loader is not None or copies.line is not None:
            confidence = "high"
        few = copies.small and copies.copies < MIN_WAITS_FOR_HIDDEN_LAUNCHES
        yield make_finding(
            RULE,
            claim=_claim(copies, share),
            share=share,
            bound=None if few else pinned_bound(case, copies.bytes, share),
            evidence=facts,
            place=copies.place,
            line=copies.line.number if copies.line is not None else None,
            fix="pin-memory" if loader is not None else "",
            change=_change(case, copies, loader),
            confidence=confidence,
            doubt="" if copies.place is not None else "the trace has no Python stacks",
        )


def _claim(copies: Sent, share: float) -> str:
    """Return the claim. Copying few bytes takes no time: what holds up is that the host waits for
    all that was queued before."""
    size = bytes_(copies.bytes)
    if not copies.small:
        return (
            f"{named(copies)} moves {size} a step from memory that is not pinned and holds up "
            f"{percent(share)} of it"
        )
    what = "An index on the host" if copies.of_index and copies.line is None else named(copies)
    verb = "is copied to the GPU at each use" if copies.of_index else "copies to the GPU"
    return (
        f"{what} {verb} ({size} a step), and the host waits for all that was queued before: "
        f"{percent(share)} of the step"
    )


def _change(case: Case, copies: Sent, loader: LoaderSeen | None) -> str:
    if copies.of_index:
        return "index = index.to(device)  # once, where it is made: x[index] then copies nothing"
    line, sends = copies.line, "batch = batch.to(device, non_blocking=True)"
    if line is not None:
        source = source_of(case, copies.place)
        sends = _sends(source, line) if source is not None else unblocked(line.expression)
    if copies.small:
        return f"{sends}  # so few bytes are taken over at once, pinned or not"
    if ".pin_memory()" in sends:
        return sends
    if loader is not None:
        pinned = loader_with(case, copies.place, made_at(case, loader), pin_memory=True)
        at_line = f"\n# line {line.number}" if line is not None and "\n" in pinned else ""
        return f"{pinned}{at_line}\n{sends}"
    name = line.on if line is not None and line.on.isidentifier() else "batch"
    return (
        f"{name} = {name}.pin_memory()  # once, where it is made: it returns a pinned copy\n{sends}"
    )


def _sends(source: SourceFile, line: Line) -> str:
    """Return the statement with copies that are not waited for; of a loop's head the call alone."""
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
    """Return torch.tensor(x, device=device) made in pinned memory and sent without waiting."""
    device = next((ast.unparse(k.value) for k in call.keywords if k.arg == "device"), "device")
    kept = [k for k in call.keywords if k.arg != "device"]
    made = ast.unparse(ast.Call(func=call.func, args=call.args, keywords=kept))
    return f"{made}.pin_memory().to({device}, non_blocking=True)"
