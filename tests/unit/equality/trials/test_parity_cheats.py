"""A fix that makes the program faster by doing less is caught, whatever it claims to alter."""

import pytest
from made_up_trials import candidate_of, trials_of_baseline
from parity_cases import CHEATS

from ridgeline.equality.trials.parity import compare
from ridgeline.records.trial import Trial

SEEDS = (0, 1)  # AdamW, SGD


@pytest.fixture(scope="module")
def baselines() -> dict[int, list[Trial]]:
    return {seed: trials_of_baseline(seed) for seed in SEEDS}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cheat", CHEATS)
def test_doing_less_differs(baselines: dict[int, list[Trial]], cheat: str, seed: int) -> None:
    trial = candidate_of(seed, **CHEATS[cheat])
    baseline = baselines[seed]
    repeats = [one for one in baseline if not one.jitter]
    for found in (
        compare(repeats, trial, "nothing"),
        compare(baseline, trial, "rounding"),
        compare(repeats, trial, "rounding"),
    ):
        assert found.equality == "differs", found.why
        failed = next(check for check in found.checks if not check.passed)
        assert found.why.startswith(failed.text)


@pytest.mark.parametrize("cheat", CHEATS)
def test_bfloat16_does_not_hide_that_less_is_done(cheat: str) -> None:
    baseline = trials_of_baseline(0, told=True)
    trial = candidate_of(0, autocast="bfloat16", told=True, **CHEATS[cheat])
    assert compare(baseline, trial, "rounding", "bfloat16").equality == "differs"


@pytest.mark.parametrize("alters", ["nothing", "rounding"])
def test_replacing_nan_with_zero_differs(alters: str) -> None:
    baseline = trials_of_baseline(0, poison=5)
    trial = candidate_of(0, poison=5, nan_to_zero=True)
    found = compare(baseline, trial, alters)  # type: ignore[arg-type]
    assert found.equality == "differs"
    assert "step 6" in found.why
    assert "NaN" in found.why


def test_the_reason_names_what_was_left_out(baselines: dict[int, list[Trial]]) -> None:
    def why(**changes: object) -> str:
        return compare(baselines[0], candidate_of(0, **changes), "rounding").why

    assert why(skip=(2, 5, 6)).startswith("3 of 8 optimizer steps were skipped")
    assert "samples a step: 16 where the baseline has 32" in why(batch=8)
    assert "backwards a step: 1 where the baseline has 2" in why(backwards=1)
    assert "the data of steps 1, 2, 3 and 5 more are not the baseline's" in why(shuffled=True)


def test_a_frozen_layer_shows_in_its_parameters(baselines: dict[int, list[Trial]]) -> None:
    trial = candidate_of(0, slowed=True)
    found = compare(baselines[0], trial, "rounding", "bfloat16")
    moved = next(check for check in found.checks if check.what == "movement")
    assert not moved.passed
    assert "second.weight does not move" in moved.text
