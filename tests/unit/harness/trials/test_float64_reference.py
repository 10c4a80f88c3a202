"""The model is asked what it says before the first step, and is left as it was."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ridgeline.harness.trials.float64_reference import Float64Reference, undisturbed


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def _asked(module: nn.Module, x: Tensor) -> Float64Reference:
    anchor = Float64Reference(torch)
    anchor.begin(module, (x,), {})
    anchor.changed(module, (x,), {})
    return anchor


def test_an_unchanged_model_errs_as_float32_does() -> None:
    anchor = _asked(_net(), torch.randn(4, 6))
    assert anchor.missing == ""
    assert anchor.error is not None
    assert 0 < anchor.error < 1e-6
    assert anchor.outputs[0] > 0


def test_a_change_of_the_model_shows_in_its_error() -> None:
    net, x = _net(), torch.randn(4, 6)
    anchor = Float64Reference(torch)
    anchor.begin(net, (x,), {})
    with torch.no_grad():
        net[3].weight.copy_(net[3].weight.bfloat16())
    anchor.changed(net, (x,), {})
    assert anchor.error is not None
    assert anchor.error > 1e-4


def test_the_program_does_not_notice() -> None:
    net, x = _net(), torch.randn(4, 6)
    net[2].eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    kept = list(net.parameters())
    _asked(net, x)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(net.state_dict()[name], state[name]) for name in state)
    assert all(one is other for one, other in zip(net.parameters(), kept, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert np.random.get_state()[1].tolist() == drawn[2]


class _Counts(nn.Module):
    """Draws, and counts its calls in a buffer, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x + torch.rand_like(x) * random.random())


def test_buffers_and_draws_are_put_back() -> None:
    module = _Counts()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with undisturbed(torch, module):
        module(torch.ones(1, 2))
    assert module.calls == 0
    assert torch.equal(torch.rand(3), expected)


class _Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.constant = torch.ones(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.constant


def test_a_model_that_cannot_be_float64_says_so() -> None:
    anchor = _asked(_Constant(), torch.ones(1, 2))
    assert anchor.error is None
    assert anchor.missing.startswith("no float64 reference: RuntimeError")
    assert anchor.outputs  # the jitter's are still compared


def test_a_model_with_hooks_of_the_programs_own_is_not_called() -> None:
    net = _net()
    calls: list[int] = []
    net[0].register_forward_hook(lambda *_: calls.append(1))
    anchor = _asked(net, torch.randn(4, 6))
    assert calls == []
    assert anchor.outputs == ()
    assert anchor.missing == "no float64 reference: the program has hooks on its model"


def test_operators_that_are_not_torchs_own_do_not_see_float64() -> None:
    seen: list[torch.dtype] = []

    @torch.library.custom_op("ridgeline_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return x * 2

    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return twice(self.layer(x))

    anchor = _asked(Custom(), torch.ones(1, 2))
    assert "not torch's own" in anchor.missing
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_stay_tied(tied: bool) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x))

    anchor = _asked(Tied(), torch.arange(7))
    assert anchor.error is not None
    assert anchor.error < 1e-6
