"""The timeline: lanes, what their events are, and what is left out where there is too much."""

from pathlib import Path

import pytest

from ridgeline.records.timeline import Timeline, TimelineLane, Work
from ridgeline.report.document import Document, Span
from ridgeline.report.renderers import html
from ridgeline.report.views.timeline import drawing
from ridgeline.trace.timeline import MAX_DEPTH, timeline
from tests.unit.report.made_up_trace import NASTY
from tests.unit.trace.traces_made import AUTOGRAD, HOST, Made, steady

MAX_PAYLOAD_BYTES = 1_500_000


def lanes(shown: Timeline, kind: str) -> list[TimelineLane]:
    return [lane for lane in shown.lanes if lane.kind == kind]


def works(shown: Timeline, lane: TimelineLane) -> list[Work]:
    return [shown.works[i] for i in lane.work]


def shown(made: Made, folder: Path, **options: int) -> Timeline:
    found = timeline([made.trace(folder)], **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def training() -> Made:
    """Two steps: a wait for input, a forward in a function, a backward on its own thread."""
    made = Made()
    for step in (0, 1):
        at = 5_000 * step + 100
        made.span(f"ProfilerStep#{step + 7}", at, 4_900)
        made.frame("train.py(3): main", at, 4_900)
        made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, 3_000)
        made.frame("data.py(20): __getitem__", at + 20, 2_900)
        made.frame("torch/utils/data/dataset.py(9): get", at + 30, 100)
        made.frame("torch/deeper.py(1): inner", at + 40, 10)
        made.op("aten::mm", at + 3_100, 50, **{"Input Dims": [[32, 8], [8, 4]]})
        made.launch("ampere_sgemm_32x32", at + 3_110, at + 3_200, 500, 10 * step + 1)
        made.op("MmBackward0", at + 4_000, 80, AUTOGRAD, **{"Fwd thread id": 1})
        made.launch("void at::native::vectorized_elementwise_kernel<4>(int)", at + 4_010,
                    at + 4_100, 700, 10 * step + 2, AUTOGRAD)  # fmt: skip
    return made


def test_the_lanes_of_a_training(tmp_path: Path) -> None:
    found = shown(training(), tmp_path)
    assert [lane.kind for lane in found.lanes] == [
        "steps", "phases", "idle", "device", "host", "host",
    ]  # fmt: skip
    assert [lane.role for lane in lanes(found, "host")] == ["main", "backward"]
    assert [work.name for work in works(found, found.lanes[0])] == ["7", "8"]
    assert {work.kind for work in works(found, found.lanes[1])} >= {"input", "backward"}
    (device,) = lanes(found, "device")
    assert device.length_ns == (500_000, 700_000, 500_000, 700_000)
    kernel = works(found, device)[0]
    assert (kernel.kind, kernel.operator, kernel.shape) == ("matmul", "aten::mm", "[32,8] [8,4]")
    assert kernel.place is not None
    assert (kernel.place.file, kernel.place.line) == ("train.py", 3)
    assert found.left_out == 0
    assert found.longest_left_out_ns == 0


def test_an_idle_gap_tells_its_cause_and_its_neighbours(tmp_path: Path) -> None:
    found = shown(training(), tmp_path)
    (idle,) = lanes(found, "idle")
    longest = max(zip(idle.length_ns, works(found, idle), strict=True), key=lambda pair: pair[0])[1]
    assert longest.kind == "input"
    assert longest.before.startswith("void at::native")
    assert longest.after == "ampere_sgemm_32x32"
    assert longest.place is not None
    assert longest.place.file == "data.py"
    assert found.main_cause == "input"
    assert found.idle_share == pytest.approx(1 - 2_400 / 6_600, rel=0.01)


def test_a_kernel_knows_when_it_was_asked_for(tmp_path: Path) -> None:
    found = shown(training().kernel("unlinked", 9_950, 10, 99), tmp_path)
    (device,) = lanes(found, "device")
    assert device.launched_ns == (90_000, 90_000, 90_000, 90_000, -1)
    assert all(not lane.launched_ns for lane in found.lanes if lane.kind != "device")


