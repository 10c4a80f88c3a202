"""Says what would have helped: ways to need less memory, each with what it would save of the peak.

Only ways for which the snapshot has evidence are named. A saving that rests on a property that the
snapshot does not show is an upper bound and says so.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from ridgeline.memory.call_sites import Part
from ridgeline.memory.kinds import CODES, BlockKinds
from ridgeline.memory.snapshot import Ints
from ridgeline.records.facts import because
from ridgeline.records.memory import (
    AdviceCode,
    Fragmentation,
    Growth,
    MemoryAdvice,
    MemoryKind,
    Shortage,
)

MIN_SHARE = 0.05
"""Ways that save less than this share of the peak are not named."""
LARGE_SHARE = 0.3
RECOMPUTATION_SLOWDOWN = 4 / 3
"""A forward is a third of a step's arithmetic, and recomputation does it a second time."""
STATE_SAVING = 0.75
"""States in 8 bits instead of 32."""
CHUNKS = 8
"""Pieces in which a loss over chunks holds logits."""
MIN_REPEATED_MODULES = 3
MAX_WAYS = 6
MIN_GROWTH_BYTES = 1 << 16
"""Less growth in a step fills no device: a tensor with one number takes 512 bytes."""


def advice(
    kinds: BlockKinds,
    live: Ints,
    growth: Iterable[Growth],
    fragmentation: Fragmentation | None,
    shortages: tuple[Shortage, ...],
    outside_bytes: int | None,
) -> tuple[MemoryAdvice, ...]:
    """Return the ways to need less memory, what saves most first. `live` are the blocks at the
    peak."""
    peak = int(kinds.timeline.blocks.size[live].sum())
    ways = [
        *_activations(kinds, live, peak, bool(shortages)),
        *_gradients(kinds, live),
        *_logits(kinds, live),
        *_states(kinds, live),
        *_growth(kinds, growth),
        *_segments(kinds, fragmentation, shortages, peak),
    ]
    if outside_bytes:
        way = because(AdviceCode.OTHER_PROCESSES, bytes=outside_bytes)
        ways.append(MemoryAdvice(reason=way, saves_bytes=outside_bytes, is_bound=True))
    always = {AdviceCode.STOP_GROWTH.value}
    if any(shortage.fragmented for shortage in shortages):
        always.add(AdviceCode.EXPANDABLE_SEGMENTS.value)
    large = [w for w in ways if w.saves_bytes >= MIN_SHARE * peak or w.reason.code in always]
    return tuple(sorted(large, key=lambda way: -way.saves_bytes)[:MAX_WAYS])


def _size(kinds: BlockKinds, blocks: Ints) -> int:
    return int(kinds.timeline.blocks.size[blocks].sum())


def _of_kind(kinds: BlockKinds, live: Ints, kind: MemoryKind) -> Ints:
    chosen: Ints = live[kinds.codes[live] == CODES[kind]]
    return chosen


