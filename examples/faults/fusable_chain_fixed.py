"""An activation that is one operator, and passes over memory once.

fault: fusable-chain
runs on: cpu, gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 60


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gelu(self.widen(x))


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    width, depth, batch = (4096, 8, 8192) if gpu else (128, 4, 4096)
    with torch.device(device):
        model = nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 16))
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(batch, width, device=device, dtype=dtype)
    labels = torch.randint(0, 16, (batch,), device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
