"""The ladder put in order: what is one line, what stands apart, what each verdict is."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio
from ridgeline.records.ladder import Ladder, verdict_of_rung
from tests.unit.report.made_up_optimized import (
    EXACT,
    climbed,
    parity,
    ratio,
    rung,
    step,
    total,
    with_batch,
)


def test_fixes_tried_together_are_one_line() -> None:
    found = Ladder(climbed()).attempts
    assert ("compile", "compile-reduce-overhead") in [line.fixes for line in found]
    assert sum("compile" in line.fixes for line in found) == 1


def test_a_partner_with_an_outcome_of_its_own_keeps_its_line() -> None:
    first = rung("a", "A", "rejected", "slower", together=("b",), ratio=ratio(0.9))
    second = rung("b", "B", "kept", "1.20 ×", ratio=ratio(1.2))
    found = Ladder(replace(climbed(), rungs=(first, second))).attempts
    assert [line.fixes for line in found] == [("a", "b"), ("b",)]


def test_a_fix_with_several_settings_has_a_line_for_each() -> None:
    two = [rung("w", "W", "not tried", "no time", options={"n": n}) for n in "24"]
    assert len(Ladder(replace(climbed(), rungs=tuple(two))).attempts) == 2


def test_fixes_that_train_differently_are_never_on_the_ladder() -> None:
    found = Ladder(with_batch())
    assert [line.fixes for line in found.other_training] == [("larger-batch",)]
    assert "larger-batch" not in [c for line in (*found.tried, *found.path) for c in line.fixes]


def ends(value: float, low: float, high: float) -> Ratio:
    return Ratio(value=value, ci_low=low, ci_high=high, pairs=3)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"status": "kept", "ratio": ends(1.3, 1.2, 1.4)}, "FASTER"),
        ({"status": "dropped", "ratio": ends(1.3, 1.2, 1.4)}, "FASTER"),
        ({"status": "rejected", "ratio": ends(0.9, 0.88, 0.93)}, "SLOWER"),
        ({"status": "rejected", "ratio": ends(0.7, 0.2, 2.0), "why": "worse: 0.70 ×"},
         "UNDECIDED"),
        ({"status": "rejected", "ratio": ends(1.0, 0.99, 1.01)}, "SAME"),
        ({"status": "rejected", "ratio": ends(1.01, 1.005, 1.015)}, "SAME"),
        ({"status": "rejected", "ratio": ends(1.01, 0.95, 1.08)}, "UNDECIDED"),
        ({"status": "rejected", "ratio": ends(1.2, 0.9, 1.6)}, "UNDECIDED"),
        ({"status": "rejected", "ratio": ends(1.4, 1.3, 1.5), "parity": parity("differs")},
         "INVALID"),
        ({"status": "rejected", "ratio": ends(1.4, 1.3, 1.5), "parity": parity("unknown")},
         "INVALID"),
        ({"status": "rejected", "why": "it raised"}, "INVALID"),
        ({"status": "not applied"}, "NOT_APPLIED"),
        ({"status": "not tried"}, "NOT_TRIED"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_what_was_measured(told: dict[str, Any], expected: str) -> None:
    known = {"why": "", **told}
    assert (
        verdict_of_rung(rung("a", "A", known.pop("status"), known.pop("why"), **known)) == expected
    )


def test_leave_one_out_is_sorted_and_has_only_measured_fixes() -> None:
    first = step("a", "A", 2.0, 100.0, without=ratio(1.4))
    second = step("b", "B", 1.5, 50.0, beside=("a",), without=ratio(1.8))
    last = step("c", "C", 1.2, 50.0, beside=("a", "b"))  # by its own trial alone
    found = replace(climbed(), rungs=(first, second, last))
    assert [(r.fix, known.value) for r, known in Ladder(found).left_out] == [("b", 1.8), ("a", 1.4)]
    assert Ladder(replace(found, rungs=(last,))).left_out == ()


def test_confirmed_needs_speed_and_equal_results() -> None:
    found = climbed()
    assert found.is_confirmed
    assert not replace(found, total=None).is_confirmed
    slow = replace(total(), ratio=ends(1.02, 0.98, 1.06))
    assert not replace(found, total=slow).is_confirmed
    other = replace(total(), parity=parity("differs"))
    assert not replace(found, total=other).is_confirmed
    assert replace(found, total=replace(total(), parity=EXACT)).is_confirmed
