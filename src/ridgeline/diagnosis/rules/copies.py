"""Copies to the device: those that block the host, start from pageable memory, or are repeated."""

import ast
from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._input_wait import feeder
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._loaders import loader_with, made_at, taken_at
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
from ridgeline.source.transfers import sent_ahead
from ridgeline.source.waiting import Line
from ridgeline.units import bytes_, percent, seconds

BLOCKING_COPY = Rule(
    id="blocking-copy", family="transfer", budget="transfer", needs=("trace", "gpu")
)


def blocking_copy(case: Case) -> Iterator[Finding]:
    """Copies from pinned memory that nothing runs beside."""
    for copies in sent(case):
        share = min(holds_up(case, copies), beside(case))
        if copies.pageable or repeated(case, copies) or share < MIN_SHARE:
            continue
        line, waits = copies.line, copies.held_ns > 0
        held = f"{seconds(copies.held_ns / 1e9)} a traced step" if waits else "no: non_blocking"
        confidence: Confidence = "high" if waits and line is not None else "medium"
        if copies.place is None or any(site.pageable is None for site in copies.sites):
            confidence = "low"
        call = unblocked(line.expression) if line is not None else ""
        yield make_finding(
            BLOCKING_COPY,
            claim=f"{named(copies)} moves {bytes_(copies.bytes)} a step while nothing else runs"
            f"{', and is waited for' if waits else ''}: {percent(share)} of the step",
            share=share,
            evidence=[
                *evidence(case, copies, share),
                measured("host waits for it", held, copies.held_ns / 1e6),
            ],
            place=copies.place,
            line=line.number if line is not None else None,
            change=sent_ahead(source_of(case, copies.place), line, call),
            confidence=confidence,
            doubt="" if copies.place is not None else "the trace has no Python stacks",
        )


UNPINNED_MEMORY = Rule(
    id="unpinned-memory", family="input", budget="transfer", needs=("capture", "trace", "gpu")
)


def unpinned_memory(case: Case) -> Iterator[Finding]:
    """The loader hands out batches in memory that the device cannot fetch by itself."""
    loader = feeder(case)
    if loader is None or loader.pin_memory:
        return
    # If the line itself waits, or is not known, pageable-copy names both faults.
    found = [
        copies
        for copies in sent(case)
        if copies.pageable and not repeated(case, copies) and only_the_loader(copies, loader)
    ]
    size = sum(copies.bytes for copies in found)
    left = max(pinned_share(case, size) - beside(case), 0.0)
    share = sum(holds_up(case, copies) for copies in found) - left
    if share < MIN_SHARE:
        return
    largest = max(found, key=lambda copies: copies.bytes)
    call = made_at(case, loader)
    place = call.place if call is not None else taken_at(loader)
    yield make_finding(
        UNPINNED_MEMORY,
        claim=f"the loader's batches are not pinned: copying {bytes_(size)} a step holds up "
        f"{percent(share)} of it",
        share=share,
        bound=pinned_bound(case, size, share),
        evidence=[read("DataLoader", "pin_memory=False"), *evidence(case, largest, share)],
        place=place,
        fix="pin-memory",
        change=loader_with(case, place, call, pin_memory=True),
        confidence="high",
    )


PAGEABLE_COPY = Rule(
    id="pageable-copy", family="transfer", budget="transfer", needs=("trace", "gpu")
)


def pageable_copy(case: Case) -> Iterator[Finding]:
    """Batches are copied to the device from memory that is not pinned."""
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
            PAGEABLE_COPY,
            claim=_claim(copies, share),
            share=share,
            bound=None if few else pinned_bound(case, copies.bytes, share),
            evidence=facts,
            place=copies.place,
            line=copies.line.number if copies.line is not None else None,
            fix="pin-memory" if loader is not None else "",
            change=_pageable_change(case, copies, loader),
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


def _pageable_change(case: Case, copies: Sent, loader: LoaderSeen | None) -> str:
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


REPEATED_COPY = Rule(
    id="repeated-copy", family="transfer", budget="transfer", needs=("trace", "gpu", "stacks")
)


def repeated_copy(case: Case) -> Iterator[Finding]:
    """The same tensor is copied to the device every step."""
    for copies in sent(case):
        line = copies.line
        if line is None or not repeated(case, copies):
            continue
        share = holds_up(case, copies)
        if share < MIN_SHARE:
            continue
        kind = "not pinned" if copies.pageable else "pinned"
        text = f"{line.on or line.expression}: nothing in the loop sets it; its memory is {kind}"
        yield make_finding(
            REPEATED_COPY,
            claim=f"{named(copies)} moves the same {bytes_(copies.bytes)} to the GPU every step: "
            f"{percent(share)} of it",
            share=share,
            bound=bound_ahead(case, share),
            evidence=[*evidence(case, copies, share), read("what is copied", text)],
            place=copies.place,
            line=line.number,
            change=_repeated_change(source_of(case, copies.place), line),
            confidence="high",
        )


def _repeated_change(source: SourceFile | None, line: Line) -> str:
    on, call, text = line.on, line.expression, line.text
    if on.startswith("self.") and on.count(".") == 1:
        made = _set_in_init(source, line, on.removeprefix("self.")) if source else None
        first = f"{on} = {call}  # copied the first time alone: then it is there"
        if made is not None:
            first = f"{made[1]}  # line {made[0]}: moves with model.to(device)"
        return f"{first}\n{text.replace(call, on, 1)}"
    if on.isidentifier() and on != "torch":
        return f"{on} = {call}  # once, before the loop\n{text.replace(call, on, 1)}"
    return f"constant = {call}  # once, before the loop\n{text.replace(call, 'constant', 1)}"


def _set_in_init(source: SourceFile, line: Line, name: str) -> tuple[int, str] | None:
    """Return the line where a module sets an attribute, and that line with a buffer instead. Return
    None for other classes."""
    above = source.parents(line.node) if line.node is not None else iter(())
    home = next((a for a in above if isinstance(a, ast.ClassDef)), None)
    if home is None or not any("Module" in ast.unparse(base) for base in home.bases):
        return None
    for node in ast.walk(home):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
            value = source.written(node.value)
            return node.lineno, f'self.register_buffer("{name}", {value}, persistent=False)'
    return None
