"""The memory of a run: the traced steps by kind and by line, what grows and what holds it, and
after a shortage the request that failed and the ways to fit."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import (
    device_bytes,
    growth,
    held_by,
    held_in,
    host_bytes,
)
from ridgeline.diagnosis.recorded_run import FileNames, RunRead
from ridgeline.errors import RidgelineError
from ridgeline.memory.study import study_snapshot
from ridgeline.memory.traced_steps import study_traced_steps
from ridgeline.records.facts import Place, because
from ridgeline.records.finding import Findings
from ridgeline.records.memory import (
    AdviceCode,
    DeviceMemory,
    Growth,
    LevelsOverTime,
    MemoryAdvice,
    MemoryKind,
    MemoryStudy,
    Owner,
    Peak,
    Shortage,
)
from ridgeline.records.run import Capture, OutOfMemory
from ridgeline.records.run_directory import RunDirectory, open_plain_file
from ridgeline.records.step_memory import LineRange, TracedAllocations
from ridgeline.source.file import SourceFiles

MAX_ALLOCATIONS_BYTES = 64 * 2**20
MAX_SNAPSHOT_BYTES = 256 * 2**20
"""Size of an allocator's snapshot that is studied when the run ends, which the program waits for.
`ridgeline memory` studies a larger one."""
MAX_BRIEF_OWNERS = 20
MIN_WAY_SHARE = 0.03
"""Ways to fit that save less than this share of the peak are not named."""
MIN_REPEATED_BLOCKS = 3
"""Blocks that one line holds at the peak, from which its module is taken for a repeated one."""
CROWDED_SHARE = 0.5
"""From this share of the memory in use, ways to need less are named although none was short."""
STATE_SAVING = 0.75
"""States in 8 bits instead of 32."""
CHUNKED_FIX, AUTOCAST_FIX = "chunked-cross-entropy", "autocast"


def run_memory(
    directory: RunDirectory, read: RunRead, case: Case, findings: Findings, names: FileNames
) -> MemoryStudy | None:
    """Return the study of a run's memory; None if nothing is known."""
    capture = read.capture
    if capture is None:
        return None
    study = _traced(directory, capture, case)
    if capture.device.kind == "cuda":
        study = _with_snapshot(study, _snapshot(directory, case))
    full = capture.out_of_memory
    if study is None and full is None and not capture.held:
        return None
    if study is None or not study.devices:
        device = _at_failure(full, capture)
        study = MemoryStudy(source=directory.path.name, origin="shortage", devices=(device,))
    main, *others = study.devices
    grown = _growth(case, main, names)
    main = replace(main, growth=grown)
    if full is not None and not main.shortages:
        main = replace(main, shortages=(_shortage(full, main),))
    if not main.advice:
        main = replace(main, advice=tuple(_ways(case, main, findings)))
    devices = tuple(_named(device, names) for device in (main, *others))
    return replace(study, devices=devices)


def brief(study: MemoryStudy) -> MemoryStudy:
    """Return the study without what only pictures need."""
    return replace(
        study,
        devices=tuple(
            replace(
                device,
                levels=LevelsOverTime(),
                peak=replace(
                    device.peak,
                    owners=device.peak.owners[:MAX_BRIEF_OWNERS],
                    owners_left_out=device.peak.owners_left_out
                    + max(len(device.peak.owners) - MAX_BRIEF_OWNERS, 0),
                    stacks=(),
                ),
            )
            for device in study.devices
        ),
    )


# ------------------------------------------------------------------------------- the traced steps


def _traced(directory: RunDirectory, capture: Capture, case: Case) -> MemoryStudy | None:
    path = directory.allocations_file(capture.rank)
    if not path.is_file() or path.stat().st_size > MAX_ALLOCATIONS_BYTES:
        return None
    with open_plain_file(path) as file:
        found = msgspec.msgpack.decode(file.read(), type=TracedAllocations)
    first = next((w.first_step for w in capture.windows if w.kind == "traced"), 0)
    return study_traced_steps(
        found,
        path.name,
        first_step=first,
        resolve=lambda line: _line_between(case.sources, line),
    )


_OPERATIONS = (ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare, ast.Subscript)


