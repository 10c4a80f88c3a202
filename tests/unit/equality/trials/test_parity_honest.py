"""A program that computes the same in another way is called equal."""

import pytest
from made_up_trials import candidate_of, trials_of_baseline
from parity_cases import FLOAT32, LOWER, NOTHING

from ridgeline.equality.trials.parity import compare

SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", NOTHING)
def test_what_alters_nothing_is_equal_exactly(change: str, seed: int) -> None:
    baseline = trials_of_baseline(seed, perturbed=False)
    found = compare(baseline, candidate_of(seed, **NOTHING[change]), "nothing")
    assert found.equality == "equal", found.why
    assert found.why.startswith("losses equal exactly over 8 steps")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", FLOAT32)
def test_other_orders_of_summing_are_equal(change: str, seed: int) -> None:
    baseline = trials_of_baseline(seed)
    found = compare(baseline, candidate_of(seed, **FLOAT32[change]), "rounding")
    assert found.equality == "equal", found.why
    # No jittered trial: a bias that moves by rounding alone cannot be told from another program.
    bare = [trial for trial in baseline if not trial.jitter]
    assert compare(bare, candidate_of(seed, **FLOAT32[change]), "rounding").equality != "differs"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", LOWER)
def test_lower_precisions_are_equal_in_their_own_band(change: str, seed: int) -> None:
    precision, changes = LOWER[change]
    trial = candidate_of(seed, **changes)
    found = compare(trials_of_baseline(seed), trial, "rounding", precision)
    assert found.equality == "equal", found.why


def test_bfloat16_is_not_rounding_of_float32() -> None:
    trial = candidate_of(1, autocast="bfloat16")
    assert compare(trials_of_baseline(1), trial, "rounding", "float32").equality == "differs"


def test_a_reordered_sum_is_not_nothing_where_it_is_beyond_ulps() -> None:
    trial = candidate_of(1, tf32=True)
    assert compare(trials_of_baseline(1), trial, "nothing").equality == "differs"


def test_the_worst_of_several_trials_counts() -> None:
    baseline = trials_of_baseline(1)
    trials = [candidate_of(1), candidate_of(1, skip=(3,))]
    assert compare(baseline, trials, "nothing").equality == "differs"
    assert compare(baseline, trials[:1], "nothing").equality == "equal"
