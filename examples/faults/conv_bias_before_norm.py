"""Convolutions whose bias the batch norm right behind them takes away again.

fault: conv-bias-before-norm
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 60


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)  # fault
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 128, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*[Block(128) for _ in range(12)])
        self.head = nn.Linear(128, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = "cuda"
    model = Net().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    whole = torch.randn(192, 8, 56, 56, device=device)
    images = whole.to(memory_format=torch.channels_last)
    labels = torch.randint(16, (192,), device=device)
    for _ in range(STEPS):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
