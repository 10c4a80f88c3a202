"""Growth, fragmentation, shortages, advice, and what two snapshots differ in."""

from pathlib import Path

import pytest

from ridgeline.memory.differences import differences
from ridgeline.memory.perfetto import counter_tracks
from ridgeline.memory.study import study_snapshot
from ridgeline.records.memory import AdviceCode, DeviceMemory, MemoryStudy
from tests.unit.memory.simulated_allocator import (
    Gpt,
    OutOfMemory,
    SimulatedAllocator,
    snapshot,
    trained,
    write,
)

SCRIPT = "/home/user/train.py"
MIB = 1 << 20


def studied(path: Path, *memories: SimulatedAllocator) -> MemoryStudy:
    return study_snapshot(write(path / "x.pickle", snapshot(*memories)))


def device_of(path: Path, memory: SimulatedAllocator) -> DeviceMemory:
    return studied(path, memory).devices[0]


def leaking(path: Path, every: int, steps: int, size: int = MIB) -> DeviceMemory:
    made = trained(1, layers=1)
    for number in range(1, steps):
        made.step(number)
        if number % every == 0:
            with made.memory.at((SCRIPT, 77, "log")):
                made.memory.allocate(size, "unknown")
    return device_of(path, made.memory)


def test_a_line_that_leaks_is_found_with_its_rate(tmp_path: Path) -> None:
    growth = leaking(tmp_path, every=1, steps=12).growth
    assert [(g.place.line, g.bytes_per_step, g.blocks_per_step) for g in growth if g.place] == [
        (77, MIB, 1.0)
    ]


def test_a_leak_of_every_third_step_is_found(tmp_path: Path) -> None:
    (growth,) = leaking(tmp_path, every=3, steps=30).growth
    assert growth.bytes_per_step == pytest.approx(MIB / 3, rel=0.15)


@pytest.mark.parametrize("options", [{}, {"keeps_gradients": True}, {"has_loop": False}])
def test_a_steady_training_does_not_grow(options: dict[str, bool], tmp_path: Path) -> None:
    assert device_of(tmp_path, trained(10, layers=2, **options).memory).growth == ()


def test_a_kept_loss_is_a_small_growth_and_no_advice(tmp_path: Path) -> None:
    device = device_of(tmp_path, trained(10, layers=2, leaks=True).memory)
    assert [growth.blocks_per_step for growth in device.growth] == [1.0]
    assert AdviceCode.STOP_GROWTH not in {way.reason.code for way in device.advice}


def test_a_large_growth_is_advised_against_with_its_line(tmp_path: Path) -> None:
    device = leaking(tmp_path, every=1, steps=12, size=4 * MIB)
    (way,) = [w for w in device.advice if w.reason.code == AdviceCode.STOP_GROWTH]
    assert (way.reason.facts["file"], way.reason.facts["line"]) == (SCRIPT, 77)


def fragment(memory: SimulatedAllocator) -> None:
    """Cut a segment in two and release the first half."""
    with memory.at((SCRIPT, 5, "<module>")):
        memory.free(memory.allocate(64 * MIB, "unknown"))
        first = memory.allocate(20 * MIB, "unknown")
        memory.allocate(20 * MIB, "unknown")
        memory.free(first)


