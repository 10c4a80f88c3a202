"""What training costs beyond forward, against arithmetic done by hand.

A linear map of m MACs costs m for its weight's gradient and m for its input's. The input of the
model needs no gradient, so the first layer pays once; a frozen layer pays only for its input. These
rules are derived here for each model: no ratio is assumed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ridgeline.cost.counting import count
from ridgeline.records.cost import Cost, Totals
from tests.models import matrix, vision
from tests.models.blocks import (
    CheckpointedMLP,
    FourTimes,
    MixtureOfExperts,
    Product,
    SelfAttention,
    TiedHead,
)
from tests.models.row import EVERYWHERE, Apply, Backend, attention, convolution, linear

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
randn = torch.randn


class Macs(NamedTuple):
    forward: int
    recompute: int
    backward: int


def trained(model: nn.Module, args: tuple[Any, ...], backend: Backend = "real") -> Cost:
    return count(model, args, backend=backend, training=True).cost


def macs(cost: Cost) -> Macs:
    phases = cost.phases
    return Macs(*(phases.get(phase, Totals()).macs for phase in Macs._fields))


def chain() -> nn.Sequential:
    """Three linear maps of 4800, 2400 and 360 MACs on 5 rows."""
    return nn.Sequential(
        nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 12), nn.ReLU(), nn.Linear(12, 6)
    )


FIRST, SECOND, THIRD = linear(5, 24, 40), linear(5, 40, 12), linear(5, 12, 6)


@everywhere
def test_the_first_layer_of_a_chain_has_no_input_gradient(backend: Backend) -> None:
    cost = trained(chain(), (randn(5, 24),), backend)
    forward = FIRST + SECOND + THIRD
    assert macs(cost) == (forward, 0, 2 * forward - FIRST)
    assert cost.unformulated == ()
    assert cost.coverage_percent == 100


@everywhere
def test_an_input_that_requires_a_gradient_adds_its_work(backend: Backend) -> None:
    cost = trained(chain(), (randn(5, 24, requires_grad=True),), backend)
    forward = FIRST + SECOND + THIRD
    assert macs(cost) == (forward, 0, 2 * forward)


@everywhere
def test_a_frozen_layer_pays_only_for_its_input(backend: Backend) -> None:
    model = chain()
    model[2].requires_grad_(False)
    cost = trained(model, (randn(5, 24),), backend)
    assert macs(cost).backward == FIRST + SECOND + 2 * THIRD


@everywhere
def test_frozen_layers_before_every_trained_one_pay_nothing(backend: Backend) -> None:
    model = chain()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    cost = trained(model, (randn(5, 24),), backend)
    assert macs(cost).backward == THIRD


@everywhere
def test_convolutions_with_batch_norm(backend: Backend) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2)
    )
    first = convolution(2, 3, 8, (3, 3), (10, 10))
    second = convolution(2, 8, 12, (3, 3), (4, 4))
    cost = trained(model, (randn(2, 3, 10, 10),), backend)
    assert macs(cost) == (first + second, 0, first + 2 * second)
    assert cost.unformulated == ()


@everywhere
def test_transposed_convolutions(backend: Backend) -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 3, stride=3)
    )
    first = convolution(2, 6, 8, (4, 4), (9, 9))
    second = convolution(2, 8, 3, (3, 3), (18, 18))
    cost = trained(model, (randn(2, 6, 9, 9),), backend)
    assert macs(cost) == (first + second, 0, first + 2 * second)


def test_resnet_backward_is_twice_forward_except_for_the_stem() -> None:
    forward = vision.resnet18_macs(1, 64)
    stem = convolution(1, 3, 64, (7, 7), (32, 32))
    model, _ = vision.resnet18_small()
    cost = trained(model, (randn(2, 3, 64, 64),), "fake")
    assert macs(cost) == (2 * forward, 0, 2 * (2 * forward - stem))


STEPS, BATCH, INPUTS, HIDDEN = 7, 3, 10, 12


@everywhere
def test_gru_backward_has_one_step_less_than_forward(backend: Backend) -> None:
    """The first hidden state is zeros, which need no gradient; neither does the input."""
    from_input = STEPS * linear(BATCH, INPUTS, 3 * HIDDEN)
    one_step = linear(BATCH, HIDDEN, 3 * HIDDEN)
    cost = trained(nn.GRU(INPUTS, HIDDEN), (randn(STEPS, BATCH, INPUTS),), backend)
    assert macs(cost) == (
        from_input + STEPS * one_step,
        0,
        from_input + STEPS * one_step + (STEPS - 1) * one_step,
    )


def test_lstm_as_one_operator_computes_every_gradient() -> None:
    """oneDNN's backward has no mask: the input's gradient is made although nobody needs it."""
    forward = STEPS * linear(BATCH, INPUTS + HIDDEN, 4 * HIDDEN)
    cost = trained(nn.LSTM(INPUTS, HIDDEN), (randn(STEPS, BATCH, INPUTS),), "real")
    assert macs(cost) == (forward, 0, 2 * forward)


def test_lstm_step_by_step_has_the_backward_of_a_gru() -> None:
    from_input = STEPS * linear(BATCH, INPUTS, 4 * HIDDEN)
    one_step = linear(BATCH, HIDDEN, 4 * HIDDEN)
    cost = trained(nn.LSTM(INPUTS, HIDDEN), (randn(STEPS, BATCH, INPUTS),), "meta")
    forward = from_input + STEPS * one_step
    assert macs(cost) == (forward, 0, forward + (STEPS - 1) * one_step)


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.qkv = nn.Linear(24, 3 * 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


PROJECTION, CORE = linear(3 * 10, 24, 3 * 24), attention(3, 10, 10, 24)


@everywhere
def test_flash_attention_recomputes_its_scores_in_backward(backend: Backend) -> None:
    """Softmax(q kᵀ) v is two products, and two more for each of them backward. Flash keeps no
    scores, so a fifth product makes them again: 2.5 × forward in all, of which 0.5 × recompute."""
    cost = trained(Attention(dropout=0.0), (randn(3, 10, 24),), backend)
    assert macs(cost) == (PROJECTION + CORE, CORE // 2, PROJECTION + 2 * CORE)


@pytest.mark.parametrize("backend", ["real", "fake"])
def test_attention_with_dropout_keeps_its_scores(backend: Backend) -> None:
    """The CPU's flash kernel declines dropout; the plain path goes back in four products."""
    cost = trained(Attention(dropout=0.1), (randn(3, 10, 24),), backend)
    assert macs(cost) == (PROJECTION + CORE, 0, PROJECTION + 2 * CORE)


