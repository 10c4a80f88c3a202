"""When a costly start has been won back, and when it never is."""

import pytest

from ridgeline.comparison.contenders import Warmed
from ridgeline.comparison.verdicts import payback


def warmed(steady_ms: float, excess_ms: float) -> Warmed:
    return Warmed(
        block_calls=1, block_ns=1e7, steady=True, steady_ns=1e6 * steady_ms,
        excess_ns=1e6 * excess_ms, calls=10, events_share=1.0, clock="wall",
    )  # fmt: skip


def test_compiling_pays_after_the_calls_that_win_its_time_back() -> None:
    assert payback(warmed(10, 0), warmed(8, 30_000), "FASTER", "call") == (
        15_000,
        "after 15,000 calls",
    )


def test_what_the_baseline_itself_needed_to_start_is_not_counted() -> None:
    calls, _ = payback(warmed(10, 10_000), warmed(8, 30_000), "FASTER", "step")
    assert calls == 10_000


def test_a_start_no_dearer_pays_at_once() -> None:
    assert payback(warmed(10, 5), warmed(8, 8), "FASTER", "call") == (0, "at once")


@pytest.mark.parametrize("verdict", ["SLOWER", "SAME", "INVALID"])
def test_compiling_that_gains_nothing_never_pays(verdict: str) -> None:
    assert payback(warmed(10, 0), warmed(9, 9000), verdict, "call") == (None, "never")  # type: ignore[arg-type]


def test_an_undecided_gain_promises_nothing() -> None:
    assert payback(warmed(10, 0), warmed(9, 9000), "UNDECIDED", "call") == (None, "not known")


def test_without_a_costly_start_there_is_nothing_to_say_of_a_slower_one() -> None:
    assert payback(warmed(10, 0), warmed(12, 3), "SLOWER", "call") == (None, "")


def test_what_was_not_warmed_up_is_not_judged() -> None:
    assert payback(None, warmed(1, 1), "FASTER", "call") == (None, "")
