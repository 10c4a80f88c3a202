"""Variants that compute the same must pass, however they go about it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from verdict_on import Verdict, built, judged, verdict_on


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def assert_right(verdict: Verdict, strength: str = "strong") -> None:
    assert verdict.results.ok, verdict.results
    assert verdict.results.strength == strength, verdict.results
    assert not verdict.failed, verdict.guards


def test_sums_in_another_order_are_equal_against_float64() -> None:
    x, w = torch.randn(64, 4096), torch.randn(4096, 32)

    def split() -> Tensor:
        return sum(
            (x[:, i : i + 512] @ w[i : i + 512] for i in range(0, 4096, 512)), torch.zeros(())
        )

    verdict = verdict_on(lambda: x @ w, split)
    assert_right(verdict)
    assert verdict.results.status == "equal"
    assert verdict.results.method == "float64 reference"
    assert verdict.results.baseline_error is not None
    assert 0 < verdict.results.baseline_error < 1e-5
    assert verdict.results.compared == 64 * 32


def test_a_mean_near_zero_may_err_as_its_rounding_does() -> None:
    x = torch.randn(100_000)
    x -= x.mean()  # what is left of the mean is rounding and nothing else
    verdict = verdict_on(lambda: x.mean(), lambda: x.view(100, 1000).mean(1).mean())
    assert verdict.results.ok, verdict.results
    assert verdict.results.strength == "weak"


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_attention_equals_attention_written_out(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 64, 32, dtype=dtype) for _ in range(3))
    verdict = verdict_on(written_out, F.scaled_dot_product_attention, q, k, v)
    assert verdict.results.ok, verdict.results
    assert not verdict.failed
    if dtype is torch.float32:
        assert verdict.results.strength == "strong"


def test_channels_last_is_the_same_picture() -> None:
    conv, x = nn.Conv2d(8, 16, 3), torch.randn(2, 8, 24, 24)
    last, x_last = nn.Conv2d(8, 16, 3), x.to(memory_format=torch.channels_last)
    last.load_state_dict(conv.state_dict())
    last = last.to(memory_format=torch.channels_last)
    assert_right(verdict_on(lambda: conv(x), lambda: last(x_last)))


def test_half_precision_needs_a_declared_tolerance_and_passes_with_it() -> None:
    x, w = torch.randn(64, 256), torch.randn(256, 64)

    def half() -> Tensor:
        return (x.half() @ w.half()).float()

    assert verdict_on(lambda: x @ w, half).results.status == "different"
    verdict = verdict_on(lambda: x @ w, half, rtol=5e-3)
    assert_right(verdict)
    assert verdict.results.status == "within tolerance"
    assert verdict.results.method == "declared tolerance"


def test_a_lower_dtype_is_compared_by_value_and_noted() -> None:
    x, w = torch.randn(64, 256), torch.randn(256, 64)
    verdict = verdict_on(lambda: x @ w, lambda: (x @ w).bfloat16(), rtol=1e-2)
    assert verdict.results.ok
    assert "bfloat16 where the baseline's is float32" in verdict.results.detail


def test_a_model_in_bfloat16() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).bfloat16()
    x = torch.randn(32, 64, dtype=torch.bfloat16)

    def by_hand() -> Tensor:
        hidden = F.gelu(x @ model[0].weight.t() + model[0].bias)
        return hidden @ model[2].weight.t() + model[2].bias

    verdict = verdict_on(lambda: model(x), by_hand)
    assert verdict.results.ok, verdict.results
    assert not verdict.failed


class ModelOutput(OrderedDict[str, Any]):
    """As transformers' outputs: a dict that also reads by attribute."""


def test_outputs_like_a_hugging_face_models() -> None:
    head, x = nn.Linear(16, 10), torch.randn(4, 16)

    def model() -> ModelOutput:
        return ModelOutput(logits=head(x), hidden=(x, head(x) + 1), note="as is", past=None)

    def with_tuple() -> tuple[Any, ...]:
        return (head(x), x, head(x) + 1)

    assert_right(verdict_on(model, model))
    verdict = verdict_on(model, with_tuple)
    assert_right(verdict)
    assert "compared in order" in verdict.results.detail


