"""Dropout that drops nothing, and what it counts."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ridgeline.harness.trials.random_draws import NoDropout
from ridgeline.optimization.function_state import SavedProcess


@pytest.fixture
def undropped() -> Iterator[NoDropout]:
    process = SavedProcess(torch)
    found = NoDropout(torch)
    found.install()
    yield found
    process.restore()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.25), nn.Dropout(0.25, inplace=True), nn.Dropout1d(0.25), nn.AlphaDropout(0.25),
        nn.FeatureAlphaDropout(0.25),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_every_kind_drops_nothing_and_counts(undropped: NoDropout, layer: nn.Module) -> None:
    given = torch.randn(4, 8, 16)
    assert torch.equal(layer(given.clone()), given)
    assert undropped.asked_elements == 128


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.Dropout2d, (2, 4, 8, 8)), (nn.Dropout3d, (8,) * 5)]
)
def test_whole_channels_are_not_dropped_either(
    undropped: NoDropout, kind: Any, shape: tuple[int, ...]
) -> None:
    given = torch.randn(shape)
    assert torch.equal(kind(0.5)(given), given)
    assert undropped.asked_elements == given.numel() // 2


def test_functions_keep_the_defaults_of_their_arguments(undropped: NoDropout) -> None:
    nn.functional.dropout2d(torch.ones(2, 4, 8, 8))
    assert undropped.asked_elements == 256
    nn.functional.feature_alpha_dropout(torch.ones(2, 4, 8, 8))
    assert undropped.asked_elements == 256


def test_nothing_is_counted_in_evaluation(undropped: NoDropout) -> None:
    nn.Dropout(0.5).eval()(torch.ones(8))
    nn.functional.alpha_dropout(torch.ones(8))  # which drops only where it is told to
    assert undropped.asked_elements == 0


def test_attention_is_asked_for_as_many_as_its_weights_are(undropped: NoDropout) -> None:
    """Written out or fused: the same elements."""
    functional = import_module("torch.nn.functional")
    q, k, v = (torch.randn(3, 4, length, 8) for length in (6, 10, 10))
    fused = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    asked, undropped.asked_elements = undropped.asked_elements, 0
    weights = functional.dropout((q @ k.mT / 8**0.5).softmax(-1), p=0.5)
    assert asked == undropped.asked_elements == 3 * 4 * 6 * 10 // 2
    torch.testing.assert_close(weights @ v, fused)


def test_layers_of_torch_drop_nothing(undropped: NoDropout) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    given = torch.randn(2, 5, 16)
    assert torch.equal(layer(given), layer(given))
    assert undropped.asked_elements > 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_nothing_is_dropped_between_recurrent_layers(
    undropped: NoDropout, kind: Any, packed: bool
) -> None:
    torch.manual_seed(0)
    layer = kind(4, 6, num_layers=3, dropout=0.5)
    given: Any = torch.randn(5, 2, 4)
    if packed:
        given = nn.utils.rnn.pack_padded_sequence(given, torch.tensor([5, 3]))
    one, other = (layer(given)[0] for _ in range(2))
    if packed:
        one, other = one.data, other.data
    assert torch.equal(one, other)
    assert undropped.asked_elements == 2 * 2 * one.numel() // 2
    assert layer.dropout == 0.5


def test_what_a_backward_computes_again_is_counted_once(undropped: NoDropout) -> None:
    given = torch.ones(64, requires_grad=True)
    checkpoint(nn.Dropout(0.5), given, use_reentrant=False).sum().backward()
    assert undropped.asked_elements == 32


def test_what_is_done_in_place_afterwards_leaves_the_input_alone(undropped: NoDropout) -> None:
    given = torch.ones(8, requires_grad=True)
    hidden = given.exp()
    dropped = nn.Dropout(0.5)(hidden)
    dropped += 1
    (hidden * dropped).sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(given.grad, given.exp() * (2 * given.exp() + 1))
    inplace = nn.Dropout(0.5, inplace=True)(hidden.detach())
    assert inplace.data_ptr() == hidden.data_ptr()


def test_all_is_put_back() -> None:
    before = (nn.functional.dropout, nn.functional.scaled_dot_product_attention, nn.LSTM.forward)
    process = SavedProcess(torch)
    NoDropout(torch).install()
    assert nn.functional.dropout is not before[0]
    process.restore()
    after = (nn.functional.dropout, nn.functional.scaled_dot_product_attention, nn.LSTM.forward)
    assert after == before
