"""A program that computes the same by other means is equal."""

import pytest
from made_up_trials import candidate_of, trials_of_baseline
from parity_cases import FLOAT32, LOWER, NOTHING

from ridgeline.equality.trials.parity import compare

SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", NOTHING)
def test_a_fix_that_alters_nothing_is_exactly_equal(change: str, seed: int) -> None:
    baseline = trials_of_baseline(seed, perturbed=False)
    found = compare(baseline, candidate_of(seed, **NOTHING[change]), "nothing")
    assert found.equality == "equal", found.why
    assert found.why.startswith("losses equal exactly over 8 steps")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", FLOAT32)
def test_another_order_of_summation_is_equal(change: str, seed: int) -> None:
    baseline = trials_of_baseline(seed)
    found = compare(baseline, candidate_of(seed, **FLOAT32[change]), "rounding")
    assert found.equality == "equal", found.why
    # Without a perturbed run a bias that follows rounding alone looks like another program.
    bare = [trial for trial in baseline if not trial.jitter]
    assert compare(bare, candidate_of(seed, **FLOAT32[change]), "rounding").equality != "differs"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", LOWER)
def test_a_lower_precision_is_equal_within_its_own_band(change: str, seed: int) -> None:
    precision, changes = LOWER[change]
    trial = candidate_of(seed, **changes)
    found = compare(trials_of_baseline(seed), trial, "rounding", precision)
    assert found.equality == "equal", found.why


def test_bfloat16_differs_where_float32_was_declared() -> None:
    trial = candidate_of(1, autocast="bfloat16")
    assert compare(trials_of_baseline(1), trial, "rounding", "float32").equality == "differs"


def test_a_reordered_sum_differs_if_the_fix_may_alter_nothing() -> None:
    trial = candidate_of(1, tf32=True)
    assert compare(trials_of_baseline(1), trial, "nothing").equality == "differs"


def test_the_worst_of_several_trials_counts() -> None:
    baseline = trials_of_baseline(1)
    trials = [candidate_of(1), candidate_of(1, skip=(3,))]
    assert compare(baseline, trials, "nothing").equality == "differs"
    assert compare(baseline, trials[:1], "nothing").equality == "equal"
