"""Steps after the watched ones must do as much, and their losses must go on alike."""

import random

import pytest
from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.records.trial import LaterStep, TensorPrint, Trial, WatchedStep

WATCHED, STEPS = 8, 40


def trial(seed: int = 0, *, noise: float = 0.0, samples: int = 64, jitter: float = 0.0) -> Trial:
    """A run whose losses fall from 2.3 and scatter by batch; `noise` is added to them."""
    data, own = random.Random(0), random.Random(seed)
    losses = [2.3 - 0.01 * at + data.gauss(0, 0.8 / 8) for at in range(STEPS)]
    if samples < 64:
        losses = [loss + own.gauss(0, 0.8 / samples**0.5) * (at > 12) for at, loss in _n(losses)]
    losses = [loss + noise * own.gauss(0, 1) * (at > WATCHED) for at, loss in _n(losses)]
    return Trial(
        watched=tuple(
            WatchedStep(loss=one, gradient_norm=1.0, gradients=2, forwards=1, backwards=1)
            for one in losses[:WATCHED]
        ),
        later=tuple(
            LaterStep(number=at, loss=loss, forwards=1, backwards=1, updates=1, handed=64 * 512)
            for at, loss in _n(losses)
            if at >= WATCHED
        ),
        tensors=tuple(
            TensorPrint(name=name, norm=2.0, projection=0.3, moved=0.1, numel=64)
            for name in ("weight", "bias")
        ),
        evaluation=(3.0, 0.5),
        looked=STEPS - 1,
        jitter=jitter,
    )


def _n(losses: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(losses))


BASE = trial()
BASELINE = [BASE, BASE, trial(1, noise=1e-4, jitter=2.0**-23)]


def altered(place: int, **change: object) -> Trial:
    later = list(BASE.later)
    later[place] = replace(later[place], **change)
    return replace(BASE, later=tuple(later))


def judged(candidate: Trial, baseline: list[Trial] = BASELINE) -> str:
    found = compare(baseline, candidate, "rounding")
    return found.why if found.equality == "differs" else found.equality


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.05])
def test_later_losses_within_the_scatter_of_the_batches_are_equal(noise: float) -> None:
    assert judged(trial(2, noise=noise)) == "equal"


def test_one_sample_instead_of_sixty_four_shows_in_the_losses() -> None:
    why = judged(trial(2, samples=1))
    assert "later losses 44.4 % apart" in why
    assert "allowed" in why


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backwards": 0}, "backwards a step: 0 where the baseline has 1, at step 19"),
        ({"updates": 0}, "optimizer steps applied: 0 where the baseline has 1, at step 19"),
        ({"forwards": 2}, "forwards a step: 2 where the baseline has 1, at step 19"),
        ({"handed": 512}, "given to the model a step: 512 where the baseline has 32,768"),
        ({"loss": None, "broke": "nan"}, "the loss is not finite at step 19"),
    ],
)
def test_a_single_step_that_does_less_is_named(change: dict[str, object], words: str) -> None:
    assert words in judged(altered(10, **change))


def test_counts_that_vary_in_the_baseline_are_not_compared() -> None:
    """Episodes differ in length, and a loss may become NaN."""
    varies = [BASE, altered(3, forwards=7, loss=None, broke="inf")]
    assert judged(altered(10, forwards=2), varies) == "equal"
    assert judged(altered(10, loss=None, broke="nan"), varies) == "equal"


def test_a_parameter_that_stops_moving_only_in_the_candidate_is_named() -> None:
    frozen = replace(BASE, stood=("weight",))
    assert "weight no longer moves at step 40" in judged(frozen)
    assert judged(frozen, [frozen, BASE]) == "equal"
    longer = replace(frozen, looked=STEPS + 16)  # heads may take turns
    assert judged(longer) == "equal"


def test_replayed_steps_are_not_compared() -> None:
    assert judged(replace(BASE, later=())) == "equal"
