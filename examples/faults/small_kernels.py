"""A norm and an activation on small tensors, written out: a kernel for each operator.

fault: small-kernels
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 80
WIDTH, LAYERS, ROWS = 8192, 20, 2048
NARROW, STAGES = 64, 40


def squash(x: torch.Tensor) -> torch.Tensor:  # fault
    x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return 0.5 * x * (1.0 + torch.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(NARROW, NARROW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squash(self.linear(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wide: list[nn.Module] = []
        for _ in range(LAYERS):
            wide += [nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)]
        self.wide = nn.Sequential(*wide, nn.Linear(WIDTH, NARROW))
        self.narrow = nn.Sequential(*[Stage() for _ in range(STAGES)])
        self.score = nn.Linear(NARROW, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.narrow(self.wide(x)))


def main() -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Network().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
    inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 16, (ROWS,), device="cuda")
    for step in range(STEPS):
        rows = ROWS - 8 * (step % 5)  # batches differ in length: no graph can be replayed
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[:rows]), labels[:rows])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
