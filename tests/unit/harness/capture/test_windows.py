"""The windows, step by step, on a clock that is told the time."""

import pytest

from ridgeline.harness.capture.progress import MAX_SETTLE_STEPS, Windows
from ridgeline.records.run import Settings

MS = 1_000_000


def run(
    windows: Windows, steps: int, *, ms: int = 50, compiles: tuple[int, ...] = (), first: int = 0
) -> list[tuple[str, str]]:
    """The label of each step and the order given at its end."""
    seen = []
    for index in range(first, first + steps):
        label = windows.label
        order = windows.step_done(index, (index + 1) * ms * MS, ms * MS, index in compiles)
        seen.append((label, order))
    return seen


def labels(seen: list[tuple[str, str]]) -> str:
    short = {"settle": "s", "light": "l", "traced": "t", "disturbed": "d"}
    return "".join(short[label] for label, _ in seen)


def test_a_program_of_twenty_steps_is_traced_and_timed() -> None:
    seen = run(Windows(Settings(), 0), 20)
    assert labels(seen) == "sss" + "l" * 10 + "ttt" + "d" + "lll"


def test_after_the_windows_the_program_runs_alone() -> None:
    seen = run(Windows(Settings(), 0), 80)
    orders = [order for _, order in seen if order]
    assert orders == ["light", "trace", "untrace", "alone"]
    assert [i for i, (_, order) in enumerate(seen) if order == "alone"] == [3 + 10 + 3 + 1 + 29]


def test_short_steps_are_timed_for_two_seconds() -> None:
    seen = run(Windows(Settings(trace_steps=0), 0), 600, ms=5)
    alone = [i for i, (_, order) in enumerate(seen) if order == "alone"]
    assert alone == [3 + 400 - 1]


def test_slow_steps_do_not_wait_for_forty() -> None:
    seen = run(Windows(Settings(), 0), 40, ms=4000)
    assert seen[5][1] == "trace"
    assert "alone" in [order for _, order in seen]


def test_settling_lasts_until_nothing_compiles() -> None:
    seen = run(Windows(Settings(), 0), 12, compiles=(0, 1, 3))
    assert labels(seen) == "ssssss" + "l" * 6


def test_a_program_that_compiles_for_ever_is_timed_all_the_same() -> None:
    seen = run(Windows(Settings(), 0), MAX_SETTLE_STEPS + 2, compiles=tuple(range(100)))
    assert labels(seen) == "s" * MAX_SETTLE_STEPS + "ll"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_program_of_two_steps_never_leaves_the_first_window(steps: int) -> None:
    assert labels(run(Windows(Settings(), 0), steps)) == "s" * steps


def test_with_full_every_step_is_timed() -> None:
    seen = run(Windows(Settings(full=True), 0), 500)
    assert "alone" not in [order for _, order in seen]


def test_without_a_trace_there_is_a_single_light_window() -> None:
    seen = run(Windows(Settings(trace_steps=0, steps=60), 0), 70)
    assert labels(seen[:63]) == "sss" + "l" * 60
    assert seen[62][1] == "alone"


def test_a_trace_that_fails_leaves_a_disturbed_step() -> None:
    windows = Windows(Settings(), 0)
    seen = run(windows, 13)
    assert seen[-1][1] == "trace"
    windows.no_trace()
    later = run(windows, 3, first=13)
    assert labels(later) == "dll"
    assert "trace" not in [order for _, order in later]


def test_windows_are_returned_with_their_steps() -> None:
    windows = Windows(Settings(), 0)
    run(windows, 20)
    told = windows.all(20 * 50 * MS)
    assert [(w.kind, w.first_step, w.steps) for w in told] == [
        ("settle", 0, 3),
        ("light", 3, 10),
        ("traced", 13, 3),
        ("light", 16, 4),
    ]


def test_a_restart_resets_the_windows() -> None:
    windows = Windows(Settings(), 0)
    run(windows, 20)
    windows.again(0, 0)
    assert labels(run(windows, 20)) == "sss" + "l" * 10 + "ttt" + "d" + "lll"