def test_the_same_tensor_in_a_list_is_still_the_same() -> None:
    x = torch.randn(64)
    assert_right(verdict_on(lambda: x * 2, lambda: [x * 2]))


def test_an_in_place_operation_on_a_clone() -> None:
    x = torch.randn(100)
    assert_right(verdict_on(lambda: x.relu(), lambda: x.clone().relu_()))


def test_dropout_in_training_mode_draws_the_same_numbers_from_the_same_seed() -> None:
    drop, x = nn.Dropout(0.5), torch.randn(256)
    verdict = verdict_on(lambda: drop(x) * 2, lambda: 2 * F.dropout(x, 0.5, training=True))
    assert_right(verdict)


def test_dropout_drawn_in_another_way_cannot_be_compared() -> None:
    x = torch.randn(256)

    def other() -> Tensor:
        return x * (torch.rand(256) > 0.5) * 2

    verdict = verdict_on(lambda: F.dropout(x, 0.5), other)
    assert verdict.results.status == "not compared"
    assert verdict.results.strength == "none"
    assert "eval mode" in verdict.results.reasons[0]
    assert not verdict.failed


def test_batch_norm_in_training_mode() -> None:
    def factory() -> Callable[[], Tensor]:
        norm, x = nn.BatchNorm1d(32), torch.randn(64, 32)
        return lambda: norm(x)

    verdict = judged(built(factory), built(factory))
    assert_right(verdict)
    changed = {changed.name for changed in verdict.baseline.state}
    assert changed == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.mark.parametrize("value", [np.arange(12.0), np.float32(3), [0.5] * 9, {"a": 1, "b": "c"}])
def test_what_is_no_tensor_is_compared_too(value: Any) -> None:
    verdict = verdict_on(lambda: value, lambda: value)
    assert verdict.results.status == "bit-identical"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: torch.complex(x, x),
        lambda x: x > 0,
        lambda x: (x * 100).to(torch.int32),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x.double(),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    ],
)
def test_every_kind_of_tensor_equals_itself_and_not_its_half(
    make: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(16, 16)
    assert verdict_on(lambda: make(x), lambda: make(x * 1)).results.ok
    assert verdict_on(lambda: make(x), lambda: make(-x / 2)).results.status == "different"


def test_a_baseline_that_varies_a_little_widens_what_is_allowed() -> None:
    x = torch.randn(1000)
    noise = np.random.default_rng(0)
    hidden = iter(noise.normal(size=1000))  # an iterator cannot be put back

    def wobbling() -> Tensor:
        return x * (1 + 1e-3 * abs(next(hidden)))

    verdict = verdict_on(wobbling, lambda: x * 1.0005)
    assert verdict.results.ok, verdict.results
    assert "apart" in verdict.results.detail


def test_a_baseline_that_varies_a_lot_cannot_be_compared_with() -> None:
    x, hidden = torch.randn(1000), iter(range(1000))

    def wild() -> Tensor:
        return x * next(hidden)

    verdict = verdict_on(wild, lambda: x)
    assert verdict.results.status == "not compared"
    assert "not repeatable" in verdict.results.reasons[0]


def test_nan_in_the_same_places_agrees_and_is_noted() -> None:
    x = torch.randn(64, 64)
    x[0, :8] = torch.nan
    verdict = verdict_on(lambda: x * 2, lambda: x + x)
    assert_right(verdict)
    assert "NaN" in verdict.guards["NaN as wildcard"].detail


def test_mostly_nan_is_weak() -> None:
    x = torch.full((64,), torch.nan)
    x[:16] = torch.randn(16)
    verdict = verdict_on(lambda: x * 2, lambda: x + x)
    assert verdict.results.ok
    assert verdict.results.strength == "weak"
    assert "75 % of the numbers are NaN" in verdict.results.reasons[0]


def test_infinities_of_a_mask_agree() -> None:
    x = torch.randn(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    assert_right(verdict_on(lambda: x + 1, lambda: 1 + x))