def _line_between(sources: SourceFiles, between: LineRange) -> Place:
    """Return the line of an operator that lies between two calls: the first line with an operator
    of Python in it, such as `a + b` or `x[i]`."""
    source = sources.get(between.file) if between.last_line > between.line else None
    lines = sorted(
        node.lineno
        for node in (source.nodes if source is not None else ())
        if isinstance(node, _OPERATIONS) and between.line <= node.lineno <= between.last_line
    )
    return Place(between.file, lines[0] if lines else between.line, between.function)


def _snapshot(directory: RunDirectory, case: Case) -> MemoryStudy | None:
    """Return the study of the snapshot of a GPU's allocator: of the moment when memory ran out,
    else of the first steps."""
    capture = case.capture
    full = capture.out_of_memory if capture is not None else None
    taken = [full.snapshot if full is not None else "", capture.memory_file if capture else ""]
    for name in filter(None, taken):
        path = directory.path / Path(name).name
        if not path.is_file() or path.stat().st_size > MAX_SNAPSHOT_BYTES:
            continue
        others = _other_programs(case, full)
        try:
            return study_snapshot(
                path,
                max_bytes=4 * MAX_SNAPSHOT_BYTES,
                total_bytes=device_bytes(case),
                outside_bytes=others or None,
            )
        except RidgelineError:  # a damaged snapshot costs its own figures alone
            continue
    return None


def _other_programs(case: Case, full: OutOfMemory | None) -> int:
    """Return what was in use on the device besides torch's allocator, when memory ran out."""
    if full is None or full.on != "device" or not full.total_bytes:
        return 0
    return max(full.total_bytes - full.free_bytes - full.reserved_bytes, 0)


def _with_snapshot(traced: MemoryStudy | None, snapshot: MemoryStudy | None) -> MemoryStudy | None:
    """Return the study of the snapshot, with the lines of the traced steps, which it lacks."""
    if snapshot is None or not snapshot.devices:
        return traced
    lines = {d.device: d for d in traced.devices} if traced is not None else {}
    devices = [
        replace(d, lines=lines[d.device].lines, lines_left_out=lines[d.device].lines_left_out)
        if d.device in lines
        else d
        for d in snapshot.devices
    ]
    known = {d.device for d in devices}
    hosts = [d for d in (traced.devices if traced is not None else ()) if d.device not in known]
    return replace(snapshot, devices=(*devices, *hosts))


# ------------------------------------------------------------------------------------- what grows


def _growth(case: Case, device: DeviceMemory, names: FileNames) -> tuple[Growth, ...]:
    """Return the growth that was measured over the run, at the line that leaves most behind in the
    traced steps, with what was seen to hold it. Blocks that outlive a few traced steps alone are no
    growth: a buffer of the latest batches keeps them as well."""
    grown = growth(case)
    if grown is None:
        return ()
    line = device.growth[0] if device.growth else None
    held = tuple(held_by(one, names.shown(one.file)) for one in held_in(case))
    found = Growth(
        place=line.place if line is not None else None,
        kind=line.kind if line is not None else MemoryKind.UNKNOWN,
        bytes_per_step=grown.bytes_per_step,
        blocks_per_step=line.blocks_per_step if line is not None else 0.0,
        steps=len([step for step in case.steps if step.window == "light"]),
        held_by=held,
    )
    return (found,)


# ------------------------------------------------------------------------------ after a shortage


def _shortage(full: OutOfMemory, device: DeviceMemory) -> Shortage:
    place = Place.parse(full.place) if full.place else None
    inside = max(full.reserved_bytes - full.allocated_bytes, 0) if full.on == "device" else 0
    largest = device.fragmentation.largest_free_bytes if device.fragmentation is not None else 0
    asked = full.asked_bytes
    return Shortage(
        requested_bytes=asked,
        free_bytes=full.free_bytes,
        total_bytes=full.total_bytes,
        largest_free_bytes=largest,
        fragmented=bool(asked) and inside + full.free_bytes >= asked > full.free_bytes,
        place=place,
        phase=full.phase,
        step=full.step,
        usual_bytes=_usual(place, device),
    )


def _usual(place: Place | None, device: DeviceMemory) -> int:
    for one in device.lines:
        known = one.place
        if known and place and (known.file, known.line) == (place.file, place.line):
            return one.largest_bytes
    return 0


