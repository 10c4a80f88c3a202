"""Chaotic programs are compared until rounding drives them apart; parameters that follow rounding
alone are not compared at all."""

import random
from math import hypot

import pytest
from msgspec.structs import replace

from ridgeline.equality.trials.distances import ULP
from ridgeline.equality.trials.noise_bands import (
    UNINFORMATIVE_BAND,
    allowed_by_perturbation,
    floor_of,
)
from ridgeline.equality.trials.parity import compare
from ridgeline.records.trial import TensorPrint, Trial, WatchedStep

NAMES = tuple(f"layer{number}.weight" for number in range(9))
KEYS = range(8, 16)
"""Indices of a sketch: the second third."""
Noise = dict[str, float]


def print_of(name: str, noise: float, seed: int, *, keys: float = 0.0) -> TensorPrint:
    """Return a movement of length 1, turned by `noise`. `keys`: size of its second third, which is
    rounding alone."""
    drawn, other = random.Random(name), random.Random(f"{name} {seed}")
    sketch = [drawn.gauss() for _ in range(24)]
    sketch = [value / hypot(*sketch) for value in sketch]
    sketch = [value + noise * other.gauss() / 24**0.5 for value in sketch]
    if keys:
        sketch = [keys * other.gauss() if at in KEYS else v for at, v in enumerate(sketch)]
    return TensorPrint(
        name=name, norm=30.0, projection=0.0, moved=hypot(*sketch), numel=4096, sketch=tuple(sketch)
    )


def trial(
    seed: int = 0,
    *,
    first: float = 0.0,
    second: float = 0.0,
    last: float = 0.0,
    jitter: float = 0.0,
    losses: tuple[float, ...] = (0.0,) * 6,
) -> Trial:
    return Trial(
        watched=tuple(
            WatchedStep(loss=2.0 + off, gradient_norm=1.0, gradients=9, forwards=1, backwards=1)
            for off in losses
        ),
        gradients=tuple(print_of(name, first, seed) for name in NAMES),
        early=tuple(print_of(name, second, seed) for name in NAMES),
        tensors=tuple(print_of(name, last, seed) for name in NAMES),
        jitter=jitter,
    )


APART = {"first": 0.004, "second": 0.05, "last": 0.7}
LOSSES = (1e-7, 1e-4, 0.02, 0.2, 0.3, 0.4)
BASE = trial()
JITTERED = trial(1, **APART, jitter=ULP, losses=LOSSES)


def test_a_chaotic_program_is_compared_before_rounding_takes_over() -> None:
    found = compare([BASE, BASE, JITTERED], trial(2, **APART, losses=LOSSES), "rounding")
    assert found.equality == "equal", found.why
    assert "parameters after 2 steps compared" in found.why
    assert "over 2 steps" in found.why


@pytest.mark.parametrize("when", ["first", "second"])
def test_a_difference_before_rounding_takes_over_differs(when: str) -> None:
    other = trial(2, **{**APART, when: 0.7}, losses=LOSSES)
    found = compare([BASE, BASE, JITTERED], other, "rounding")
    assert found.equality == "differs"
    assert {"first": "the first gradient of layer", "second": "after 2 steps is off"}[
        when
    ] in found.why


def test_the_distance_moved_is_compared_even_if_the_direction_is_lost() -> None:
    other = trial(2, **APART, losses=LOSSES)
    slow = tuple(replace(one, moved=0.1) for one in other.tensors)
    found = compare([BASE, BASE, JITTERED], replace(other, tensors=slow), "rounding")
    assert found.equality == "differs"
    stuck = (replace(other.tensors[0], moved=0.0), *other.tensors[1:])
    found = compare([BASE, BASE, JITTERED], replace(other, tensors=stuck), "rounding")
    assert "layer0.weight does not move" in found.why


def test_a_program_that_is_chaotic_from_the_first_step_is_weak() -> None:
    turned = {"first": 0.5, "second": 0.9, "last": 1.2}
    coarse = trial(3, **turned, jitter=2.0**-8, losses=(1e-3, 0.02, 0.1, 0.2, 0.2, 0.2))
    other = trial(4, **turned, losses=(2e-3, 0.03, 0.1, 0.1, 0.2, 0.1))
    found = compare([BASE, BASE, JITTERED, coarse], other, "rounding", "bfloat16")
    assert found.equality == "weak", found.why
    assert "even the first gradients" in found.missing[0]