def test_fragments_are_counted_from_the_segments(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    fragment(memory)
    found = device_of(tmp_path, memory).fragmentation
    assert found is not None
    assert (found.reserved_bytes, found.allocated_bytes) == (64 * MIB, 20 * MIB)
    assert (found.stuck_bytes, found.largest_free_bytes) == (44 * MIB, 24 * MIB)
    assert found.expandable_saves_bytes == 44 * MIB
    assert found.segments == 1


def test_expandable_segments_are_not_advised_where_they_are_on(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    fragment(memory)
    memory.allocate(50 * MIB, "unknown")  # which does not fit between the blocks
    data = snapshot(memory)
    for is_on in (False, True):
        data["allocator_settings"]["expandable_segments"] = is_on
        device = study_snapshot(write(tmp_path / "x.pickle", data)).devices[0]
        assert device.fragmentation is not None
        assert device.fragmentation.expandable is is_on
        codes = {way.reason.code for way in device.advice}
        assert (AdviceCode.EXPANDABLE_SEGMENTS in codes) is not is_on


def test_free_memory_that_the_peak_had_used_would_not_have_been_saved(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    fragment(memory)
    device = device_of(tmp_path, memory)
    assert device.fragmentation is not None
    assert device.fragmentation.expandable_saves_bytes == 44 * MIB
    assert AdviceCode.EXPANDABLE_SEGMENTS not in {way.reason.code for way in device.advice}


def test_a_retry_is_told_from_a_call_of_empty_cache(tmp_path: Path) -> None:
    counts = []
    for asked in (False, True):
        memory = SimulatedAllocator(total_bytes=100 * MIB)
        memory.free(memory.allocate(60 * MIB, "unknown"))
        if asked:
            memory.empty_cache((("/v/site-packages/torch/cuda/memory.py", 9, "empty_cache"),))
        memory.allocate(80 * MIB, "unknown")
        found = device_of(tmp_path, memory).fragmentation
        assert found is not None
        counts.append(found.retries)
    assert counts == [1, 0]


def test_a_shortage_has_its_size_line_step_and_phase(tmp_path: Path) -> None:
    memory = SimulatedAllocator(total_bytes=400 * MIB)
    made = Gpt(memory, layers=3)
    made.build()
    made.train(3)
    made.tokens *= 4
    with pytest.raises(OutOfMemory):
        made.step(3)
    memory.stack.clear()
    device = device_of(tmp_path, memory)
    (shortage,) = device.shortages
    oom = memory.events[-1]
    assert (shortage.requested_bytes, shortage.free_bytes) == (oom["size"], oom["device_free"])
    assert (shortage.step, shortage.phase) == (3, "forward")
    assert shortage.place is not None
    assert shortage.place.file == made.file
    assert AdviceCode.SMALLER_BATCH in {way.reason.code for way in device.advice}


def test_a_shortage_by_fragments_is_called_so(tmp_path: Path) -> None:
    memory = SimulatedAllocator(total_bytes=120 * MIB)
    keep = []
    with memory.at((SCRIPT, 5, "<module>")):
        whole = memory.allocate(120 * MIB, "unknown")
        memory.free(whole)
        blocks = [memory.allocate(20 * MIB, "unknown") for _ in range(6)]
        for block in blocks[::2]:
            memory.free(block)
        keep.append(blocks)
        with pytest.raises(OutOfMemory):
            memory.allocate(40 * MIB, "unknown")
    device = device_of(tmp_path, memory)
    assert device.shortages[0].fragmented
    assert device.shortages[0].largest_free_bytes == 20 * MIB
    assert AdviceCode.EXPANDABLE_SEGMENTS in {way.reason.code for way in device.advice}


def test_what_the_caller_knows_of_the_device_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pickle", snapshot(trained(2, layers=1).memory))
    device = study_snapshot(path, total_bytes=80 << 30, outside_bytes=70 << 30).devices[0]
    assert device.outside_torch_bytes == 70 << 30
    assert device.advice[0].reason.code == AdviceCode.OTHER_PROCESSES


def test_advice_for_a_gpt_names_logits_layers_and_states(tmp_path: Path) -> None:
    device = device_of(tmp_path, trained(5, layers=4).memory)
    ways = {way.reason.code: way for way in device.advice}
    assert ways[AdviceCode.CHECKPOINT].reason.facts["repeats"] == 4
    assert AdviceCode.CHUNKED_LOSS in ways
    assert AdviceCode.FREE_GRADIENTS not in ways
    assert all(0 < way.saves_bytes < device.peak.bytes for way in device.advice)


def test_gradients_kept_through_the_forward_are_advised_against(tmp_path: Path) -> None:
    made = trained(5, layers=4, keeps_gradients=True)
    ways = {way.reason.code: way for way in device_of(tmp_path, made.memory).advice}
    saved = ways[AdviceCode.FREE_GRADIENTS].saves_bytes
    assert saved == sum(parameter.requested for parameter in made.parameters)


def test_two_studies_are_compared_line_by_line_though_lines_have_moved(tmp_path: Path) -> None:
    before = studied(tmp_path, trained(3, layers=2).memory)
    moved = trained(3, layers=2, tokens=4096, file="/elsewhere/model.py")
    for frame in moved.memory._frames.values():
        if frame["filename"].endswith("model.py") and frame["line"] > 100:
            frame["line"] += 7
    found = differences(before, studied(tmp_path, moved.memory))
    peak = found.changes[0]
    assert (peak.name, peak.after_bytes) == ("peak", moved.memory.peak)
    lines = [c for c in found.changes if c.of == "line"]
    assert sum(c.change_bytes for c in lines) == peak.change_bytes
    both = [c for c in lines if c.before_bytes and c.after_bytes]
    assert {c.place.line for c in both if c.place} >= {75, 60, 127, 138}


def test_equal_studies_do_not_differ(tmp_path: Path) -> None:
    study = studied(tmp_path, trained(3, layers=2).memory)
    assert {change.change_bytes for change in differences(study, study).changes} == {0}


def test_counter_tracks_have_the_levels_and_the_marks(tmp_path: Path) -> None:
    study = studied(tmp_path, trained(3, layers=2).memory)
    events = counter_tracks(study)["traceEvents"]
    totals = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "allocated"]
    assert max(totals) == study.devices[0].peak.bytes
    assert {e["name"] for e in events if e["ph"] == "i"} >= {"peak", "step 0", "step 2"}
