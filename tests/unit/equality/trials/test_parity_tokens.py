"""Greedy tokens: equal, different within the noise of the logits, or different."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ridgeline.equality.trials.noise_bands import floor_of
from ridgeline.equality.trials.parity import compare
from ridgeline.equality.trials.tokens import (
    check_tokens,
    first_other_token,
    until_other_token,
    writes_greedily,
)
from ridgeline.records.parity import Check, Parity
from ridgeline.records.trial import OutputPrint, Predicted, TensorPrint, Trial, WatchedStep

WEIGHT = TensorPrint(name="weight", norm=1.0, projection=0.3, moved=0.0, numel=64)
STEPS, TOP = 8, 20.0
NEAR_STEP, NEAR_ROW, NEAR_GAP = 3, 1, 0.05
"""Where the two likeliest tokens have nearly equal logits."""
UNIT = 2.0**-8


def text(
    turned: bool = False, shift: float = 0.0, jitter: float = 0.0, near: float = NEAR_GAP
) -> Trial:
    """Two rows of greedy text, a call a step. `turned`: the two near tokens have changed places;
    `shift` is added to each lead."""
    given, steps = (1, 2), []
    apart = 0  # what is written after another token
    for step in range(STEPS):
        rows = []
        for row in range(2):
            first = 10 * step + row + 2 + apart
            lead = near if (step, row) == (NEAR_STEP, NEAR_ROW) else 2.0
            lead += shift
            logits = (TOP, TOP - abs(lead), TOP - 4.0, TOP - 5.0)
            pair = (first, first + 1)
            if lead < 0 or (turned and (step, row) == (NEAR_STEP, NEAR_ROW)):
                pair = (pair[1], pair[0])
            rows.append(((*pair, 98, 99), logits))
        made = Predicted(
            given=given, tokens=tuple(row[0] for row in rows), logits=tuple(row[1] for row in rows)
        )
        sketch = tuple(float((7 * step + at) % 5 + apart) for at in range(24))
        output = OutputPrint(numel=160, norm=12.0, sketch=sketch)
        total = float(sum(given))
        steps.append(
            WatchedStep(
                samples=2, batch_sum=total, forwards=1, outputs=(output,), predicted=(made,)
            )
        )
        given = tuple(row[0][0] for row in rows)
        if step == NEAR_STEP and given[NEAR_ROW] != 10 * step + NEAR_ROW + 2:
            apart = 1
    return Trial(watched=tuple(steps), tensors=(WEIGHT,), evaluation=(3.0, 1.0), jitter=jitter)


def token_check(parity: Parity) -> Check:
    return next(check for check in parity.checks if check.what == "tokens")


def judged(candidate: Trial, noise: Sequence[Trial], alters: str = "rounding") -> Parity:
    return compare([text(), text(), *noise], candidate, alters, "bfloat16")  # type: ignore[arg-type]


def test_equal_tokens_are_said_to_be_equal() -> None:
    found = judged(text(shift=0.01), [text(shift=0.02, jitter=UNIT)])
    assert found.equality == "equal"
    assert token_check(found).passed
    assert token_check(found).difference == 0.0


def test_a_token_that_noise_explains_is_accepted_and_named() -> None:
    found = judged(text(turned=True), [text(shift=0.02, jitter=UNIT)])
    check = token_check(found)
    assert found.equality == "weak"
    assert check.passed
    assert check.doubt
    assert check.step == NEAR_STEP
    assert check.difference == pytest.approx(NEAR_GAP)
    assert check.allowed is not None
    assert check.allowed >= NEAR_GAP
    # The steps that follow have other inputs and other outputs, which count for nothing.
    assert all(one.passed for one in found.checks)


def test_a_token_whose_logits_lie_beyond_the_noise_is_refused() -> None:
    found = judged(text(turned=True), [text(shift=1e-4, jitter=UNIT)])
    check = token_check(found)
    assert found.equality == "differs"
    assert not check.passed
    assert check.allowed is not None
    assert check.allowed < NEAR_GAP
    assert [one.what for one in found.checks if not one.passed] == ["tokens"]


def test_without_a_perturbed_run_no_other_token_is_accepted() -> None:
    assert judged(text(turned=True), []).equality == "differs"
    noise = [text(shift=0.02, jitter=UNIT)]
    assert judged(text(turned=True), noise, alters="nothing").equality == "differs"


def test_a_perturbation_larger_than_the_precision_excuses_nothing() -> None:
    noise = [text(shift=0.04, jitter=UNIT)]
    candidate = text(turned=True)
    (check,) = check_tokens([text()], noise, candidate, floor_of("rounding", "float32"))
    assert not check.passed


def test_repeats_that_differ_by_themselves_are_noise_too() -> None:
    repeats = [text(), text(shift=0.02)]
    (check,) = check_tokens(repeats, [], text(turned=True), floor_of("rounding", "float32"))
    assert check.passed


def test_a_wide_gap_is_not_excused_by_any_noise() -> None:
    noise = [text(shift=1.5, jitter=UNIT, near=1.2)]
    base = text(near=1.2)
    (check,) = check_tokens(
        [base], noise, text(turned=True, near=1.2), floor_of("rounding", "bfloat16")
    )
    assert not check.passed
    assert check.allowed == pytest.approx(0.05 * TOP)


def test_the_first_other_token_has_both_tokens_and_both_logits() -> None:
    found = first_other_token(text(), text(turned=True))
    assert found is not None
    assert (found.call, found.row, found.steps) == (NEAR_STEP, NEAR_ROW, NEAR_STEP + 1)
    assert (found.base_token, found.token) == (33, 34)
    assert found.base_logit == TOP
    assert found.logit == pytest.approx(TOP - NEAR_GAP)
    assert len(until_other_token(text(), text(turned=True)).watched) == NEAR_STEP + 1


def test_a_perturbed_run_that_writes_another_text_does_not_widen_the_band() -> None:
    other = text(turned=True, shift=0.0, jitter=UNIT)
    steady = text(shift=0.02, jitter=UNIT)
    for noise in ([steady], [steady, other]):
        wrong = text(shift=0.01)
        steps = list(wrong.watched)
        output = replace(steps[5].outputs[0], sketch=(9.0,) * 24)
        steps[5] = replace(steps[5], outputs=(output,))
        assert judged(replace(wrong, watched=tuple(steps)), noise).equality == "differs"


def test_classes_of_a_classifier_are_no_text() -> None:
    trial = text()
    steps = [
        replace(step, predicted=tuple(replace(one, given=(5, 5)) for one in step.predicted))
        for step in trial.watched
    ]
    assert writes_greedily(trial)
    assert not writes_greedily(replace(trial, watched=tuple(steps)))


def with_weight(trial: Trial, **given: object) -> Trial:
    return replace(trial, tensors=(replace(WEIGHT, **given),))  # type: ignore[arg-type]


def test_weights_kept_in_fewer_bits_are_the_same_weights_where_nothing_trains() -> None:
    base = with_weight(text(), dtype="float32")
    noise = with_weight(text(shift=0.02, jitter=UNIT), dtype="float32")
    near = {"dtype": "bfloat16", "norm": 1.001, "moved": 0.002}
    for given, equal in (
        (near, True),
        ({**near, "norm": 1.1}, False),  # other weights
        ({**near, "dtype": "float32"}, False),  # weights that moved
    ):
        found = compare([base, base, noise], with_weight(text(), **given), "rounding", "bfloat16")
        assert found.is_proven is equal, found.why
    exact = compare([base, base], with_weight(text(), **near), "nothing")
    assert exact.equality == "differs"
