"""Convolutions in half precision over NCHW tensors: cuDNN turns each one to NHWC and back.

fault: layout-transposes
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 60


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 128, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*[Block(128) for _ in range(8)])
        self.head = nn.Linear(128, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = "cuda"
    model = Net().to(device)  # fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    images = torch.randn(192, 8, 56, 56, device=device)
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
