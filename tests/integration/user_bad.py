"""What can be wrong with a user's target."""

import sys

import torch
from torch import nn

number = 7


def fine() -> nn.Module:
    return nn.Linear(4, 4)


def raises() -> nn.Module:
    raise ValueError("no such checkpoint")


def leaves() -> nn.Module:
    sys.exit("I am a script")


def gives_text() -> str:
    return "a model"


def needs_argument(width: int) -> nn.Module:
    return nn.Linear(width, width)


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("the forward is broken")


class ValueAsked(nn.Module):
    """Branches on a value, which a tensor without data does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y * 2 if y.sum().item() > 0 else y


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


class Leaves(nn.Module):
    """Ends the program from inside its forward, as an unfinished script does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit("bye")


class Detached(nn.Module):
    """Has parameters, and an output that none of them can learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).detach()


class DislikesFour(nn.Module):
    """Fails for one size of batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 4:
            raise ValueError("four is too many")
        return self.linear(x)
