"""Activations own a peak that is near what the device has."""

from collections.abc import Iterator

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import device_bytes, device_peak_bytes, fills_half
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._user_code import place_at, source_of, user_sources
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import OutOfMemory
from ridgeline.records.step_work import ModuleMemory
from ridgeline.records.trace import Place
from ridgeline.source.loops import BlockLoop, block_loops

MIN_ACTIVATION_SHARE = 0.6
"""Share of the peak from which activations are what to look at."""
MIN_BLOCK_CALLS = 4.0
"""Calls a step from which a module is a block of a stack. Fewer are not worth checkpointing one by
one."""
MIN_BLOCK_SHARE = 0.5
"""Share of the activations that the blocks must hold. Otherwise they are elsewhere."""
MIN_SAVED_SHARE = 0.05
_DOUBT = "checkpointing makes each step longer: it pays where it lets more fit"

RULE = Rule(id="activation-peak", family="memory", budget="memory", needs=("gpu",))


def look(case: Case) -> Iterator[Finding]:
    full = case.capture.out_of_memory if case.capture is not None else None
    peak = device_peak_bytes(case)
    if not fills_half(case):
        return
    held = case.traced_memory.forward_bytes if case.traced_memory is not None else 0.0
    if full is not None and full.on == "device" and not held:
        yield from _out_of_memory(case, full)
        return
    if not peak or held < MIN_ACTIVATION_SHARE * peak:
        return
    block = _block(case, held)
    saved = _saved(block) if block is not None else 0.0
    if block is not None and saved < MIN_SAVED_SHARE * peak:
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
        fix="checkpointing",
        change=_change(loop),
        confidence="high" if block is not None and loop is not None else "medium",
        doubt=_DOUBT,
    )


def _block(case: Case, held: float) -> ModuleMemory | None:
    """Return the outermost module that repeats and holds most of the activations."""
    modules = case.traced_memory.modules if case.traced_memory is not None else ()
    each = [_of_one_step(m, held) for m in modules]
    least = MIN_BLOCK_SHARE * held
    fit = [m for m in each if m.calls >= MIN_BLOCK_CALLS and m.held_bytes >= least]
    return min(fit, key=lambda m: (m.depth, -m.held_bytes), default=None)


def _of_one_step(module: ModuleMemory, held: float) -> ModuleMemory:
    """Return a module's memory of one step. If modules seem to hold more than the whole forward,
    the trace marks no steps, and their calls are of several."""
    part = min(held / module.held_bytes, 1.0) if module.held_bytes > 0 else 1.0
    return replace(
        module, calls=module.calls * part, held_bytes=module.held_bytes * part,
        last_bytes=module.last_bytes * part,
    )  # fmt: skip


def _saved(block: ModuleMemory) -> float:
    """Return what checkpointing saves: all but each block's result, which is the input of the next
    one, and the one block that is worked on."""
    return max(block.held_bytes - block.last_bytes - block.held_bytes / block.calls, 0.0)


def _evidence(
    case: Case, held: float, peak: int, block: ModuleMemory | None, saved: float
) -> list[Evidence]:
    whole = device_bytes(case)
    of = f"; the device has {units.bytes_(whole)}" if whole else ""
    text = f"{units.bytes_(held)}, {units.percent(held / peak)} of the peak{of}"
    rows = [measured("kept for the backward", text, held)]
    if block is not None:
        each = units.bytes_(block.held_bytes / block.calls)
        text = f"{units.significant(block.calls)} calls a step, {each} each"
        rows.append(measured(block.kind, text, block.held_bytes))
        text = f"saves {units.bytes_(saved)}"
        again = _again(case, block.kind)
        text += f", and {units.percent(again)} of the step is computed again" if again else ""
        rows.append(derived("checkpointing", text, saved))
    return rows


def _again(case: Case, kind: str) -> float:
    """Return the share of the step in the forward of these blocks."""
    sites = [s for s in case.sites.ops if s.phase == "forward" and f"{kind}_" in s.module]
    return case.device_share(sum(site.device_ns for site in sites))


def _loop(case: Case) -> BlockLoop | None:
    """Return the loop that calls blocks one after the other; one in a `forward` comes first."""
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


def _out_of_memory(case: Case, full: OutOfMemory) -> Iterator[Finding]:
    """Yield a finding for a program that ran out of memory before any step was traced. It names the
    lines that allocated what was alive; those in a `forward` count as activations."""
    mine = []
    for text, size, blocks in full.alive:
        place = place_at(text)
        source = source_of(case, place)
        if place and source is not None and source.function_name(place.line) == "forward":
            mine.append((place, size, blocks))
    held, whole = sum(size for _, size, _ in mine), full.allocated_bytes
    if not mine or not whole or held < MIN_ACTIVATION_SHARE * whole:
        return
    loop = _loop(case)
    yield make_finding(
        RULE,
        claim=f"out of memory with {units.bytes_(held)} of {units.bytes_(whole)} in activations",
        share=0.0,
        bound=1.0,
        memory=held / whole,
        evidence=[
            measured(
                f"{place.file.rpartition('/')[2]}:{place.line}",
                f"{units.bytes_(size)} in {units.plural(blocks, 'block')}",
                size,
            )
            for place, size, blocks in mine[:4]
        ],
        place=_place(case, loop, None) or replace(mine[0][0], function="forward"),
        fix="checkpointing",
        change=_change(loop),
        confidence="high",
        doubt=_DOUBT,
    )
