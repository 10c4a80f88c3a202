"""Layouts that a candidate changes on a model whose optimizer has state already."""

from functools import partial

import pytest
import torch
from torch import nn

from ridgeline.harness.race.live_changes import LiveChanges


def strides_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[tuple[int, ...]]:
    """Return the strides of the convolution's weight, of its gradient and of its moments."""
    weight = model.get_parameter("0.weight")
    assert weight.grad is not None
    state = optimizer.state[weight]
    return {one.stride() for one in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])}


@pytest.mark.parametrize("times", [0, 1, 3])
def test_moments_and_gradients_follow_their_parameter(times: int) -> None:
    """A fused update refuses tensors whose strides differ, as soon as the fix is applied."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    images = torch.randn(2, 3, 8, 8)
    model(images)
    optimizer = torch.optim.AdamW(model.parameters())
    model(images).sum().backward()
    optimizer.step()
    before = strides_of(model, optimizer)
    values = optimizer.state[model[0].weight]["exp_avg"].clone()

    changes = LiveChanges(torch)
    lay_out = partial(model.to, memory_format=torch.channels_last)
    changes.record(lambda: lay_out() and None, modules=[model], optimizers=[optimizer])
    for _ in range(times):
        changes.take_off()
        assert strides_of(model, optimizer) == before
        changes.put_on()

    assert strides_of(model, optimizer) == {(27, 1, 9, 3)}
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], values)
