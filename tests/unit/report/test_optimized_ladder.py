"""The ladder put in order: what is one line, what stands apart, what each verdict is."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio, because
from ridgeline.records.optimized import SearchCode
from ridgeline.report.optimized_ladder import (
    apart,
    confirmed,
    left_out,
    lines,
    path,
    tried,
    untried,
    verdict,
)
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


def test_changes_tried_as_one_are_one_line() -> None:
    found = lines(climbed())
    assert ("compile", "compile-reduce-overhead") in [line.fixes for line in found]
    assert sum("compile" in line.fixes for line in found) == 1


def test_a_partner_with_an_outcome_of_its_own_keeps_its_line() -> None:
    first = rung("a", "A", "rejected", "slower", together=("b",), ratio=ratio(0.9))
    second = rung("b", "B", "kept", "1.20 ×", ratio=ratio(1.2))
    found = lines(replace(climbed(), rungs=(first, second)))
    assert [line.fixes for line in found] == [("a", "b"), ("b",)]


def test_one_change_with_several_settings_has_a_line_a_setting() -> None:
    two = [rung("w", "W", "not tried", "no time", options={"n": n}) for n in "24"]
    assert len(lines(replace(climbed(), rungs=tuple(two)))) == 2


def test_what_is_not_the_same_training_is_never_on_the_way() -> None:
    found = with_batch()
    assert [line.fixes for line in apart(found)] == [("larger-batch",)]
    assert "larger-batch" not in [c for line in (*tried(found), *path(found)) for c in line.fixes]


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
    assert verdict(rung("a", "A", known.pop("status"), known.pop("why"), **known)) == expected


def test_reasons_are_said_once_the_most_common_first() -> None:
    groups = untried(climbed())
    assert (groups[0].why, len(groups[0].rungs)) == ("no convolution was seen", 3)
    allowed = [
        rung(n, n, "not tried", because(SearchCode.NEEDS_ALLOW, fix=n)) for n in ("int8", "fp8")
    ]
    both = untried(replace(climbed(), rungs=tuple(allowed)))
    assert [(group.why, len(group.rungs)) for group in both] == [
        ("it alters what is computed: --allow", 2)
    ]
    little = next(group for group in groups if group.why == "too little to gain")
    assert {r.fix for r in little.rungs} == {"set-to-none", "prefetch"}


def test_left_out_is_sorted_and_has_only_what_was_measured_so() -> None:
    first = step("a", "A", 2.0, 100.0, without=ratio(1.4))
    second = step("b", "B", 1.5, 50.0, beside=("a",), without=ratio(1.8))
    last = step("c", "C", 1.2, 50.0, beside=("a", "b"))  # by its own trial alone
    found = replace(climbed(), rungs=(first, second, last))
    assert [(r.fix, known.value) for r, known in left_out(found)] == [("b", 1.8), ("a", 1.4)]
    assert left_out(replace(found, rungs=(last,))) == ()


def test_confirmed_needs_speed_and_equal_results() -> None:
    found = climbed()
    assert confirmed(found)
    assert not confirmed(replace(found, total=None))
    slow = replace(total(), ratio=ends(1.02, 0.98, 1.06))
    assert not confirmed(replace(found, total=slow))
    other = replace(total(), parity=parity("differs"))
    assert not confirmed(replace(found, total=other))
    assert confirmed(replace(found, total=replace(total(), parity=EXACT)))
