"""Which span the figures are over, and the steps in it."""

from pathlib import Path

import pytest
from traces_made import WORKER, Made

from ridgeline.errors import UsageError
from ridgeline.records.facts import Trust
from ridgeline.trace.analyses.busy import devices
from ridgeline.trace.window import steps_of, window_of


def three_steps() -> Made:
    made = Made()
    for i in range(3):
        made.span(f"ProfilerStep#{i + 7}", 1000 * i, 1000)
        made.launch("gemm", 1000 * i + 100, 1000 * i + 600, 500, i + 1)
    return made


def test_the_window_is_the_devices_activity_and_no_step_is_dropped(tmp_path: Path) -> None:
    window = window_of(three_steps().trace(tmp_path))
    assert (window.start_ns, window.end_ns, window.steps) == (600_000, 3_100_000, 3)
    assert "ran 0.100 ms past its mark" in window.note
    assert "began 0.600 ms before" in window.note


def test_chosen_steps_run_from_mark_to_mark(tmp_path: Path) -> None:
    trace = three_steps().trace(tmp_path)
    window = window_of(trace, "8")
    assert (window.start_ns, window.end_ns) == (1_000_000, 2_000_000)
    last = window_of(trace, "8-9")
    assert (last.end_ns, last.steps, last.basis) == (3_100_000, 2, "steps 8-9")


def test_all_steps_begin_at_the_first_mark_and_without_marks_nothing_changes(
    tmp_path: Path,
) -> None:
    window = window_of(three_steps().trace(tmp_path), "all")
    assert (window.start_ns, window.end_ns, window.basis) == (0, 3_100_000, "all steps")
    bare = Made().kernel("a", 5, 10).trace(tmp_path)
    assert window_of(bare, "all") == window_of(bare)


def test_a_step_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    trace = three_steps().trace(tmp_path)
    with pytest.raises(UsageError, match="steps 7 to 9"):
        window_of(trace, "12")
    with pytest.raises(UsageError, match="no step"):
        window_of(trace, "last")


def test_a_mark_on_two_threads_is_one_step(tmp_path: Path) -> None:
    made = three_steps().span("ProfilerStep#7", 10, 20, WORKER)
    steps = steps_of(made.trace(tmp_path))
    assert steps.number.tolist() == [7, 8, 9]
    assert steps.start.tolist() == [0, 1_000_000, 2_000_000]


def test_steps_carry_their_busy_time_and_the_last_says_its_work_ran_on(tmp_path: Path) -> None:
    trace = three_steps().trace(tmp_path)
    found = devices(trace, window_of(trace), steps_of(trace), Trust())[0]
    assert [(s.busy_ns, s.idle_ns, s.whole) for s in found.steps] == [
        (400_000, 600_000, True),
        (500_000, 500_000, True),
        (500_000, 500_000, False),
    ]


def test_busy_time_is_a_union_over_streams(tmp_path: Path) -> None:
    made = Made().kernel("a", 0, 100).kernel("b", 50, 100, stream=9).kernel("c", 200, 10)
    made.kernel("ncclDevKernel_AllReduce", 140, 40, stream=20)
    trace = made.trace(tmp_path)
    found = devices(trace, window_of(trace), steps_of(trace), Trust())[0]
    assert (found.busy_ns, found.idle_ns) == (190_000, 20_000)
    assert (found.communication_ns, found.exposed_communication_ns) == (40_000, 30_000)
    assert {s.stream: s.busy_ns for s in found.streams} == {7: 110_000, 9: 100_000, 20: 40_000}


def test_an_unreliable_trace_gets_no_figure(tmp_path: Path) -> None:
    trace = three_steps().trace(tmp_path)
    trust = Trust(confidence="unreliable", why="the clock jumps")
    found = devices(trace, window_of(trace), steps_of(trace), trust)[0]
    assert (found.busy_ns, found.idle_ns, found.trust.why) == (None, None, "the clock jumps")


def test_a_host_only_trace_is_over_its_host_events(tmp_path: Path) -> None:
    window = window_of(Made().op("aten::mm", 5, 10).op("aten::add", 30, 2).trace(tmp_path))
    assert (window.ns, window.basis) == (27_000, "host activity (no device work)")
    assert window_of(Made().trace(tmp_path)).ns == 0


def trained(before: list[int], *, names: tuple[str, ...] = ("Adam",)) -> Made:
    """Calls of an optimizer, each with as many operators before it as `before` says."""
    made, at = Made(), 0
    for number, operators in enumerate(before):
        for _ in range(operators):
            made.op("aten::mm", at, 8)
            at += 10
        name = names[number % len(names)]
        made.span(f"Optimizer.step#{name}.step", at, 20)
        made.op("aten::add_", at + 5, 10)
        at += 25
    return made


def test_without_marks_each_step_ends_with_the_optimizers_call(tmp_path: Path) -> None:
    trace = trained([10, 10, 10, 10]).trace(tmp_path)
    steps = steps_of(trace)
    assert not steps.marked
    assert steps.start.tolist() == [0, 120_000, 245_000, 370_000]
    assert steps.end.tolist() == [120_000, 245_000, 370_000, 495_000]
    window = window_of(trace)
    assert window.steps == 4
    assert window.note


@pytest.mark.parametrize(
    ("before", "names", "steps"),
    [
        ([10, 20] * 6, ("Adam",), 6),
        ([10, 10] * 6, ("Adam", "SGD"), 6),
        ([10, 10, 10, 30] * 5, ("Adam",), 5),
        ([30, 30, 30, 30, 33] * 4, ("Adam",), 20),
        ([30, 30, 30, 30, 30, 30, 30, 300] * 2, ("Adam",), 16),
        ([30], ("Adam",), 0),
    ],
    ids=["a GAN", "a GAN with two optimizers", "a critic of three steps", "a logged loss",
         "an evaluation now and then", "one call"],
)  # fmt: skip
def test_calls_of_the_optimizer_that_repeat_together_are_one_step(
    tmp_path: Path, before: list[int], names: tuple[str, ...], steps: int
) -> None:
    assert len(steps_of(trained(before, names=names).trace(tmp_path))) == steps


def test_an_optimizer_that_another_one_calls_ends_no_step(tmp_path: Path) -> None:
    made = trained([10, 10, 10])
    for end in (100, 225, 350):
        made.span("Optimizer.step#SGD.step", end + 2, 5)
    assert len(steps_of(made.trace(tmp_path))) == 3


def test_marks_count_more_than_the_optimizers_calls(tmp_path: Path) -> None:
    made = trained([10, 10, 10, 10]).span("ProfilerStep#0", 0, 245).span("ProfilerStep#1", 245, 250)
    steps = steps_of(made.trace(tmp_path))
    assert (steps.marked, len(steps)) == (True, 2)
