"""Predicted memory against sums done by hand.

The model is Linear(32, 64), ReLU, Linear(64, 10) on n rows of float32, n large enough that the
activations decide the peak: a hidden tensor is h = 256·n bytes, the output o = 40·n.
"""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ridgeline.cost.counting import count
from ridgeline.records.cost import Memory
from tests.models.row import EVERYWHERE, Backend

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)
N = 4096
HIDDEN, OUT = 256 * N, 40 * N
SECOND = 4 * (640 + 10)
PARAMETERS = 4 * (32 * 64 + 64) + SECOND
STATIC = PARAMETERS + 4 * 32 * N


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def memory(
    model: nn.Module, rows: int = N, backend: Backend = "fake", *, optimizer: str = "", **how: bool
) -> Memory:
    x = torch.zeros(rows, 32)
    return count(model, (x,), backend=backend, optimizer=optimizer, **how).memory


@everywhere
def test_inference_peaks_at_the_activation_function(backend: Backend) -> None:
    """Linear's output is alive while ReLU makes another of the same size."""
    found = memory(mlp(), backend=backend)
    assert found.peak_bytes == STATIC + 2 * HIDDEN
    assert (found.parameters_bytes, found.inputs_bytes) == (PARAMETERS, 128 * N)
    assert (found.peak_phase, found.peak_op, found.peak_module) == ("forward", "aten::relu", "1")
    assert found.at_peak == {
        "parameters": PARAMETERS, "inputs": 128 * N, "activations": 2 * HIDDEN,
    }  # fmt: skip
    assert (found.gradients_bytes, found.optimizer_bytes) == (0, 0)


def test_an_in_place_activation_function_halves_that() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))
    assert memory(model).peak_bytes == STATIC + HIDDEN + OUT


@everywhere
def test_training_peaks_going_back_through_the_activation_function(backend: Backend) -> None:
    """Alive then: ReLU's output (kept), its gradient, the gradient before it; the output and the
    ones it started from; the second layer's gradients, done already."""
    found = memory(mlp(), backend=backend, training=True)
    assert found.activations_bytes == HIDDEN + OUT
    assert found.gradients_bytes == PARAMETERS
    assert found.peak_phase == "backward"
    assert found.peak_bytes == STATIC + 3 * HIDDEN + 2 * OUT + SECOND
    assert sum(found.at_peak.values()) == found.peak_bytes


STATE = {
    "sgd": 0,
    "momentum": PARAMETERS,
    "adam": 2 * PARAMETERS + 4 * 4,
    "adamw": 2 * PARAMETERS + 4 * 4,
    # a step count each; rows and columns of the matrices, all of the vectors
    "adafactor": 4 * (4 + (64 + 32) + 64 + (10 + 64) + 10),
    "adam8bit": 2 * PARAMETERS,  # every tensor is below 4096 elements: kept in float32
}


@everywhere
@pytest.mark.parametrize("optimizer", STATE)
def test_optimizer_state_is_alive_throughout(optimizer: str, backend: Backend) -> None:
    found = memory(mlp(), backend=backend, training=True, optimizer=optimizer)
    assert found.optimizer_bytes == STATE[optimizer]
    assert found.peak_bytes == STATIC + 3 * HIDDEN + 2 * OUT + SECOND + STATE[optimizer]
    assert found.at_peak.get("optimizer", 0) == STATE[optimizer]
    assert found.optimizer == optimizer


def test_with_few_rows_the_optimizers_step_is_the_peak() -> None:
    found = memory(mlp(), rows=1, training=True, optimizer="adam")
    static = PARAMETERS + 4 * 32
    assert found.peak_phase == "optimizer"
    output = 40  # one row, which the caller still holds
    temporaries = found.peak_bytes - static - PARAMETERS - STATE["adam"] - output
    # on a CPU, tensor by tensor: a root and a quotient of the largest at most
    assert 4 * 2048 <= temporaries <= 3 * 4 * 2048
    assert found.temporaries_bytes == temporaries
    assert found.at_peak["gradients"] == PARAMETERS


def test_frozen_layers_have_no_gradients_or_state() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    found = memory(model, training=True, optimizer="momentum")
    assert found.gradients_bytes == found.optimizer_bytes == SECOND


@everywhere
def test_parameters_without_an_effect_on_outputs_have_no_gradients(backend: Backend) -> None:
    model = mlp()
    model.spare = nn.Linear(100, 100)
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    found = memory(model, backend=backend, training=True, optimizer="adam")
    assert found.parameters_bytes == PARAMETERS + 4 * 10_100
    assert found.gradients_bytes == PARAMETERS
    assert found.optimizer_bytes == STATE["adam"]


def test_activations_are_reported_by_module() -> None:
    found = memory(mlp(), training=True)
    assert found.activations_by_module == {"1": HIDDEN, "2": OUT}


def test_checkpointing_keeps_only_the_blocks_ends() -> None:
    class Deep(nn.Module):
        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.kept = kept
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x) if self.kept else checkpoint(block, x, use_reentrant=False)
            return x

    end = 128 * N
    plain = memory(Deep(True), training=True)
    checkpointed = memory(Deep(False), training=True)
    assert plain.activations_bytes == 4 * (HIDDEN + end)
    assert checkpointed.activations_bytes == 4 * end
    assert checkpointed.peak_bytes < plain.peak_bytes


def test_the_largest_tensors_at_the_peak_are_named() -> None:
    found = memory(mlp(), training=True)
    first = found.largest_at_peak[0]
    assert first.bytes == HIDDEN
    assert first.shape == (N, 64)
    sizes = [t.bytes for t in found.largest_at_peak]
    assert sizes == sorted(sizes, reverse=True)
    assert not {t.kind for t in found.largest_at_peak} & {"parameters", "buffers"}


def test_buffers_and_tied_weights_are_counted_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("scale", torch.ones(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    found = memory(Tied(), rows=1, training=True, optimizer="momentum")
    assert found.parameters_bytes == found.gradients_bytes == found.optimizer_bytes == 4096
    assert found.buffers_bytes == 40


@everywhere
def test_weights_tied_through_their_data_are_in_memory_once(backend: Backend) -> None:
    """Two parameters to torch: each has a gradient and state of its own."""
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
    model[1].weight.data = model[0].weight.data
    account = count(
        model, (torch.zeros(1, 32),), backend=backend, training=True, optimizer="momentum"
    )
    assert (account.parameters.total, account.parameters.tied) == (1024, 1024)
    assert account.memory.parameters_bytes == 4096
    assert account.memory.gradients_bytes == account.memory.optimizer_bytes == 2 * 4096


def test_a_virtual_batch_is_accounted_at_full_size() -> None:
    """Inputs shown again and again (for --fit) weigh little; what the model makes of them does."""
    x = torch.zeros(1, 32).expand(N, 32)
    found = count(mlp(), (x,)).memory
    assert found.peak_bytes - found.inputs_bytes == PARAMETERS + 2 * HIDDEN


@everywhere
def test_on_every_backend_the_prediction_is_the_same(backend: Backend) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    x = torch.zeros(4, 3, 10, 10)
    found = count(model, (x,), backend=backend, training=True).memory
    reference = count(model, (x,), backend="fake", training=True).memory
    assert found.peak_bytes == reference.peak_bytes
    assert found.activations_bytes == reference.activations_bytes