def test_own_functions_and_what_they_call_are_shown_but_not_what_libraries_call(
    tmp_path: Path,
) -> None:
    found = shown(training(), tmp_path)
    names = {work.name for work in works(found, lanes(found, "host")[0])}
    assert {"main()", "__getitem__()", "get() torch/utils/data/dataset.py"} <= names
    assert not any("inner" in name for name in names)
    assert found.library_functions


def test_a_place_is_named_as_the_report_names_the_file(tmp_path: Path) -> None:
    found = timeline([training().trace(tmp_path)], shown=lambda file: f"src/{file}")
    assert found is not None
    files = {work.place.file for work in found.works if work.place is not None}
    assert files == {"src/train.py", "src/data.py"}


def test_a_run_numbers_its_steps_itself(tmp_path: Path) -> None:
    trace = training().trace(tmp_path)
    numbered = timeline([trace], step_numbers=(41, 42))
    other = timeline([trace], step_numbers=(41, 42, 43))
    assert numbered is not None
    assert other is not None
    assert [work.name for work in works(numbered, numbered.lanes[0])] == ["41", "42"]
    assert [work.name for work in works(other, other.lanes[0])] == ["7", "8"]


def test_events_lie_below_those_that_enclose_them(tmp_path: Path) -> None:
    made = Made().op("outer", 0, 100).op("inner", 10, 50).op("leaf", 20, 10).op("next", 100, 20)
    (host,) = lanes(shown(made, tmp_path), "host")
    assert host.depth == (0, 1, 2, 0)


def crowded(threads: dict[int, int]) -> Made:
    """Threads with so many operators, the i-th of them i + 1 µs long."""
    made = Made()
    for thread, count in threads.items():
        at = 0
        for i in range(count):
            made.op(f"op{i % 7}", at, i + 1, thread)
            at += i + 2
    return made


def test_a_full_timeline_has_no_more_events_than_it_may(tmp_path: Path) -> None:
    found = shown(crowded({HOST: 900, AUTOGRAD: 300}), tmp_path, max_events=500)
    assert found.events <= 500
    # operators, and the phases that they make up
    assert found.left_out + found.events >= 1200
    assert found.left_out == sum(lane.left_out for lane in found.lanes)


def test_every_lane_gets_its_part_of_the_room(tmp_path: Path) -> None:
    found = shown(crowded({HOST: 2_000, AUTOGRAD: 40, 103: 300}), tmp_path, max_events=600)
    by_thread = {lane.thread: lane for lane in lanes(found, "host")}
    assert by_thread[str(AUTOGRAD)].left_out == 0
    large, middle = by_thread[str(HOST)], by_thread["103"]
    assert len(middle.work) >= 150
    assert len(large.work) >= len(middle.work)


def test_the_shortest_events_are_left_out_first(tmp_path: Path) -> None:
    found = shown(crowded({HOST: 1_000}), tmp_path, max_events=400)
    (host,) = lanes(found, "host")
    kept = set(host.length_ns)
    assert found.whole_until_ns > found.whole_from_ns
    longest = [ns for ns in range(1_000, 1_000_001, 1_000) if ns > found.longest_left_out_ns]
    assert longest
    assert kept >= set(longest)


def test_the_middle_of_a_long_trace_is_kept_with_its_short_events(tmp_path: Path) -> None:
    made = Made()
    for step in range(40):
        made.span(f"ProfilerStep#{step}", 1_000 * step, 1_000)
        for i in range(50):
            made.op("aten::add", 1_000 * step + 20 * i, 2 if i else 18)
    found = shown(made, tmp_path, max_events=600)
    (host,) = lanes(found, "host")
    inside = [
        start for start, length in zip(host.start_ns, host.length_ns, strict=True)
        if found.whole_from_ns <= start < found.whole_until_ns and length == 2_000
    ]  # fmt: skip
    steps = (found.whole_until_ns - found.whole_from_ns) // 1_000_000
    assert steps >= 2
    assert len(inside) == 49 * steps
    assert 5_000_000 < found.whole_from_ns < found.whole_until_ns < 35_000_000


def test_an_event_is_kept_with_those_that_enclose_it(tmp_path: Path) -> None:
    made = Made()
    for i in range(600):
        made.op("outer", 100 * i, 90).op("middle", 100 * i, 90).op("inner", 100 * i + 5, 10)
    (host,) = lanes(shown(made, tmp_path, max_events=800), "host")
    open_until: dict[int, int] = {}
    for start, length, depth in zip(host.start_ns, host.length_ns, host.depth, strict=True):
        if depth:
            assert open_until[depth - 1] >= start + length
        open_until[depth] = start + length


