"""A check is as strong as the wrong answers it rejects."""

from typing import Any

import pytest
import torch
from torch import Tensor
from verdict_on import verdict_on

from ridgeline.errors import TargetError

torch.manual_seed(0)
X, W = torch.randn(64, 64), torch.randn(64, 64)


def product() -> Tensor:
    return X @ W


def test_many_numbers_against_float64_are_a_strong_check() -> None:
    verdict = verdict_on(product, product)
    assert verdict.results.strength == "strong"
    assert verdict.results.reasons == ()


def test_one_number_is_weak() -> None:
    verdict = verdict_on(lambda: product().sum(), lambda: product().sum())
    assert verdict.results.strength == "weak"
    assert "one number was compared" in verdict.results.reasons


def test_a_wide_tolerance_is_weak_and_says_what_would_pass() -> None:
    verdict = verdict_on(product, lambda: product() * 1.05, rtol=0.06)
    assert verdict.results.ok
    assert verdict.results.strength == "weak"
    assert verdict.results.reasons == ("an answer 5 % off would pass",)


def test_an_absurd_tolerance_lets_zeros_through() -> None:
    verdict = verdict_on(product, product, rtol=2.0)
    assert verdict.results.strength == "weak"
    assert "an answer of zeros would pass" in verdict.results.reasons
    assert "the right numbers in the wrong places would pass" in verdict.results.reasons


def test_zeros_alone_prove_little() -> None:
    verdict = verdict_on(lambda: torch.zeros(64), lambda: torch.zeros(64))
    assert verdict.results.strength == "weak"
    assert "an answer of zeros would pass" in verdict.results.reasons


def tight(baseline: Tensor, candidate: Tensor) -> None:
    torch.testing.assert_close(candidate, baseline)


def test_a_files_own_check_is_tried_with_wrong_answers_too() -> None:
    verdict = verdict_on(product, product, check=tight)
    assert verdict.results.method == "its own check"
    assert verdict.results.strength == "strong"
    assert verdict.results.status == "bit-identical"


def test_a_check_that_looks_at_nothing_is_weak() -> None:
    verdict = verdict_on(product, lambda: product() * 0, check=lambda a, b: a.shape == b.shape)
    assert verdict.results.status == "within tolerance"
    assert verdict.results.strength == "weak"
    assert "an answer of zeros would pass" in verdict.results.reasons
    assert "an answer 50 % off would pass" in verdict.results.reasons
    assert "by our own measure the output: off by 1" in verdict.results.detail


def test_a_check_may_answer_in_four_ways() -> None:
    def wrong() -> Tensor:
        return product() * 2

    answers: list[tuple[Any, str]] = [
        (lambda a, b: bool(torch.allclose(a, b)), "returned False"),
        (lambda a, b: torch.allclose(a, b) or "twice as large", "twice as large"),
        (tight, "Tensor-likes are not close"),
        (lambda a, b: (a == b).all(), "returned False"),
    ]
    for check, words in answers:
        verdict = verdict_on(product, wrong, check=check)
        assert verdict.results.status == "different"
        assert words in verdict.results.detail
        assert verdict_on(product, product, check=check).results.ok


@pytest.mark.parametrize("check", [lambda a, b: a.no_such_thing, lambda a, b: "nope"])
def test_a_check_that_rejects_the_baseline_itself_is_refused(check: Any) -> None:
    with pytest.raises(TargetError, match="beside itself"):
        verdict_on(product, product, check=check)


def test_a_check_sees_outputs_as_they_were_nested() -> None:
    def nested() -> dict[str, Any]:
        return {"logits": product(), "more": (1, [2.5])}

    def check(a: Any, b: Any) -> bool:
        assert b["more"] == (1, [2.5])
        return torch.allclose(a["logits"], b["logits"])

    verdict = verdict_on(nested, nested, check=check)
    assert verdict.results.ok, verdict.results
    assert verdict.results.strength == "strong", verdict.results
