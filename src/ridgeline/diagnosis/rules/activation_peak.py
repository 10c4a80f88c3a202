"""Activations own a peak that is near what the device has."""

from collections.abc import Iterator

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import device_bytes, fills_half, peak_bytes
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import user_sources
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import OutOfMemory
from ridgeline.records.step_work import ModuleMemory
from ridgeline.records.trace import Place
from ridgeline.source.loops import BlockLoop, block_loops

OWNED = 0.6
"""Of the peak: from here on nothing but activations is worth a look."""
REPEATED = 4.0
"""Calls a step from which a module is a block of a stack: fewer are not worth checkpointing one by
one."""
OF_ALL = 0.5
"""Of the activations that the blocks hold: else they are elsewhere."""
LEAST_SAVED = 0.05

RULE = Rule(id="activation-peak", family="memory", budget="memory", needs=("gpu",))


def look(case: Case) -> Iterator[Finding]:
    full = case.capture.out_of_memory if case.capture is not None else None
    peak = peak_bytes(case)
    if not fills_half(case):
        return
    held = case.traced_memory.forward_bytes if case.traced_memory is not None else 0.0
    if full is not None and full.on == "device" and not held:
        yield from _of_lines(case, full)
        return
    if not peak or held < OWNED * peak:
        return
    block = _block(case, held)
    saved = _saved(block) if block is not None else 0.0
    if block is not None and saved < LEAST_SAVED * peak:
        return
    loop = _loop(case)
    kind = f", {units.percent(block.held_bytes / held)} of them in {block.kind}" if block else ""
    yield make_finding(
        RULE,
        claim=f"activations are {units.bytes_(held)} of a peak of {units.bytes_(peak)}{kind}",
        share=0.0,
        bound=1.0,
        memory=(saved or held) / peak,
        evidence=_evidence(case, held, peak, block, saved),
        place=_place(case, loop, block),
        module=block.kind if block is not None else "",
        change=_change(loop),
        confidence="high" if block is not None and loop is not None else "medium",
        doubt="checkpointing makes each step longer: it pays where it lets more fit",
    )


def _block(case: Case, held: float) -> ModuleMemory | None:
    """The outermost module that repeats and holds most of them."""
    modules = case.traced_memory.modules if case.traced_memory is not None else ()
    each = [_of_one_step(m, held) for m in modules]
    fit = [m for m in each if m.calls >= REPEATED and m.held_bytes >= OF_ALL * held]
    return min(fit, key=lambda m: (m.depth, -m.held_bytes), default=None)


def _of_one_step(module: ModuleMemory, held: float) -> ModuleMemory:
    """Modules cannot hold more than all of the forward does: where they seem to, the trace marks no
    steps and their calls are of several."""
    part = min(held / module.held_bytes, 1.0) if module.held_bytes > 0 else 1.0
    return replace(
        module, calls=module.calls * part, held_bytes=module.held_bytes * part,
        last_bytes=module.last_bytes * part,
    )  # fmt: skip


def _saved(block: ModuleMemory) -> float:
    """All but each block's result, which is the next one's input, and one block worked on."""
    return max(block.held_bytes - block.last_bytes - block.held_bytes / block.calls, 0.0)


def _evidence(
    case: Case, held: float, peak: int, block: ModuleMemory | None, saved: float
) -> list[Evidence]:
    whole = device_bytes(case)
    of = f"; the device has {units.bytes_(whole)}" if whole else ""
    text = f"{units.bytes_(held)}, {units.percent(held / peak)} of the peak{of}"
    rows = [Evidence(what="kept for the backward", text=text, value=held)]
    if block is not None:
        each = units.bytes_(block.held_bytes / block.calls)
        text = f"{units.significant(block.calls)} calls a step, {each} each"
        rows.append(Evidence(what=block.kind, text=text, value=block.held_bytes))
        text = f"saves {units.bytes_(saved)}"
        again = _again(case, block.kind)
        text += f", and {units.percent(again)} of the step is computed again" if again else ""
        rows.append(Evidence(what="checkpointing", text=text, value=saved, source="derived"))
    return rows


def _again(case: Case, kind: str) -> float:
    """The forward of these blocks, of the step."""
    sites = [s for s in case.sites.ops if s.phase == "forward" and f"{kind}_" in s.module]
    return case.device_share(sum(site.device_ns for site in sites))


def _loop(case: Case) -> BlockLoop | None:
    """Where blocks are called one after the other: in a forward, if anywhere is one."""
    loops = [loop for source in user_sources(case) for loop in block_loops(source)]
    return min(loops, key=lambda loop: loop.function != "forward", default=None)


def _place(case: Case, loop: BlockLoop | None, block: ModuleMemory | None) -> Place | None:
    if loop is not None:
        return Place(file=loop.file, line=loop.line, function=loop.function)
    sites = [s for s in case.sites.ops if block is not None and f"{block.kind}_" in s.module]
    return next((s.place for s in sites if s.place is not None), None)


def _change(loop: BlockLoop | None) -> str:
    if loop is None:
        return "x = checkpoint(block, x, use_reentrant=False)  # torch.utils.checkpoint"
    call = f"checkpoint({loop.block}, {loop.arguments}, use_reentrant=False)"
    return f"{loop.target} = {call}  # from torch.utils.checkpoint"


def _of_lines(case: Case, full: OutOfMemory) -> Iterator[Finding]:
    """Out of memory before any step was traced: the lines that allocated what was alive, those in
    a forward counted as activations."""
    mine = []
    for place, size, blocks in full.alive:
        file, _, line = place.rpartition(":")
        source = case.sources.get(file) if line.isdigit() else None
        scope = source.scope(int(line)) if source is not None else None
        if getattr(scope, "name", "") == "forward":
            mine.append((file, int(line), size, blocks))
    held, whole = sum(size for *_, size, _ in mine), full.allocated_bytes
    if not mine or not whole or held < OWNED * whole:
        return
    file, number, size, blocks = mine[0]
    loop = _loop(case)
    yield make_finding(
        RULE,
        claim=f"out of memory with {units.bytes_(held)} of {units.bytes_(whole)} in activations",
        share=0.0,
        bound=1.0,
        memory=held / whole,
        evidence=[
            Evidence(what=f"{file.rpartition('/')[2]}:{line_}", text=f"{units.bytes_(bytes_)} in "
                     f"{units.plural(count, 'block')}", value=float(bytes_))
            for file, line_, bytes_, count in mine[:4]
        ],
        place=_place(case, loop, None) or Place(file=file, line=number, function="forward"),
        change=_change(loop),
        confidence="high",
        doubt="checkpointing makes each step longer: it pays where it lets more fit",
    )  # fmt: skip
