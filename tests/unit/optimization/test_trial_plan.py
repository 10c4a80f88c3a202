"""How long a trial of the baseline is."""

import pytest

from ridgeline.optimization.program import WATCHED_STEPS, trial_plan
from ridgeline.records.ground import Ground
from ridgeline.records.run import LoaderSeen


def ground(workers: int = 0, input_share: float = 0.005) -> Ground:
    return Ground(loaders=(LoaderSeen(workers=workers, batches=60),), input_share=input_share)


def steps(ground: Ground, step_ms: float) -> int:
    return trial_plan(ground, step_ms, goal="speed", seed=0)[0].steps


def test_a_trial_of_long_steps_is_short_but_long_enough_to_be_timed() -> None:
    assert WATCHED_STEPS + 6 <= steps(ground(), 3000.0) <= 16


def test_a_trial_of_short_steps_times_about_three_seconds() -> None:
    assert steps(Ground(), 100.0) == WATCHED_STEPS + 30


@pytest.mark.parametrize("fed", [ground(workers=2), ground(input_share=0.3)])
def test_a_trial_takes_the_batches_made_ahead_where_the_loader_matters(fed: Ground) -> None:
    assert steps(fed, 3000.0) == steps(ground(), 3000.0) + 16