def _activations(
    kinds: BlockKinds, live: Ints, peak: int, is_short: bool
) -> Iterator[MemoryAdvice]:
    activations = _of_kind(kinds, live, MemoryKind.ACTIVATION)
    size = _size(kinds, activations)
    if size < LARGE_SHARE * peak:
        return
    if not kinds.steps.in_backward.any():
        way = because(AdviceCode.NO_GRADIENTS, activations_bytes=size)
        if len(activations) >= MIN_REPEATED_MODULES:
            yield MemoryAdvice(
                reason=way, saves_bytes=size, is_bound=True, slowdown=1.0, fix="inference-mode"
            )
        return
    repeats, repeated = _repeated(kinds, activations)
    if repeats >= MIN_REPEATED_MODULES:
        yield MemoryAdvice(
            reason=because(AdviceCode.CHECKPOINT, activations_bytes=repeated, repeats=repeats),
            saves_bytes=repeated - repeated // repeats,
            is_bound=True,
            slowdown=RECOMPUTATION_SLOWDOWN,
            fix="checkpointing",
        )
    if is_short:
        way = because(AdviceCode.SMALLER_BATCH, activations_bytes=size, factor=0.5)
        yield MemoryAdvice(reason=way, saves_bytes=size // 2, fix="gradient-accumulation")


def _repeated(kinds: BlockKinds, activations: Ints) -> tuple[int, int]:
    """Return how often the most frequent module is live, and the bytes of all activations of the
    same lines: of repeated blocks of a model, such as the layers of a transformer."""
    blocks = kinds.timeline.blocks
    inside = activations[(kinds.sites.parts[blocks.stack[activations]] & Part.MODULE) != 0]
    if not len(inside):
        return 0, 0
    sums: dict[object, list[int]] = {}
    for block in inside.tolist():
        place = kinds.sites.place(int(blocks.stack[block]))
        entry = sums.setdefault((place, int(blocks.size[block])), [0, 0])
        entry[0] += 1
        entry[1] += int(blocks.size[block])
    often = [(count, size) for count, size in sums.values() if count >= MIN_REPEATED_MODULES]
    if not often:
        return 0, 0
    return min(count for count, _ in often), sum(size for _, size in often)


def _gradients(kinds: BlockKinds, live: Ints) -> Iterator[MemoryAdvice]:
    """Gradients of an earlier step that still live at a peak in the forward, or early in the
    backward."""
    gradients = _of_kind(kinds, live, MemoryKind.GRADIENT)
    steps, peak = kinds.steps, kinds.timeline.peak
    if not steps.count or steps.phase(peak) not in ("forward", "backward"):
        return
    now = int(steps.step_of(np.array([peak]))[0])
    old = gradients[steps.step_of(kinds.timeline.blocks.start[gradients]) < now]
    if len(old):
        size = _size(kinds, old)
        yield MemoryAdvice(
            reason=because(AdviceCode.FREE_GRADIENTS, gradients_bytes=size),
            saves_bytes=size,
            is_bound=True,
            slowdown=1.0,
            fix="set-to-none",
        )


def _logits(kinds: BlockKinds, live: Ints) -> Iterator[MemoryAdvice]:
    """Logits, what the loss makes of them, and their gradient are blocks of one size."""
    blocks = kinds.timeline.blocks
    in_loss = live[(kinds.sites.parts[blocks.stack[live]] & Part.LOSS) != 0]
    if not len(in_loss):
        return
    largest = int(blocks.size[in_loss].max())
    alike = live[blocks.size[live] == largest]
    held = np.isin(kinds.codes[alike], (CODES[MemoryKind.ACTIVATION], CODES[MemoryKind.TEMPORARY]))
    size = _size(kinds, alike[held])
    yield MemoryAdvice(
        reason=because(AdviceCode.CHUNKED_LOSS, logits_bytes=size),
        saves_bytes=size - size // CHUNKS,
        is_bound=True,
        fix="chunked-cross-entropy",
    )


def _states(kinds: BlockKinds, live: Ints) -> Iterator[MemoryAdvice]:
    size = _size(kinds, _of_kind(kinds, live, MemoryKind.OPTIMIZER_STATE))
    if size:
        yield MemoryAdvice(
            reason=because(AdviceCode.SMALLER_OPTIMIZER_STATE, state_bytes=size),
            saves_bytes=int(size * STATE_SAVING),
            is_bound=True,
        )


def _growth(kinds: BlockKinds, growth: Iterable[Growth]) -> Iterator[MemoryAdvice]:
    step = kinds.steps.step_of(np.array([kinds.timeline.peak]))
    for line in [line for line in growth if line.bytes_per_step >= MIN_GROWTH_BYTES][:1]:
        yield MemoryAdvice(
            reason=because(
                AdviceCode.STOP_GROWTH,
                file=line.place.file if line.place else None,
                line=line.place.line if line.place else None,
                bytes_per_step=line.bytes_per_step,
            ),
            saves_bytes=int(line.bytes_per_step * max(int(step[0]), 0)),
            slowdown=1.0,
        )


def _segments(
    kinds: BlockKinds,
    fragmentation: Fragmentation | None,
    shortages: tuple[Shortage, ...],
    peak: int,
) -> Iterator[MemoryAdvice]:
    """Yield expandable segments. They would have saved, of the free memory between blocks, only the
    part that had to be reserved beyond the peak."""
    if fragmentation is None or fragmentation.expandable:
        return
    reserved = fragmentation.reserved_bytes
    if len(kinds.timeline):
        reserved = int(kinds.timeline.reserved.max())
    saved = min(fragmentation.expandable_saves_bytes, max(reserved - peak, 0))
    asked = max((s.requested_bytes for s in shortages if s.fragmented), default=0)
    if saved or asked:
        stuck = because(AdviceCode.EXPANDABLE_SEGMENTS, stuck_bytes=fragmentation.stuck_bytes)
        yield MemoryAdvice(
            reason=stuck,
            saves_bytes=max(saved, asked),
            is_bound=True,
            slowdown=1.0,
            fix="expandable-segments",
        )
