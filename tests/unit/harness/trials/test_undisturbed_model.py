import torch
from torch import nn

from ridgeline.harness.trials.float64_reference import undisturbed


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.calls = 0
        self.register_buffer("state", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x
        self.state = self.state + 1
        return self.inner(x)


def test_what_a_forward_counts_and_keeps_is_put_back() -> None:
    net = Counts()
    before = net.state
    with undisturbed(torch, net):
        net(torch.randn(1, 2))
        assert net.calls == 1
    assert net.calls == 0
    assert not hasattr(net, "last")
    assert net.state is before
    assert net.training
