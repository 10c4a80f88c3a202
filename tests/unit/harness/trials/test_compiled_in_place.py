"""Compiling a model where it stands: also one whose class is torch's own."""

import sys

import pytest
import torch
from torch import nn

from ridgeline.fixes.compiling import compile_in_place, statement


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("model", [Net(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())])
def test_a_module_is_really_compiled_whoever_wrote_its_class(model: nn.Module) -> None:
    keys, given = list(model.state_dict()), torch.randn(3, 2)
    plain = model(given)
    torch._dynamo.reset()
    counters = sys.modules["torch._dynamo.utils"].counters
    counters.clear()
    compile_in_place(torch, model, {"backend": "eager"})
    assert torch.equal(model(given), plain)
    assert counters["stats"]["unique_graphs"] == 1
    assert list(model.state_dict()) == keys


def test_the_source_says_what_compiles_such_a_class() -> None:
    assert statement("Net", "model") == "model.compile()"
    written = statement("Sequential", "model", 'mode="max-autotune", dynamic=True')
    assert written == (
        'model.forward = torch.compile(model.forward, mode="max-autotune", dynamic=True)'
    )
    assert statement("Sequential", "m") == "m.forward = torch.compile(m.forward)"
