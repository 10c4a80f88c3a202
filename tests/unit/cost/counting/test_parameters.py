"""Parameters and buffers, each storage once."""

import pytest
import torch
from torch import nn

from ridgeline.cost.counting import count
from ridgeline.cost.counting.parameters import count_by_module, count_parameters
from tests.models.blocks import FourTimes, TiedHead


def test_a_layer_by_hand() -> None:
    found = count_parameters(nn.Linear(3, 5))
    assert (found.total, found.trainable, found.frozen, found.tied) == (20, 20, 0, 0)
    assert found.parameter_bytes == 80
    assert found.by_dtype == {"float32": 20}


def test_a_tied_matrix_counts_once_and_says_so() -> None:
    found = count_parameters(TiedHead(11, 4))
    assert (found.total, found.tied, found.parameter_bytes) == (44, 44, 176)


def test_weights_that_are_different_views_of_one_storage_count_separately() -> None:
    """Two halves of one flat tensor, as flat-parameter schemes make them, are not tied."""
    flat = torch.zeros(20)
    model = nn.Module()
    model.a, model.b = nn.Parameter(flat[:10]), nn.Parameter(flat[10:])
    found = count_parameters(model)
    assert (found.total, found.tied, found.parameter_bytes) == (20, 0, 80)


def test_two_parameters_over_the_same_view_are_tied() -> None:
    flat = torch.zeros(10)
    model = nn.Module()
    model.a, model.b = nn.Parameter(flat), nn.Parameter(flat.view(2, 5))
    found = count_parameters(model)
    assert (found.total, found.tied) == (10, 10)


def test_frozen_parameters_are_counted_separately() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    found = count_parameters(model)
    assert (found.total, found.trainable, found.frozen) == (32, 12, 20)


def test_dtypes_have_their_own_sizes() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False).bfloat16())
    found = count_parameters(model)
    assert found.by_dtype == {"float32": 16, "bfloat16": 8}
    assert found.parameter_bytes == 64 + 16


def test_buffers_are_not_parameters() -> None:
    found = count_parameters(nn.BatchNorm1d(6))
    assert (found.total, found.buffers) == (12, 13)
    assert found.buffer_bytes == 4 * 12 + 8


def test_a_shared_buffer_counts_once() -> None:
    model = nn.Sequential(nn.Module(), nn.Module())
    shared = torch.zeros(7)
    model[0].register_buffer("a", shared)
    model[1].register_buffer("a", shared)
    model[1].register_buffer("same_memory", shared.view(7))
    assert count_parameters(model).buffers == 7


def test_a_buffer_over_a_parameter_counts_as_the_parameter() -> None:
    model = nn.Linear(3, 3, bias=False)
    model.register_buffer("alias", model.weight.detach())
    found = count_parameters(model)
    assert (found.total, found.buffers) == (9, 0)


def test_lazy_parameters_have_no_size_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    assert count_parameters(model).total == 10
    model(torch.zeros(1, 3))
    assert count_parameters(model).total == 10 + 16


def test_on_meta_weights_count_but_take_nothing() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2**20, 2**20, bias=False), nn.Linear(2**20, 1, bias=False))
    found = count_parameters(model)
    assert (found.total, found.tied) == (2**40 + 2**20, 0)


def test_a_module_without_parameters() -> None:
    found = count_parameters(nn.ReLU())
    assert (found.total, found.buffers, found.by_dtype) == (0, 0, {})


def test_each_module_owns_what_is_below_it_once() -> None:
    model = nn.Sequential(FourTimes(4), nn.Linear(4, 1))
    model.again = model[0]
    found = count_by_module(model)
    assert found[""] == 25
    assert found["0"] == found["0.layer"] == 20
    assert found["1"] == 5


def test_lazy_modules_learn_their_shapes_when_counted() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    account = count(model, (torch.zeros(3, 5),))
    assert account.parameters.total == (5 * 4 + 4) + (4 * 2 + 2)
    assert account.cost.phases["forward"].macs == 3 * 5 * 4 + 3 * 4 * 2
    assert account.memory.parameters_bytes == 4 * 34


@pytest.mark.skipif(
    torch.backends.quantized.engine == "none", reason="this torch cannot run quantised layers"
)
def test_dynamically_quantised_layers_keep_their_weights_packed() -> None:
    plain = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    account = count(model, (torch.zeros(8, 32),))
    weights, biases = 32 * 64 + 64 * 10, 64 + 10
    assert account.parameters.total == weights + biases
    assert account.parameters.by_dtype == {"qint8": weights, "float32": biases}
    assert account.parameters.parameter_bytes == weights + 4 * biases
    assert account.memory.parameters_bytes == weights + 4 * biases
    assert account.memory.peak_bytes >= weights + 4 * biases + 4 * 8 * 32
    assert account.cost.phases["forward"].macs == 8 * weights
