"""Wrong answers must be caught, with the place and the size of the error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from verdict_on import built, judged, verdict_on

torch.manual_seed(0)
X, W = torch.randn(64, 64), torch.randn(64, 64)


def product() -> Tensor:
    return X @ W


def one_element() -> Tensor:
    out = X @ W
    out[5, 7] *= 1.01
    return out


def not_a_number() -> Tensor:
    out = X @ W
    out[3, 3] = torch.nan
    return out


def infinite() -> Tensor:
    out = X @ W
    out[3, 3] = -torch.inf
    return out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: (X @ W) * 1.01, "off by 0.01"),
        (lambda: (X @ W) * 1.0001, "off by 0.0001"),
        (one_element, "at one element"),
        (lambda: (X @ W).t().contiguous(), "off by"),
        (lambda: torch.zeros(64, 64), "off by 1 "),
        (lambda: (X @ W)[:, :60], "shape 64×60 against 64×64"),
        (not_a_number, "1 NaN values where the baseline has 0"),
        (infinite, "1 infinite values where the baseline has 0"),
        (lambda: None, "NoneType against Tensor"),
        (lambda: (X @ W).half().float(), "off by"),
    ],
)
def test_a_wrong_answer_is_different(wrong: Callable[[], Any], words: str) -> None:
    verdict = verdict_on(product, wrong)
    assert verdict.results.status == "different", verdict.results
    assert words in verdict.results.detail


def test_one_wrong_number_among_many() -> None:
    x = torch.randn(600, 600)

    def wrong() -> Tensor:
        out = x * 2
        out[300, 300] = 1.02 * out[300, 300] + 0.02
        return out

    assert verdict_on(lambda: x * 2, wrong).results.status == "different"


def test_nan_is_no_wildcard() -> None:
    x = torch.randn(64)
    x[0] = torch.nan

    def elsewhere() -> Tensor:
        out = x.clone()
        out[0], out[1] = 0.0, torch.nan
        return out

    verdict = verdict_on(lambda: x * 1, elsewhere)
    assert verdict.results.status == "different"
    assert "NaN in other places" in verdict.results.detail
    assert "NaN as wildcard" in verdict.failed


def test_all_nan_is_no_answer() -> None:
    verdict = verdict_on(product, lambda: torch.full((64, 64), torch.nan))
    assert verdict.results.status == "different"
    assert "NaN as wildcard" in verdict.failed


def test_a_mask_off_by_one() -> None:
    scores = torch.randn(2, 64, 64)

    def masked(diagonal: int) -> Callable[[], Tensor]:
        mask = torch.ones(64, 64, dtype=torch.bool).triu(diagonal)
        return lambda: scores.masked_fill(mask, -torch.inf).softmax(-1)

    assert verdict_on(masked(1), masked(1)).results.ok
    assert verdict_on(masked(1), masked(2)).results.status == "different"


def test_small_numbers_beside_a_mask_of_large_ones() -> None:
    scores = torch.randn(64, 64)
    mask = torch.ones(64, 64, dtype=torch.bool).triu(1)
    verdict = verdict_on(
        lambda: scores.masked_fill(mask, -1e9), lambda: (scores * 1.01).masked_fill(mask, -1e9)
    )
    assert verdict.results.status == "different"
    assert "without its largest numbers" in verdict.results.detail


def test_a_missing_key_and_another_shape_are_named() -> None:
    def right() -> dict[str, Any]:
        return {"logits": [torch.ones(4, 10)], "loss": torch.ones(())}

    verdict = verdict_on(right, lambda: {"logits": [torch.ones(4, 10)]})
    assert verdict.results.status == "different"
    assert "missing: ['loss']" in verdict.results.detail
    verdict = verdict_on(right, lambda: {"logits": [torch.ones(4, 12)], "loss": torch.ones(())})
    assert "['logits'][0]: shape 4×12 against 4×10" in verdict.results.detail


def test_integers_must_be_the_same() -> None:
    x = torch.randint(0, 1000, (50, 50))

    def wrong() -> Tensor:
        out = x.clone()
        out[0, 0] += 1
        return out

    verdict = verdict_on(lambda: x.clone(), wrong)
    assert verdict.results.status == "different"
    assert "1 of 2,500 values differ" in verdict.results.detail


def test_text_must_be_the_same() -> None:
    assert verdict_on(lambda: "a cat", lambda: "a cat").results.ok
    assert verdict_on(lambda: "a cat", lambda: "a dog").results.status == "different"


def test_randomness_left_out_is_different() -> None:
    x = torch.randn(256)
    verdict = verdict_on(lambda: torch.dropout(x, 0.5, train=True), lambda: x * 1)
    assert verdict.results.status == "different"


def test_an_answer_that_is_wrong_only_on_other_inputs() -> None:
    x, remembered = torch.randn(64, 64), None

    def by_heart(x: Tensor) -> Tensor:
        nonlocal remembered
        if remembered is None:
            remembered = x @ W
        return remembered.clone()

    verdict = verdict_on(lambda x: x @ W, by_heart, x)
    assert verdict.results.status == "different"
    assert "on other inputs" in verdict.results.detail
    assert "cached replay" in verdict.failed


def test_a_wrong_branch_that_only_other_inputs_reach() -> None:
    x = torch.rand(64) + 1

    def wrong(x: Tensor) -> Tensor:
        return x * 2 if x[0] == first else x * 3

    first = x[0].clone()
    verdict = verdict_on(lambda x: x * 2, wrong, x)
    assert verdict.results.status == "different"
    assert "on other inputs" in verdict.results.detail


def test_other_weights_are_named_as_the_cause() -> None:
    def factory(seed: int) -> Callable[[], Callable[[], Tensor]]:
        def build() -> Callable[[], Tensor]:
            torch.manual_seed(seed)
            model, x = nn.Linear(64, 64), torch.ones(64, 64)
            return lambda: model(x)

        return build

    verdict = judged(built(factory(1)), built(factory(2)))
    assert verdict.results.status == "different"
    assert "different values in model.weight" in verdict.results.detail


def test_half_of_the_precision_inside_is_different() -> None:
    q, k = torch.randn(64, 256), torch.randn(256, 64)
    verdict = verdict_on(lambda: q @ k, lambda: (q.bfloat16() @ k.bfloat16()).float())
    assert verdict.results.status == "different"
    assert verdict.results.worst_error is not None
    assert 1e-4 < verdict.results.worst_error < 1e-2