def attention(seed: int, gradient: float, moved: float, jitter: float = 0.0) -> Trial:
    given = trial(seed, jitter=jitter)
    return replace(
        given,
        gradients=(*given.gradients, print_of("qkv.bias", 0.0, seed, keys=gradient)),
        early=(*given.early, print_of("qkv.bias", 0.0, seed, keys=moved)),
        tensors=(*given.tensors, print_of("qkv.bias", 0.0, seed, keys=moved)),
    )


def test_a_noise_only_part_is_ignored_even_if_the_perturbation_moved_it_little() -> None:
    """By a twelfth of itself, as was seen in a part of a bias of keys on a GPU. Adam's epsilon held
    it still, until 16 bits made its gradients larger."""
    base, moved = attention(0, 1e-8, 1e-8), attention(1, 1e-8, 1e-8, ULP)
    both = zip(base.gradients[-1].sketch, moved.gradients[-1].sketch, strict=True)
    little = tuple(1.08 * a if at in KEYS[2:] else b for at, (a, b) in enumerate(both))
    gradients = (*moved.gradients[:-1], replace(moved.gradients[-1], sketch=little))
    jittered = replace(moved, gradients=gradients)
    found = compare([base, base, jittered], attention(2, 1e-4, 0.2), "rounding", "bfloat16")
    assert found.equality == "equal", found.why


def test_a_part_whose_gradient_is_rounding_alone_is_ignored() -> None:
    base, jittered = attention(0, 1e-8, 0.2), attention(1, 1e-8, 0.2, ULP)
    found = compare([base, base, jittered], attention(2, 1e-4, 0.2), "rounding", "bfloat16")
    assert found.equality == "equal", found.why
    other = attention(2, 1e-4, 0.2)
    values = (print_of("qkv.bias", 0.9, 5).sketch, other.tensors[-1].sketch)
    queries = tuple(a if at < 8 else b for at, (a, b) in enumerate(zip(*values, strict=True)))
    wrong = replace(other.tensors[-1], sketch=queries)
    found = compare(
        [base, base, jittered],
        replace(other, tensors=(*other.tensors[:-1], wrong)),
        "rounding",
        "bfloat16",
    )
    assert "qkv.bias is off by" in found.why


def test_a_baseline_that_begins_differently_each_time_makes_the_answer_weak() -> None:
    """Two repeats that agree by luck must not bind a third run."""
    one, near = trial(1, first=1.4, last=1.4), trial(2, first=1.4, last=1.4)
    far = trial(3, first=1.4, last=1.4, losses=(0.2,) * 6)
    found = compare([one, near], far, "rounding")
    assert found.equality == "weak", found.why
    assert "does not begin alike" in found.missing[0]


def test_no_update_makes_the_answer_weak() -> None:
    still = tuple(replace(one, moved=0.0, sketch=(0.0,) * 24) for one in BASE.tensors)
    none = replace(BASE, tensors=still, early=still)
    found = compare([none, none], none, "nothing")
    assert found.equality == "weak"
    assert found.missing == ("no parameter moved: no update was seen",)


def test_the_noise_between_two_perturbations_is_interpolated() -> None:
    tf32 = floor_of("rounding", "tf32")
    adds_up = allowed_by_perturbation(tf32, [(ULP, 1e-7), (2.0**-8, 1e-7 * 2**15)])
    assert adds_up == pytest.approx(8 * 1e-7 * 2**12)
    apart = allowed_by_perturbation(tf32, [(ULP, 4e-3), (2.0**-8, 0.2)], sketched=True)
    assert 3 * 0.08 < apart < 3 * 0.1


def test_a_chaotic_drift_is_not_scaled_to_another_precision() -> None:
    coarse = floor_of("rounding", "bfloat16")
    assert allowed_by_perturbation(coarse, [(ULP, 1e-7)]) < 0.05
    assert allowed_by_perturbation(coarse, [(ULP, 4e-3)]) == UNINFORMATIVE_BAND
    assert allowed_by_perturbation(floor_of("rounding", "float32"), [(2.0**-8, 0.5)]) == 0.0
