"""Finds lines that leave memory behind in each step."""

import numpy as np

from ridgeline.memory.kinds import KINDS, BlockKinds
from ridgeline.memory.snapshot import Ints
from ridgeline.memory.timeline import BEFORE
from ridgeline.records.facts import Place
from ridgeline.records.memory import Growth, MemoryKind

MIN_STEPS = 4
"""With fewer steps, two that differ would look like growth."""
MIN_RISES = 3
"""The number of steps that must leave something behind. In a recording of three steps or fewer, two
are enough."""


def growth(kinds: BlockKinds) -> tuple[Growth, ...]:
    """Return the lines whose memory grows from step to step, the fastest first.

    At the beginning of each step, the lowest level in this and all later steps is what stays.
    Growth is the rise of that level. The first step is left out, in which optimizers and caches
    allocate what they keep.
    """
    steps, blocks = kinds.steps, kinds.timeline.blocks
    starts = steps.starts
    if len(starts) < MIN_STEPS:
        return ()
    first = np.searchsorted(starts, blocks.start, side="right")
    last = np.searchsorted(starts, blocks.end, side="right")
    rows = np.flatnonzero((blocks.start > BEFORE) & (last > first))
    groups, places = _groups(kinds, rows)
    levels = np.zeros((len(places), len(starts) + 1), np.int64)
    counts = np.zeros_like(levels)
    for table, values in ((levels, blocks.size[rows]), (counts, np.ones(len(rows), np.int64))):
        np.add.at(table, (groups, first[rows]), values)
        np.subtract.at(table, (groups, last[rows]), values)
    found = []
    for (place, kind), level, count in zip(places, levels, counts, strict=True):
        # The last column is what begins after the last step: nothing.
        stays = _what_stays(np.cumsum(level)[2 if len(starts) > MIN_STEPS else 1 : -1])
        if _rises(stays):
            kept = _what_stays(np.cumsum(count)[-1 - len(stays) : -1])
            number = len(stays) - 1
            found.append(
                Growth(
                    place=place,
                    kind=kind,
                    bytes_per_step=float(stays[-1] - stays[0]) / number,
                    blocks_per_step=float(kept[-1] - kept[0]) / number,
                    steps=number,
                )
            )
    return tuple(sorted(found, key=lambda line: -line.bytes_per_step))


def _groups(kinds: BlockKinds, rows: Ints) -> tuple[Ints, list[tuple[Place | None, MemoryKind]]]:
    """Return the group of each block, and the place and kind of each group."""
    key = kinds.timeline.blocks.stack[rows] * len(KINDS) + kinds.codes[rows]
    values, inverse = np.unique(key, return_inverse=True)
    numbers: dict[tuple[Place | None, MemoryKind], int] = {}
    group_of = [
        numbers.setdefault(
            (kinds.sites.place(value // len(KINDS)), KINDS[value % len(KINDS)]), len(numbers)
        )
        for value in values.tolist()
    ]
    return np.array(group_of, np.int64)[inverse], list(numbers)


def _what_stays(
    levels: Ints,
) -> Ints:
    """Return for each step the lowest level in it and in all later ones."""
    return np.minimum.accumulate(levels[::-1])[::-1]


def _rises(stays: Ints) -> bool:
    rises = int(np.count_nonzero(np.diff(stays) > 0))
    return rises >= max(2, min(MIN_RISES, len(stays) - 1))