@pytest.mark.parametrize("letters", ["long", "\u202e", "<", "\u4e2d", "\x1b\\"])
def test_texts_are_bounded_like_events(tmp_path: Path, letters: str) -> None:
    made = Made()
    for i in range(9_000):
        made.op(f"{i} " + letters * 300, 10 * i, 9, **{"Input Dims": [[i, 3]] * 40})
        made.frame(f"{letters * 40}{i}.py({i}): {letters * 30}", 10 * i, 10)
    found = shown(made, tmp_path)
    text = html.render(Document(answer=(Span(""),), blocks=(drawing(found),)))
    assert len(text.encode()) < MAX_PAYLOAD_BYTES + len(html.asset("page.js")) + 50_000
    assert found.left_out > 0


def test_deep_recursion_is_cut(tmp_path: Path) -> None:
    made = Made()
    for depth in range(300):
        made.frame(f"own.py({depth}): f", depth, 1_000 - 2 * depth)
    (host,) = lanes(shown(made, tmp_path), "host")
    assert max(host.depth) < MAX_DEPTH


@pytest.mark.parametrize("nasty", NASTY)
def test_hostile_names_stay_what_they_are(tmp_path: Path, nasty: str) -> None:
    made = Made().op(nasty, 0, 100).launch(nasty, 10, 30, 20, 1)
    found = shown(made, tmp_path)
    assert any(work.name[:4] == nasty[:4] for work in found.works)


def test_a_trace_without_work_has_no_timeline(tmp_path: Path) -> None:
    assert timeline([Made().trace(tmp_path)]) is None


def test_ranks_have_lanes_of_their_own(tmp_path: Path) -> None:
    traces = [
        Made(distributedInfo={"rank": rank, "world_size": 2})
        .launch("kernel", 10 * rank, 10 * rank + 20, 100, 1)
        .trace(tmp_path, f"rank{rank}.json")
        for rank in (0, 1)
    ]
    found = timeline(traces)
    assert found is not None
    assert not found.clocks_differ
    assert [lane.rank for lane in lanes(found, "device")] == ["rank 0", "rank 1"]
    first, second = (lane.start_ns[0] for lane in lanes(found, "device"))
    assert second - first == 10_000


def test_ranks_whose_clocks_have_nothing_in_common_begin_together(tmp_path: Path) -> None:
    traces = [
        Made().launch("kernel", at, at + 20, 100, 1).trace(tmp_path, f"{at}.json")
        for at in (0, 10_000_000_000)
    ]
    found = timeline(traces)
    assert found is not None
    assert found.clocks_differ
    first, second = (lane.start_ns[0] for lane in lanes(found, "device"))
    assert first == second


def test_a_steady_trace_says_how_much_of_it_is_idle(tmp_path: Path) -> None:
    found = shown(steady(), tmp_path)
    busy = sum(sum(lane.length_ns) for lane in lanes(found, "device"))
    idle = sum(sum(lane.length_ns) for lane in lanes(found, "idle"))
    assert found.idle_share == pytest.approx(idle / (busy + idle), rel=1e-6)


def test_without_a_device_the_timeline_ends_with_the_last_step(tmp_path: Path) -> None:
    """A profiler that is stopped inside an optimizer's step records it until it has stopped."""
    made = Made()
    made.span("ProfilerStep#0", 100, 900).op("aten::mm", 200, 500)
    made.span("Optimizer.step#AdamW.step", 900, 5_000)
    found = shown(made, tmp_path)
    assert found.length_ns == 900_000
    (phases,) = lanes(found, "phases")
    assert max(map(sum, zip(phases.start_ns, phases.length_ns, strict=True))) == 900_000
    assert found.main_phase == "forward"


def test_exchanges_between_ranks_have_a_kind_of_their_own(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 100, 50).span("gloo:all_reduce", 200, 300)
    found = shown(made.op("c10d::allreduce_", 600, 10), tmp_path)
    kinds = {work.name: work.kind for lane in lanes(found, "host") for work in works(found, lane)}
    assert kinds["gloo:all_reduce"] == kinds["c10d::allreduce_"] == "communication"
    assert kinds["aten::mm"] != "communication"
