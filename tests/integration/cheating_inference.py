"""A small program that only answers, with ways of being wrong from its second batch on by its first
argument: what a change that is right at the first batch alone would come to. Run by
test_trials_answers.py, each in its own process.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

cheat = sys.argv[1] if len(sys.argv) > 1 else ""
loop = sys.argv[2] if len(sys.argv) > 2 else "kept"
torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)
        self.place: Tensor | None = None
        self.given: Tensor | None = None
        self.means: Tensor | None = None
        self.first: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if cheat == "old inputs":  # a graph into whose place nothing is copied
            self.given = x.clone() if self.given is None else self.given
            x = self.given
        out: Tensor = self.head(F.gelu(self.norm(self.conv(x))).mean((2, 3)) + self._cached(x))
        if cheat == "last samples":
            out[-2:] = 0
        if cheat == "one sample less":
            out = out[:-1]
        if cheat == "written over":
            self.place = torch.empty_like(out) if self.place is None else self.place
            return self.place.copy_(out)
        if cheat == "first answer":
            self.first = out if self.first is None else self.first
            return self.first
        return out

    def _cached(self, x: Tensor) -> Tensor:
        """Something of the batch, which a change may keep from the last."""
        if self.means is None or cheat != "old cache":
            self.means = x.mean((0, 2, 3)).repeat(6)[:16]
        return self.means


model = Net().eval()
with torch.no_grad():
    for buffer in (model.norm.running_mean, model.norm.running_var):
        if buffer is not None:
            buffer.uniform_(0.5, 1.5)
images = torch.randn(640, 3, 12, 12)
found = []
with torch.no_grad():
    if loop == "kept":
        for (x,) in DataLoader(TensorDataset(images), batch_size=16):
            found.append(model(x))
    elif loop == "by hand":
        for x in images.split(16):
            out = model(x)
            found.append(out.argmax(1))
    elif loop == "changed in place":
        for (x,) in DataLoader(TensorDataset(images), batch_size=16):
            found.append(model(x))
            if len(found) > 1:
                found[-2].mul_(0.5)
    elif loop == "two models":
        second = nn.Linear(10, 3).eval()
        for x in images.split(16):
            found.append(second(model(x)).argmax(1))
