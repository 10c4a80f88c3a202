"""What a user might have in net.py: small models whose costs can be worked out by hand."""

import atexit
import os

import torch
import torch.nn.functional as F
from torch import nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Brings its own inputs: 2 images of 3 x 8 x 8."""
    body = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    return nn.Sequential(body, nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)), torch.randn(2, 3, 8, 8)


class Attention(nn.Module):
    """One head of causal attention over [batch, sequence, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Language(nn.Module):
    """A bigram model: tokens in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


class Chatty(nn.Module):
    """Prints at every turn, as people debugging do."""

    def __init__(self) -> None:
        super().__init__()
        print("BUILDING")
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("FORWARD", x.shape)
        return self.linear(x)


class Routed(nn.Module):
    """Sends each row where its values say: no shape is known before the data is."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.sum(-1) > 0
        out = torch.empty_like(x)
        for expert, chosen in ((self.positive, rows), (self.negative, ~rows)):
            index = chosen.nonzero().squeeze(-1)
            out = out.index_copy(0, index, expert(x[index]))
        return out


def huge() -> nn.Module:
    """4 TiB of weights: more than any machine these tests will meet."""
    return nn.Linear(2**20, 2**20, bias=False)


class Shouting(Chatty):
    """A child process of its own writes to the stdout that it inherited."""

    def __init__(self) -> None:
        super().__init__()
        os.system("echo FROM A CHILD")


def pooled() -> nn.Module:
    """Takes images of any size."""
    body = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


class Unruly(nn.Module):
    """Writes to stdout in every way that goes around Python's: a child, the descriptor, and once
    more when the program ends."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        atexit.register(print, "AT EXIT")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.system("echo FROM A CHILD")
        os.write(1, b"TO THE DESCRIPTOR\n")
        return self.linear(x)