def _at_failure(full: OutOfMemory | None, capture: Capture) -> DeviceMemory:
    """Return what is known of the memory of a program that died before any step was traced: the
    tensors that its objects held, else what its model takes."""
    on = f"cuda:{capture.device.index}" if full is not None and full.on == "device" else "cpu"
    live = [one for one in full.live if one.device == on] if full is not None else []
    owners = [Owner(place=None, kind=one.kind, bytes=one.bytes, blocks=one.tensors) for one in live]
    for line, size, blocks in full.alive if full is not None and not live else ():
        owners.append(
            Owner(place=Place.parse(line), kind=MemoryKind.UNKNOWN, bytes=size, blocks=blocks)
        )
    by_kind: dict[MemoryKind, int] = {}
    for owner in owners:
        by_kind[owner.kind] = by_kind.get(owner.kind, 0) + owner.bytes
    peak = Peak(
        bytes=sum(by_kind.values()), at_ns=0, by_kind=by_kind, owners=tuple(owners),
        step=full.step if full is not None else None, phase=full.phase if full is not None else "",
    )  # fmt: skip
    return DeviceMemory(device=on, peak=peak)


def _ways(case: Case, device: DeviceMemory, findings: Findings) -> Iterator[MemoryAdvice]:
    """Yield the ways to need less memory, the cheapest first: those that cost no time, then those
    that save most. A program with room is told none."""
    full = case.capture.out_of_memory if case.capture is not None else None
    room = host_bytes(case) if device.device == "cpu" else device_bytes(case)
    used = (
        case.memory.host_peak_bytes if device.device == "cpu" else case.memory.device_peak_bytes
    ) or 0
    if full is None and not (room and used >= CROWDED_SHARE * room):
        return
    ways = [*_growing(case, device), *_kinds(case, device, findings, short=full is not None)]
    least = MIN_WAY_SHARE * device.peak.bytes
    fitting = [
        way
        for way in ways
        if way.saves_bytes >= least or way.reason.code == AdviceCode.STOP_GROWTH.value
    ]
    yield from sorted(fitting, key=lambda way: (way.slowdown or 1.01, -way.saves_bytes))


def _growing(case: Case, device: DeviceMemory) -> Iterator[MemoryAdvice]:
    steps = max((step.index for step in case.steps), default=0)
    full = case.capture.out_of_memory if case.capture is not None else None
    taken = case.capture.steps_taken if case.capture is not None else None
    steps = max(steps, full.step if full is not None else 0, taken or 0)
    held = full.held[0].bytes if full is not None and full.held else 0
    for line in device.growth[:1]:
        yield MemoryAdvice(
            reason=because(
                AdviceCode.STOP_GROWTH,
                file=line.place.file if line.place else None,
                line=line.place.line if line.place else None,
                bytes_per_step=line.bytes_per_step,
            ),
            saves_bytes=max(int(line.bytes_per_step * steps), held),
            slowdown=1.0,
        )


