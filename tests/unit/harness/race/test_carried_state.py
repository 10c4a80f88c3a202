"""State that a program hands from step to step, under candidates of other types."""

import pickle

import torch
from torch import nn

from ridgeline.harness.race.carried_state import CarriedState


def test_a_state_in_16_bits_is_cast_back_to_the_type_of_the_baseline() -> None:
    cell, carried = nn.GRUCell(4, 8), CarriedState(torch)
    carried.follow(cell)
    x, state = torch.randn(2, 4), torch.zeros(2, 8)
    assert carried.cast((cell, x, state), {})[0][2] is state
    carried.settle()
    (same, first, second), _ = carried.cast((cell, x, state.bfloat16()), {})
    assert same is cell
    assert first is x
    assert second.dtype == torch.float32
    assert cell(first, second).dtype == torch.float32


def test_named_arguments_are_cast_too_and_integers_left_alone() -> None:
    cell, carried = nn.GRUCell(4, 8), CarriedState(torch)
    carried.follow(cell)
    x, tokens = torch.randn(2, 4), torch.ones(2, dtype=torch.long)
    carried.cast((cell,), {"input": x, "tokens": tokens})
    _, kwargs = carried.cast((cell,), {"input": x.half(), "tokens": tokens})
    assert kwargs["input"].dtype == torch.float32
    assert kwargs["tokens"] is tokens


def test_a_model_without_floating_point_arguments_is_not_followed_further() -> None:
    embedding, carried = nn.Embedding(5, 3), CarriedState(torch)
    carried.follow(embedding)
    carried.cast((embedding, torch.tensor([1])), {})
    carried.settle()
    half = torch.ones(2, dtype=torch.bfloat16)
    assert carried.cast((embedding, half), {})[0][1] is half


def test_a_followed_model_can_be_pickled() -> None:
    model, carried = nn.Linear(4, 2), CarriedState(torch)
    carried.follow(model)
    carried.cast((model, torch.randn(1, 4)), {})
    assert pickle.loads(pickle.dumps(model)).weight.shape == (2, 4)
