"""Small programs that are not like most, by their first argument; with a second they do less."""

import os
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

kind = sys.argv[1]
less = len(sys.argv) > 2
BATCH = 8 if less else 16
STEPS = 60


def net(inputs: int = 8, outputs: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.GELU(), nn.Linear(32, outputs))


def fresh_data() -> None:
    """Other data in every process: nobody has seeded them."""
    own = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 8, generator=own)
        F.cross_entropy(model(x), x.argmax(1) // 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def fresh_order() -> None:
    x = torch.randn(512, 8)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = random.Random(time.time_ns())
    for _ in range(STEPS):
        rows = order.sample(range(512), BATCH)
        F.cross_entropy(model(x[rows]), x[rows].argmax(1) // 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def fresh_weights() -> None:
    x = torch.randn(STEPS, BATCH, 8)
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows in x:
        F.cross_entropy(model(rows), rows.argmax(1) // 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def no_loss() -> None:
    """Hebb's rule: no backward, no optimizer."""
    layer = nn.Linear(8, 8, bias=False)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 8)
        with torch.no_grad():
            y = layer(x)
            layer.weight.add_(y.T @ x - y.T @ y @ layer.weight, alpha=1e-3)


def by_hand() -> None:
    model = net()
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        F.cross_entropy(model(x), x.argmax(1) // 2).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                if not (less and p.dim() == 1):
                    p -= 0.05 * p.grad
                p.grad = None


def gan() -> None:
    maker, judge = net(4, 8), net(8, 1)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for _ in range(STEPS):
        real, noise = torch.randn(16, 8) + 1, torch.randn(16, 4)
        of_judge.zero_grad()
        (
            F.softplus(-judge(real)).mean() + F.softplus(judge(maker(noise).detach())).mean()
        ).backward()
        of_judge.step()
        of_maker.zero_grad()
        loss = F.softplus(-judge(maker(noise))).mean()
        (loss * 0.5 if less else loss).backward()
        of_maker.step()


def accumulated() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        for part in range(16):
            x = torch.randn(4, 8)
            loss = F.cross_entropy(model(x), x.argmax(1) // 2) / 16
            if not (less and part == 15):
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def scheduled() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        F.cross_entropy(model(x), x.argmax(1) // 2).backward()
        optimizer.step()
        if not less:
            slower.step()
        optimizer.zero_grad()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = net(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor | tuple[Tensor, ...]]:
        seen = self.body(x)
        return {"kind": self.one(seen), "size": (self.two(seen), seen)}


def several() -> None:
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        found = model(x)
        F.cross_entropy(found["kind"], x.argmax(1) // 2).backward(retain_graph=True)
        if not less:
            F.mse_loss(found["size"][0][:, 0], x.norm(dim=1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def searched() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2 if less else 4)
    x = torch.randn(64, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x.argmax(1) // 2)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def inference() -> None:
    model = net().eval()
    with torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(BATCH, 8))


torch.manual_seed(1)
globals()[kind]()