def _kinds(
    case: Case, device: DeviceMemory, findings: Findings, *, short: bool
) -> Iterator[MemoryAdvice]:
    peak, capture = device.peak, case.capture
    size = {kind: peak.by_kind.get(kind, 0) for kind in MemoryKind}
    for kind in _GROW_WITH_THE_BATCH:
        size[kind] = int(size[kind] * _larger(device))
    activations = size[MemoryKind.ACTIVATION]
    calls_only = capture is not None and capture.stepping == "call"
    trains = not calls_only
    if peak.phase in ("input", "forward") and size[MemoryKind.GRADIENT]:
        yield MemoryAdvice(
            reason=because(AdviceCode.FREE_GRADIENTS, gradients_bytes=size[MemoryKind.GRADIENT]),
            saves_bytes=size[MemoryKind.GRADIENT],
            is_bound=True,
            slowdown=1.0,
            fix="set-to-none",
        )
    if activations and calls_only:
        yield MemoryAdvice(
            reason=because(AdviceCode.NO_GRADIENTS, activations_bytes=activations),
            saves_bytes=activations,
            is_bound=True,
            slowdown=1.0,
            fix="inference-mode",
        )
    repeats, repeated = _repeated(peak.owners)
    repeated = int(repeated * _larger(device))
    if trains and repeated:
        yield MemoryAdvice(
            reason=because(AdviceCode.CHECKPOINT, activations_bytes=repeated, repeats=repeats),
            saves_bytes=repeated - repeated // repeats,
            is_bound=True,
            slowdown=1.0 + _forward_share(case),
            fix="checkpointing",
        )
    for finding in findings.findings:
        if finding.fix == CHUNKED_FIX and finding.memory_pct:
            saved = int(finding.memory_pct / 100 * peak.bytes)
            yield MemoryAdvice(
                reason=because(AdviceCode.CHUNKED_LOSS, logits_bytes=saved),
                saves_bytes=saved, is_bound=True, fix=CHUNKED_FIX,
            )  # fmt: skip
    moving = activations + size[MemoryKind.INPUT] + size[MemoryKind.TEMPORARY]
    if activations and _computes_in_float32(capture) and "bfloat16" not in case.emulated:
        yield MemoryAdvice(
            reason=because(AdviceCode.LOWER_PRECISION, activations_bytes=activations),
            saves_bytes=activations // 2,
            is_bound=True,
            fix=AUTOCAST_FIX,
        )
    if short and moving and trains:
        yield MemoryAdvice(
            reason=because(AdviceCode.SMALLER_BATCH, activations_bytes=moving, factor=0.5),
            saves_bytes=moving // 2,
            fix="gradient-accumulation",
        )
    if state := size[MemoryKind.OPTIMIZER_STATE]:
        yield MemoryAdvice(
            reason=because(AdviceCode.SMALLER_OPTIMIZER_STATE, state_bytes=state),
            saves_bytes=int(STATE_SAVING * state),
            is_bound=True,
        )


_GROW_WITH_THE_BATCH = (MemoryKind.ACTIVATION, MemoryKind.INPUT, MemoryKind.TEMPORARY)
MIN_LARGER_FACTOR = 1.5


def _larger(device: DeviceMemory) -> float:
    """Return how many times larger the tensors of the failed step were than those of the traced
    steps: a longer batch, another evaluation. The failed request tells, where the same line also
    ran in the traced steps."""
    for shortage in device.shortages[-1:]:
        factor = shortage.requested_bytes / shortage.usual_bytes if shortage.usual_bytes else 1.0
        return factor if factor >= MIN_LARGER_FACTOR else 1.0
    return 1.0


def _repeated(owners: Sequence[Owner]) -> tuple[int, int]:
    """Return how often the blocks of a repeated module are live at the peak, and their bytes."""
    often = [
        owner
        for owner in owners
        if owner.kind is MemoryKind.ACTIVATION
        and owner.module.count(" / ")
        and owner.blocks >= MIN_REPEATED_BLOCKS
    ]
    return min((o.blocks for o in often), default=0), sum(o.bytes for o in often)


def _forward_share(case: Case) -> float:
    """Return the share of the step in the forward, which checkpointing does a second time."""
    known = [phase.share for phase in case.times.phases if phase.phase == "forward"]
    return known[0] if known else 1 / 3


def _computes_in_float32(capture: Capture | None) -> bool:
    if capture is None or capture.flags.autocast:
        return False
    used = {dtype for module in capture.modules if not module.loss for dtype in module.dtypes}
    return used == {"float32"}


def _named(device: DeviceMemory, names: FileNames) -> DeviceMemory:
    """Return the record with each file under the name that it has in the report."""

    def shown(place: Place | None) -> Place | None:
        return Place(names.shown(place.file), place.line, place.function) if place else None

    peak = device.peak
    owners = tuple(replace(o, place=shown(o.place), outer=shown(o.outer)) for o in peak.owners)
    advice = []
    for way in device.advice:
        facts = dict(way.reason.facts)
        if isinstance(facts.get("file"), str):
            facts["file"] = names.shown(str(facts["file"]))
        advice.append(replace(way, reason=replace(way.reason, facts=facts)))
    return replace(
        device,
        peak=replace(peak, owners=owners),
        lines=tuple(replace(one, place=shown(one.place)) for one in device.lines),
        growth=tuple(replace(one, place=shown(one.place)) for one in device.growth),
        shortages=tuple(replace(one, place=shown(one.place)) for one in device.shortages),
        advice=tuple(advice),
    )
