"""A small training step with all that a trial could leave changed: buffers, moments, a schedule,
counters, a list, generators."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.calls = 0
        self.shapes: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.shapes.append(len(x))
        hidden = self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))
        return self.frozen(self.head(hidden))


class Images(Dataset[torch.Tensor]):
    def __init__(self, size: int = 48) -> None:
        self.images = torch.randn(size, 3, 6, 6, generator=torch.Generator().manual_seed(1))
        self.fetched: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched[index] = self.fetched.get(index, 0) + 1
        return self.images[index]


class Case:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.generator = torch.Generator().manual_seed(5)
        self.loader: Any = DataLoader(
            Images(), batch_size=8, shuffle=True, generator=self.generator
        )
        self.losses: list[float] = []
        self.taken = 0
        self.one_step()

    def one_step(self) -> None:
        self.step(self.model, self.optimizer, torch.randn(8, 3, 6, 6))

    def step(self, model: Any, optimizer: Any, batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch + 0.01 * random.random()).square().mean()
        loss.backward()
        optimizer.step()
        self.schedule.step()
        self.losses.append(float(loss.detach()) + float(np.random.rand()) * 0)
        self.taken += 1
        return loss

    def closed_over(self, batch: torch.Tensor) -> torch.Tensor:
        return self.step(self.model, self.optimizer, batch)

    def state(self) -> dict[str, Any]:
        """Everything, by value; and what must stay the same object, by identity."""
        model, optimizer = self.model, self.optimizer
        return {
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "strides": [p.stride() for p in model.parameters()],
            "places": [p.data_ptr() for p in model.parameters()],
            "grads": [(id(p.grad), _copied(p.grad)) for p in model.parameters()],
            "needs": [p.requires_grad for p in model.parameters()],
            "modes": [m.training for m in model.modules()],
            "attributes": [sorted(vars(m)) for m in model.modules()],
            "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
            "calls": (model.calls, list(model.shapes), self.taken, list(self.losses)),
            "moments": _copied(optimizer.state_dict()),
            "told": ({**optimizer.defaults}, sorted(vars(optimizer))),
            "schedule": {k: v for k, v in self.schedule.state_dict().items() if k[0] != "_"},
            "data": self.generator.get_state(),
            "fetched": dict(self.loader.dataset.fetched) if hasattr(self.loader, "dataset") else {},
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),
            "flags": (torch.get_num_threads(), torch.get_float32_matmul_precision(),
                      torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(),
                      torch.get_default_dtype(), torch.backends.cudnn.benchmark),
            "torch": (nn.Module.__call__, torch.optim.AdamW.__init__, DataLoader.__init__,
                      torch.autograd.backward, torch.optim.Optimizer.zero_grad,
                      torch.Tensor.to, torch.autograd._engine_run_backward),
        }  # fmt: skip


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if not same(before[name], after[name])]
