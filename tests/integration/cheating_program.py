"""A small program that trains, with ways of doing less by its first argument: what a change that
is only faster by cheating would come to; "late …" does so from the 13th step on. Run by
test_trials_cheats.py, each in its own process.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

given = sys.argv[1] if len(sys.argv) > 1 else ""
cheat = "" if given.startswith("late ") else given
HONEST = 12
torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(0.0 if cheat == "dropout off" else 0.2)
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(torch.tanh(self.hidden(self.dropout(x))))


model = Net()
images = torch.randn(512, 3, 12, 12)
labels = (images.mean((1, 2, 3)) * 40 + 5).long().clamp(0, 9)
order = torch.Generator().manual_seed(3 if cheat == "other order" else 2)
loader = DataLoader(
    TensorDataset(images, labels),
    batch_size=4 if cheat == "half batch" else 8,
    shuffle=True,
    generator=order,
)
if cheat == "frozen layer":
    model.hidden.requires_grad_(False)
if cheat == "statistics not updated":
    model.norm.momentum = 0.0
optimizer = torch.optim.AdamW(
    [p for p in model.parameters() if p.requires_grad],
    lr=2.02e-3 if cheat == "learning rate" else 2e-3,
    weight_decay=0.0 if cheat == "no weight decay" else 0.05,
)


def batches() -> list[tuple[Tensor, Tensor]]:
    found = list(loader) * (2 if cheat == "half batch" else 1)
    return found[:1] * len(found) if cheat == "same batch" else found


def backward(x: Tensor, y: Tensor, part: int, step: int) -> None:
    if cheat == "samples dropped":
        x, y = x[::2], y[::2]
    loss = F.cross_entropy(model(x), y) / 2
    if cheat == "loss scaled":
        loss = loss * 0.9
    if cheat == "not a number" and step in (3, HONEST + 3):
        loss = loss * float("nan")
    if cheat == "first loss only" and part:
        return
    loss.backward()


done = 0
model.train()
if cheat == "norm in evaluation":
    model.norm.eval()
for _epoch in range(10):
    data = batches()
    for step in range(len(data) // 2):
        done += 1
        if done > HONEST:
            cheat = given.removeprefix("late ")
        if given == "late frozen layer" and done == HONEST + 1:
            model.hidden.requires_grad_(False)
        if given == "late rate of nothing" and done == HONEST + 1:
            optimizer.param_groups[0]["lr"] = 0.0
        for part in range(2):
            backward(*data[2 * step + part], part, step)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05 if cheat == "clipped harder" else 0.1)
        if not (cheat == "steps skipped" and step % 2):
            optimizer.step()
        optimizer.zero_grad()
