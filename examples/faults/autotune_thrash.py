"""cuDNN's autotuner on, while almost every batch has images of another size.

fault: autotune-thrash
runs on: gpu
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 60


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.conv(x)), inplace=True).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # fault
    device = "cuda"
    model = Net().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    whole = torch.randn(128, 8, 160, 160, device=device)
    images = whole.to(memory_format=torch.channels_last)
    labels = torch.randint(16, (128,), device=device)
    sizes = random.Random(0).sample(range(80, 160), STEPS)
    for size in sizes:
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images[:, :, :size, :size]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
