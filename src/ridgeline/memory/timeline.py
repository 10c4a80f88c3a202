"""Replays the events of a device: which block lived when, and how much was allocated and reserved
after each event.

The recording is a ring: its oldest events may be gone, and it may have begun after the program. A
block that is released without having been allocated, or that is there at the end without having
been allocated, was there before the recording.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.memory.snapshot import (
    ALLOC,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Ints,
    Snapshot,
)

Bools = NDArray[np.bool_]
BEFORE = -1
"""The moment before the first recorded event."""


class Blocks:
    """Every block that lived during the recording. Each column has one value a block."""

    def __init__(self, start: Ints, end: Ints, size: Ints, stack: Ints, address: Ints) -> None:
        self.start = start
        """The event that allocated it; `BEFORE` if it was there before the recording."""
        self.end = end
        """The event that released it; the number of events if it was there at the end."""
        self.size = size
        self.stack = stack
        self.address = address

    def __len__(self) -> int:
        return len(self.start)

    def live_at(self, moment: int) -> Ints:
        """Return the blocks that live after the event `moment`."""
        return np.flatnonzero((self.start <= moment) & (self.end > moment))


class Timeline:
    """The events of one device, replayed."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        events = snapshot.events(device)
        self.snapshot = snapshot
        self.device = device
        self.action = events["action"]
        self.stack = events["stack"].astype(np.int64)
        self.event_size = events["size"]
        self.event_address = events["address"]
        self._time_us = events["time_us"]
        self.unmatched = 0
        """How many releases belong to no block."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_times(self) -> bool:
        return bool(len(self._time_us)) and int(self._time_us.max()) > 0

    @cached_property
    def at_ns(self) -> Ints:
        """The moment of each event since the first. Older snapshots have no times: then it is the
        number of the event."""
        if not self.has_times:
            return np.arange(len(self), dtype=np.int64)
        known = np.maximum.accumulate(self._time_us)  # an event without a time has the one before
        first = int(known[known > 0][0])
        since_first: Ints = np.maximum(known - first, 0) * 1000
        return since_first

    @property
    def first_us(self) -> int:
        """The clock at the first event that has a time."""
        known = self._time_us[self._time_us > 0]
        return int(known[0]) if len(known) else 0

    @cached_property
    def blocks(self) -> Blocks:
        rows = np.flatnonzero(self.is_alloc | self._is_free)
        order = np.argsort(self.event_address[rows], kind="stable")
        rows = rows[order]
        address = self.event_address[rows]
        is_alloc = self.is_alloc[rows]
        is_last = np.append(address[1:] != address[:-1], True)[: len(rows)]
        is_first = np.append(True, address[1:] != address[:-1])[: len(rows)]
        end = np.append(rows[1:], len(self))[: len(rows)]
        end[is_last] = len(self)
        in_use, seen = self._in_use_at_the_end, np.unique(address)
        in_segments = self.snapshot.blocks(self.device)["address"][in_use]
        awaiting = is_last & ~is_first & ~is_alloc & np.isin(address, in_segments)
        end[np.flatnonzero(awaiting[1:])] = len(self)  # another stream still uses the block
        early = np.flatnonzero(is_first & ~is_alloc)
        after_free = np.flatnonzero(~is_first & ~is_alloc) - 1
        self.unmatched = int(np.count_nonzero(~is_alloc[after_free]))
        own = np.flatnonzero(is_alloc)
        parts = [
            (rows[own], end[own], self.event_size[rows[own]], self.stack[rows[own]], address[own]),
            _before(rows[early], self.event_size[rows[early]], address[early]),
        ]
        parts.append(self._there_at_the_end(in_use, seen))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        made = Blocks(*columns)
        self._complete_stacks(made)
        return made

    @cached_property
    def allocated(self) -> Ints:
        """The allocated bytes after each event, as the program asked for them."""
        return self.level(np.arange(len(self.blocks)))

    def level(self, chosen: Ints) -> Ints:
        """Return the bytes in the chosen blocks after each event."""
        blocks = self.blocks
        start, end, size = blocks.start[chosen], blocks.end[chosen], blocks.size[chosen]
        change = np.zeros(len(self), np.int64)
        begins, ends = start >= 0, end < len(self)
        change[start[begins]] += size[begins]  # no two blocks begin, or end, with the same event
        change[end[ends]] -= size[ends]
        levels: Ints = np.cumsum(change) + int(size[~begins].sum())
        return levels

    @cached_property
    def reserved(self) -> Ints:
        """The bytes that the allocator held of the device after each event."""
        gains = np.isin(self.action, (SEGMENT_ALLOC, SEGMENT_MAP))
        losses = np.isin(self.action, (SEGMENT_FREE, SEGMENT_UNMAP))
        changes = np.cumsum(np.where(gains, self.event_size, np.where(losses, -self.event_size, 0)))
        end = int(self.snapshot.segments(self.device)["size"].sum())
        levels: Ints = np.maximum(changes + (end - int(changes[-1]) if len(changes) else 0), 0)
        return levels

    @cached_property
    def peak(self) -> int:
        """The event after which most was allocated; `BEFORE` if that was before the first."""
        if not len(self):
            return BEFORE
        highest = int(np.argmax(self.allocated))
        first = int(self.blocks.size[self.blocks.start == BEFORE].sum())
        return BEFORE if first > self.allocated[highest] else highest

    def bytes_at(self, moment: int) -> int:
        if moment == BEFORE:
            return int(self.blocks.size[self.blocks.start == BEFORE].sum())
        return int(self.allocated[moment])

    def reserved_at(self, moment: int) -> int:
        if len(self):
            return int(self.reserved[max(moment, 0)])
        return int(self.snapshot.segments(self.device)["size"].sum())

    def time_of(self, moment: int) -> int:
        return int(self.at_ns[moment]) if 0 <= moment < len(self) else 0

    @property
    def shortages(self) -> Ints:
        """The events in which a request failed."""
        return np.flatnonzero(self.action == OOM)

    @cached_property
    def is_alloc(self) -> Bools:
        made: Bools = self.action == ALLOC
        return made

    @cached_property
    def _is_free(self) -> Bools:
        """Whether an event ends a block. A block whose release was asked for on another stream is
        in use until the release is completed."""
        completed = self.action == FREE_COMPLETED
        ending = completed if completed.any() else self.action == FREE_REQUESTED
        freed: Bools = ending | (self.action == FREE)
        return freed

    @cached_property
    def _in_use_at_the_end(self) -> Ints:
        """The rows of the blocks that the segments have in use."""
        return np.flatnonzero(self.snapshot.blocks(self.device)["state"] != INACTIVE)

    def _there_at_the_end(self, in_use: Ints, seen: Ints) -> tuple[Ints, ...]:
        """Return the blocks in use in the segments of which no event tells."""
        blocks = self.snapshot.blocks(self.device)
        rows = in_use[~np.isin(blocks["address"][in_use], seen)]
        start, _, size, _, address = _before(
            rows, blocks["requested"][rows], blocks["address"][rows]
        )
        return start, np.full(len(rows), len(self), np.int64), size, blocks["stack"][rows], address

    def _complete_stacks(self, made: Blocks) -> None:
        """Take the stack of a block that is there at the end from its segment, where the event has
        none: a program may record the stacks of live blocks alone."""
        blocks = self.snapshot.blocks(self.device)
        rows = np.flatnonzero((blocks["state"] != INACTIVE) & (blocks["stack"] >= 0))
        lacking = np.flatnonzero((made.end == len(self)) & (made.stack < 0))
        if not len(rows) or not len(lacking):
            return
        rows = rows[np.argsort(blocks["address"][rows], kind="stable")]
        addresses = blocks["address"][rows]
        place = np.minimum(np.searchsorted(addresses, made.address[lacking]), len(rows) - 1)
        same = addresses[place] == made.address[lacking]
        made.stack[lacking[same]] = blocks["stack"][rows[place[same]]]


def _before(end: Ints, size: Ints, address: Ints) -> tuple[Any, ...]:
    start = np.full(len(end), BEFORE, np.int64)
    return start, end, size, np.full(len(end), -1, np.int64), address
