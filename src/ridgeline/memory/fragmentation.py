"""Says how the allocator's segments are filled: at the end of the recording from the segments
themselves, and at an earlier moment from what lived then."""

import numpy as np

from ridgeline.memory.call_sites import CallSites, Part
from ridgeline.memory.snapshot import (
    AWAITING,
    INACTIVE,
    PENDING,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Ints,
    Snapshot,
)
from ridgeline.memory.timeline import Timeline
from ridgeline.records.memory import Fragmentation

PAGE_BYTES = 2 << 20
"""Expandable segments map and unmap memory in pages of this size."""
ROUNDING_BYTES = 512
MAX_REPLAYED_SEGMENTS = 200_000
_SETTING = "expandable_segments"


def fragmentation(snapshot: Snapshot, timeline: Timeline, sites: CallSites) -> Fragmentation | None:
    """Return how the segments of the device are filled at the end; None if it has none."""
    segments, blocks = snapshot.segments(timeline.device), snapshot.blocks(timeline.device)
    if not len(segments["size"]):
        return None
    place = np.searchsorted(segments["number"], blocks["segment"])
    used = blocks["state"] != INACTIVE
    is_free = ~used
    used_in = np.bincount(place, used, minlength=len(segments["size"]))
    stuck = is_free & (used_in[place] > 0)
    sizes, address = blocks["size"], blocks["address"]
    expandable = segments["is_expandable"].astype(np.bool_)
    pages = _whole_pages(address, sizes) * (stuck & ~expandable[place])
    in_use = used & ~np.isin(blocks["state"], (PENDING, AWAITING))
    return Fragmentation(
        reserved_bytes=int(segments["size"].sum()),
        allocated_bytes=int(sizes[used].sum()),
        requested_bytes=int(np.where(in_use, blocks["requested"], sizes)[used].sum()),
        free_bytes=int(segments["size"].sum() - sizes[used].sum()),
        stuck_bytes=int(sizes[stuck].sum()),
        largest_free_bytes=int(sizes[is_free].max(initial=0)),
        segments=len(segments["size"]),
        expandable=bool(snapshot.settings.get(_SETTING)) or bool(expandable.any()),
        expandable_saves_bytes=int(pages.sum()) * PAGE_BYTES,
        retries=retries(timeline, sites),
    )


def _whole_pages(address: Ints, sizes: Ints) -> Ints:
    """Return how many whole pages lie within each block."""
    first = -(-address // PAGE_BYTES)
    last = (address + sizes) // PAGE_BYTES
    pages: Ints = np.maximum(last - first, 0)
    return pages


def retries(timeline: Timeline, sites: CallSites) -> int:
    """Return how often the allocator gave its cache back because the device was full: releases of
    segments, directly followed by a new segment or a shortage. `empty_cache` is the program's own
    wish and does not count."""
    released = timeline.action == SEGMENT_FREE
    asked = (sites.parts[timeline.stack] & Part.CACHE_RELEASE) != 0
    rows = np.flatnonzero(released & ~asked)
    rows = rows[rows + 1 < len(timeline)]
    following = timeline.action[rows + 1]
    is_shortage = np.isin(rows + 1, timeline.shortages)
    return int(np.count_nonzero((following == SEGMENT_ALLOC) | is_shortage))


def largest_free(timeline: Timeline, moment: int) -> tuple[int, int]:
    """Return the largest free block and all free bytes within the segments, after the event
    `moment`. Blocks are rounded up as the allocator does."""
    segments = _segments_at(timeline, moment)
    blocks = timeline.blocks
    live = blocks.live_at(moment)
    live = live[np.argsort(blocks.address[live])]
    addresses = blocks.address[live]
    sizes = -(-blocks.size[live] // ROUNDING_BYTES) * ROUNDING_BYTES
    largest = total = 0
    for start, length in segments.items():
        first, last = np.searchsorted(addresses, (start, start + length))
        begins = np.append(addresses[first:last], start + length)
        ends = np.append(start, addresses[first:last] + sizes[first:last])
        gaps = np.maximum(begins - ends, 0)
        largest, total = max(largest, int(gaps.max())), total + int(gaps.sum())
    return largest, total


def _segments_at(timeline: Timeline, moment: int) -> dict[int, int]:
    """Return the size of each segment by its address, after the event `moment`, by undoing the
    later events from the end backwards."""
    last = timeline.snapshot.segments(timeline.device)
    segments = dict(zip(last["address"].tolist(), last["size"].tolist(), strict=True))
    changes = (SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP)
    rows = np.flatnonzero(np.isin(timeline.action, changes))
    rows = rows[rows > moment][-MAX_REPLAYED_SEGMENTS:]
    for row in rows[::-1].tolist():
        address = int(timeline.event_address[row])
        if timeline.action[row] in (SEGMENT_ALLOC, SEGMENT_MAP):
            segments.pop(address, None)
        else:
            segments[address] = int(timeline.event_size[row])
    return segments
