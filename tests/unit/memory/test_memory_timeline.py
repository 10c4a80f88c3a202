"""The replay of a recording agrees with the allocator that made it."""

import random
from pathlib import Path
from typing import Any

import pytest

from ridgeline.memory.snapshot import read_snapshot
from ridgeline.memory.study import study_snapshot
from ridgeline.memory.timeline import Timeline
from ridgeline.records.memory import MemoryNote
from tests.unit.memory.simulated_allocator import (
    Block,
    SimulatedAllocator,
    snapshot,
    trained,
    write,
)


def replayed(path: Path, data: object) -> Timeline:
    return Timeline(read_snapshot(write(path / "x.pickle", data)), 0)


def at_random(seed: int, **options: Any) -> SimulatedAllocator:
    chance = random.Random(seed)
    memory = SimulatedAllocator(**options)
    live: list[Block] = []
    for _ in range(400):
        if live and chance.random() < 0.45:
            memory.free(live.pop(chance.randrange(len(live))))
        else:
            live.append(memory.allocate(int(2 ** chance.uniform(4, 26)), "unknown"))
        if chance.random() < 0.01:
            memory.empty_cache()
    return memory


@pytest.mark.parametrize("seed", range(8))
def test_levels_peak_and_end_agree_with_the_allocator(seed: int, tmp_path: Path) -> None:
    memory = at_random(seed)
    timeline = replayed(tmp_path, snapshot(memory))
    assert timeline.bytes_at(timeline.peak) == memory.peak
    assert int(timeline.allocated[-1]) == memory.requested
    assert int(timeline.reserved[-1]) == memory.reserved
    live = timeline.blocks.live_at(timeline.peak)
    assert int(timeline.blocks.size[live].sum()) == memory.peak
    first = memory.events[0]["time_us"]
    assert timeline.time_of(timeline.peak) == (memory.peak_us - first) * 1000


@pytest.mark.parametrize("kept", [1, 50, 333])
def test_a_ring_that_lost_its_oldest_events_ends_with_the_true_levels(
    kept: int, tmp_path: Path
) -> None:
    memory = at_random(1, max_entries=kept)
    timeline = replayed(tmp_path, snapshot(memory))
    assert len(timeline) == kept
    assert int(timeline.allocated[-1]) == memory.requested
    assert int(timeline.reserved[-1]) == memory.reserved


def test_the_peak_may_lie_before_the_first_event(tmp_path: Path) -> None:
    memory = SimulatedAllocator(records=False)
    blocks = [memory.allocate(1 << 20, "unknown") for _ in range(5)]
    memory.records = True
    for block in blocks:
        memory.free(block)
    device = study_snapshot(write(tmp_path / "x.pickle", snapshot(memory))).devices[0]
    assert device.peak.bytes == 5 << 20
    assert device.peak.before_recording_bytes == 5 << 20
    assert device.end_bytes == 0


def test_lost_events_are_told_from_a_late_recording(tmp_path: Path) -> None:
    lost = trained(4, layers=2, max_entries=200)
    late = SimulatedAllocator(records=False)
    late.allocate(1 << 20, "unknown")
    late.records = True
    late.allocate(1 << 20, "unknown")
    late.segments[0].first.frames.clear()  # type: ignore[union-attr]
    for memory, code in ((lost.memory, MemoryNote.EVENTS_LOST), (late, None)):
        device = study_snapshot(write(tmp_path / "x.pickle", snapshot(memory))).devices[0]
        assert (MemoryNote.EVENTS_LOST in {n.code for n in device.notes}) == (code is not None)
        assert device.events_lost == (code is not None)


def test_a_block_awaiting_its_release_is_in_use(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    block = memory.allocate(1 << 20, "unknown")
    memory.record("free_requested", block.address, block.requested, [])
    data = snapshot(memory)
    data["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    timeline = replayed(tmp_path, data)
    assert timeline.allocated.tolist() == [0, 1 << 20, 1 << 20]


def test_without_records_of_completions_a_request_ends_a_block(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    memory.free(memory.allocate(1 << 20, "unknown"))
    data = snapshot(memory)
    data["device_traces"][0].pop()
    assert replayed(tmp_path, data).allocated.tolist() == [0, 1 << 20, 0]


def test_the_single_free_of_older_versions_ends_a_block(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    block = memory.allocate(1 << 20, "unknown")
    memory.record("free", block.address, block.requested, [])
    data = snapshot(memory) | {"segments": []}
    assert int(replayed(tmp_path, data).allocated[-1]) == 0


def test_an_allocation_over_a_block_whose_release_is_lost_ends_that_block(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    block = memory.allocate(1 << 20, "unknown")
    memory.record("alloc", block.address, 1 << 19, [])
    timeline = replayed(tmp_path, snapshot(memory))
    assert int(timeline.allocated[-1]) == 1 << 19


def test_thinned_levels_keep_the_peak_and_their_sum(tmp_path: Path) -> None:
    made = trained(12, layers=6)
    device = study_snapshot(write(tmp_path / "x.pickle", snapshot(made.memory))).devices[0]
    sums = [sum(values) for values in zip(*device.levels.levels.values(), strict=True)]
    assert device.levels.left_out > 0
    assert max(sums) == made.memory.peak
    assert len(sums) == len(device.levels.at_ns) == len(device.levels.reserved)
    assert list(device.levels.at_ns) == sorted(device.levels.at_ns)