@everywhere
def test_multihead_attention_trains_through_flash_on_every_backend(backend: Backend) -> None:
    cost = trained(SelfAttention(24, 4), (randn(3, 10, 24),), backend)
    out = linear(3 * 10, 24, 24)
    assert macs(cost) == (
        PROJECTION + CORE + out,
        CORE // 2,
        PROJECTION + 2 * CORE + 2 * out,
    )


@pytest.mark.parametrize("backend", ["real", "fake"])
def test_transformer_encoder_with_dropout_keeps_its_scores(backend: Backend) -> None:
    block = nn.TransformerEncoderLayer(24, 4, dim_feedforward=56, batch_first=True)
    model = nn.TransformerEncoder(block, num_layers=2)
    layer = PROJECTION + CORE + linear(3 * 10, 24, 24) + 2 * linear(3 * 10, 24, 56)
    cost = trained(model, (randn(3, 10, 24),), backend)
    assert macs(cost) == (2 * layer, 0, 2 * 2 * layer - PROJECTION)


BLOCK_LAYER = linear(5, 24, 40)


@everywhere
def test_checkpointing_stops_early_at_the_last_tensor_it_needs(backend: Backend) -> None:
    """Of each block's two layers, only the first is run again: nothing saved follows the second."""
    cost = trained(CheckpointedMLP(24, 40, blocks=3), (randn(5, 24),), backend)
    forward = 3 * 2 * BLOCK_LAYER
    assert macs(cost) == (forward, forward // 2, 2 * forward - BLOCK_LAYER)


@everywhere
def test_reentrant_checkpointing_runs_whole_blocks_again(backend: Backend) -> None:
    """It needs an input that takes gradients, hence the layer in front."""
    model = nn.Sequential(nn.Linear(24, 24), CheckpointedMLP(24, 40, blocks=3, reentrant=True))
    cost = trained(model, (randn(5, 24),), backend)
    front, blocks = linear(5, 24, 24), 3 * 2 * BLOCK_LAYER
    assert macs(cost) == (front + blocks, blocks, front + 2 * blocks)


@everywhere
def test_tied_weights_get_a_gradient_from_each_use(backend: Backend) -> None:
    """The lookup's is a scatter, without MACs; the head's and its input's are products."""
    head = linear(2 * 5, 24, 97)
    cost = trained(TiedHead(97, 24), (torch.randint(0, 97, (2, 5)),), backend)
    assert macs(cost) == (head, 0, 2 * head)


@everywhere
def test_a_custom_function_costs_what_its_own_backward_does(backend: Backend) -> None:
    """It computes the input's gradient unasked."""
    cost = trained(Apply(Product.apply, randn(24, 40)), (randn(5, 24),), backend)
    assert macs(cost) == (linear(5, 24, 40), 0, 2 * linear(5, 24, 40))


@everywhere
def test_a_layer_used_four_times_gets_four_gradients(backend: Backend) -> None:
    """And gives three to its inputs: the model's own needs none."""
    cost = trained(FourTimes(24), (randn(5, 24),), backend)
    assert macs(cost) == (4 * linear(5, 24, 24), 0, (4 + 3) * linear(5, 24, 24))


def test_a_compiled_model_trains_for_what_it_costs_uncompiled() -> None:
    model, args = matrix.compiled()
    cost = trained(model, args)
    first, second = linear(5, 256, 384), linear(5, 384, 128)
    assert macs(cost) == (first + second, 0, first + 2 * second)


def test_experts_cost_the_rows_routed_to_them() -> None:
    router, layer = linear(15, 24, 4), 15 * 2 * linear(1, 24, 40)
    model = MixtureOfExperts(24, 40, experts=4, top_k=2)
    cost = trained(model, (randn(15, 24),))
    assert macs(cost) == (router + 2 * layer, 0, router + layer + 2 * layer)


@everywhere
def test_modules_add_up_to_the_total_in_every_phase(backend: Backend) -> None:
    model = nn.Sequential(chain(), nn.Linear(6, 24), CheckpointedMLP(24, 40, blocks=2))
    cost = trained(model, (randn(5, 24),), backend)
    paths = {m.path for m in cost.modules}
    leaves = [m for m in cost.modules if not any(p.startswith(f"{m.path}.") for p in paths)]
    leaves = [m for m in leaves if m.path]
    for phase in ("forward", "recompute", "backward"):
        total = cost.phases[phase].macs
        assert total > 0
        assert sum(m.phases.get(phase, Totals()).macs for m in leaves) == total
        whole = next(m for m in cost.modules if m.path == "")
        assert whole.phases[phase].macs == total


@everywhere
def test_backward_is_filed_under_the_layer_it_belongs_to(backend: Backend) -> None:
    cost = trained(chain(), (randn(5, 24),), backend)
    back = {m.path: m.phases["backward"].macs for m in cost.modules if "backward" in m.phases}
    assert (back["0"], back["2"], back["4"]) == (FIRST, 2 * SECOND, 2 * THIRD)


@dataclass
class Inner:
    logits: Tensor


@dataclass
class Outer:
    inner: Inner
    name: str = "a label"


class TwoStage(nn.Module):
    """A body of 32 MACs and a head of 24; what it returns is up to the test."""

    def __init__(self, returned: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.returned = returned
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return self.returned(hidden, self.head(hidden))


BODY_ALONE, ALL = 32, 32 + 2 * 24
"""The body's input needs no gradient; the head pays for its weight and its input."""


@everywhere
def test_backward_starts_from_an_output_inside_nested_dataclasses(backend: Backend) -> None:
    cost = trained(TwoStage(lambda h, y: Outer(Inner(y))), (randn(2, 4),), backend)
    assert macs(cost) == (32 + 24, 0, ALL)


@everywhere
@pytest.mark.parametrize(
    ("returned", "backward"),
    [
        (lambda h, y: {"logits": y, "score": h.sum()}, BODY_ALONE),
        (lambda h, y: (y, h.sum()), BODY_ALONE),
        (lambda h, y: {"loss": h.sum(), "other": y.sum()}, BODY_ALONE),
        (lambda h, y: (y, h.sum(), h.mean()), ALL),
        (lambda h, y: {"logits": y, "score": h.sum().detach()}, ALL),
        (lambda h, y: {"logits": y, "hidden": h}, ALL),
    ],
    ids=["scalar in dict", "scalar in tuple", "named loss", "two scalars", "detached", "none"],
)
def test_backward_starts_from_the_loss_or_else_from_all_outputs(
    returned: Callable[[Tensor, Tensor], Any], backward: int, backend: Backend
) -> None:
    assert macs(trained(TwoStage(returned), (randn(2, 4),), backend)).backward == backward
