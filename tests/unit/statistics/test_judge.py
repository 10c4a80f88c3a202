"""The verdict and its reason, case by case."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.comparison import Control, Estimate, VerdictCode
from ridgeline.records.facts import Reason
from ridgeline.report.reasons import explain
from ridgeline.statistics.analysis import differs, judge


def estimated(low: float, ratio: float, high: float, rounds: int = 60) -> Estimate:
    return Estimate(
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        level=0.95,
        p_value=0.5,
        rounds=rounds,
        method="by hand",
        autocorrelation=0.0,
        within_low=low,
        within_high=high,
    )


def control(**changed: Any) -> Control:
    fields: dict[str, Any] = {"estimate": estimated(0.99, 1.001, 1.01), "floor": 0.001}
    return Control(**(fields | {"differs": False} | changed))


def verdict(low: float, ratio: float, high: float, **changed: Any) -> tuple[str, Reason]:
    return judge(estimated(low, ratio, high), control(**changed), threshold=0.02)


def test_an_interval_that_excludes_one_beyond_the_threshold_is_a_difference() -> None:
    found, why = verdict(1.27, 1.31, 1.35)
    assert found == "FASTER"
    assert explain(why) == "1.31 × as fast (1.27 to 1.35), more than the 2 % that matters"
    assert verdict(0.90, 0.93, 0.96)[0] == "SLOWER"


def test_the_threshold_lies_as_far_below_one_as_above() -> None:
    assert verdict(1.001, 1.0201, 1.04)[0] == "FASTER"
    assert verdict(0.962, 1 / 1.0201, 0.999)[0] == "SLOWER"
    assert verdict(0.962, 1 / 1.0199, 0.999)[0] == "UNDECIDED"


def test_the_whole_interval_within_the_threshold_is_the_same() -> None:
    found, why = verdict(0.985, 1.001, 1.017)
    assert found == "SAME"
    assert "below the 2 % that matters: 0.985 to 1.017 ×" in explain(why)
    assert verdict(1.004, 1.010, 1.016)[0] == "SAME"


@pytest.mark.parametrize(("low", "high"), [(0.979, 1.01), (0.99, 1.021)])
def test_an_interval_that_reaches_past_the_threshold_is_not_the_same(
    low: float, high: float
) -> None:
    assert verdict(low, math.sqrt(low * high), high)[0] == "UNDECIDED"


def test_a_large_floor_never_makes_two_variants_the_same() -> None:
    assert verdict(0.97, 1.0, 1.03, floor=0.10)[0] == "UNDECIDED"


def test_an_interval_around_one_says_how_many_rounds_are_missing() -> None:
    found, why = verdict(0.98, 1.0240, 1.07)
    assert found == "UNDECIDED"
    # Half the width is 0.0439 in logarithms, the estimate 0.0237: (0.0439 / 0.0237)² = 3.4.
    assert why.facts["rounds_factor"] == 4
    assert explain(why) == (
        "the interval reaches from 0.980 to 1.070; about 4 × as many rounds would settle it"
    )


def test_a_small_estimate_with_a_wide_interval_asks_for_enough_rounds_to_call_it_the_same() -> None:
    # Half the width 0.0296, room up to the threshold 0.0198: 2.2 times.
    why = verdict(1 / 1.03, 1.0, 1.03)[1]
    assert why.facts["rounds_factor"] == 3


def test_a_difference_that_does_not_matter_but_might_is_undecided() -> None:
    found, why = verdict(1.002, 1.014, 1.026)
    assert found == "UNDECIDED"
    assert explain(why).startswith(
        "a difference of 1.4 % was found, less than the 2 % that matters, but up to 2.6 %"
        " cannot be ruled out"
    )


def test_an_estimate_at_the_threshold_gets_no_number_of_rounds() -> None:
    assert verdict(0.98, 1.0199, 1.06)[1].facts["rounds_factor"] == 0


def test_a_difference_below_what_identical_code_showed_is_undecided() -> None:
    found, why = verdict(1.01, 1.03, 1.05, floor=0.04)
    assert found == "UNDECIDED"
    assert "a difference of 3 % was found, but identical code measured 4 % apart" in explain(why)
    found, why = verdict(1.01, 1.05, 1.09, floor=0.04)
    assert found == "FASTER"
    assert "more than the 4 % between identical code" in explain(why)


def test_verdicts_are_undecided_when_identical_code_differs() -> None:
    found, why = verdict(1.8, 2.0, 2.2, estimate=estimated(1.02, 1.04, 1.06), differs=True)
    assert found == "UNDECIDED"
    assert explain(why) == "identical code measured 4 % apart, so no verdict can be trusted"


@pytest.mark.parametrize("rounds", [1, 5])
@pytest.mark.parametrize("reach", [(1.9, 2.0, 2.1), (0.999, 1.0, 1.001)])
def test_fewer_than_six_rounds_are_undecided(
    rounds: int, reach: tuple[float, float, float]
) -> None:
    found, why = judge(estimated(*reach, rounds=rounds), control(), threshold=0.02)
    assert found == "UNDECIDED"
    assert why.code == VerdictCode.TOO_FEW_ROUNDS
    assert explain(why) == f"only {rounds} round{'s' if rounds > 1 else ''}; 6 are needed"


def test_without_a_threshold_only_no_difference_at_all_is_the_same() -> None:
    assert judge(estimated(1.0, 1.0, 1.0), control(floor=0.0), threshold=0.0)[0] == "SAME"
    assert judge(estimated(0.999, 1.0, 1.001), control(), threshold=0.0)[0] == "UNDECIDED"


@given(
    st.floats(-3.0, 3.0),
    st.floats(0.0, 3.0),
    st.floats(0.0, 0.5),
    st.floats(0.0, 0.5),
    st.integers(1, 500),
    st.booleans(),
)
def test_every_case_gets_a_verdict_that_its_interval_allows(
    middle: float, half: float, threshold: float, floor: float, rounds: int, differ: bool
) -> None:
    given_ = estimated(
        math.exp(middle - half), math.exp(middle), math.exp(middle + half), rounds=rounds
    )
    found, why = judge(given_, control(floor=floor, differs=differ), threshold=threshold)
    assert explain(why)
    if found in ("FASTER", "SLOWER"):
        assert (found == "FASTER") == (middle > 0)
        assert not given_.ci_low <= 1.0 <= given_.ci_high
        assert abs(middle) >= math.log1p(max(threshold, floor)) - 1e-12
    if found == "SAME":
        assert abs(middle) + half <= math.log1p(threshold) + 1e-9
    if found != "UNDECIDED":
        assert rounds >= 6
        assert not differ


def test_extreme_intervals_get_a_reason() -> None:
    found, why = verdict(1e-299, 1e-3, 1e293)
    assert found == "UNDECIDED"
    assert "no number of rounds" in explain(why)
    assert verdict(1e200, 1e250, 1e299)[0] == "FASTER"


def test_an_invalid_threshold_is_refused() -> None:
    for threshold in (-0.01, math.nan, math.inf):
        with pytest.raises(ValueError, match="share that matters"):
            judge(estimated(0.9, 1.0, 1.1), control(), threshold=threshold)


def test_identical_code_differs_only_with_certainty_and_by_what_matters() -> None:
    assert differs(estimated(1.01, 1.04, 1.07), threshold=0.02)
    assert not differs(estimated(0.99, 1.04, 1.09), threshold=0.02)
    assert not differs(estimated(1.005, 1.01, 1.015), threshold=0.02)
    assert not differs(estimated(1.01, 1.04, 1.07, rounds=5), threshold=0.02)
