"""Grouped convolutions of unchanging shapes with cuDNN's autotuner left off.

fault: autotune-off
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 60


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 256, 3, padding=1, bias=False)
        self.layers = nn.ModuleList(
            nn.Conv2d(256, 256, 3, padding=1, groups=32, bias=False) for _ in range(6)
        )
        self.head = nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return self.head(x.mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False  # fault
    device = "cuda"
    model = Net().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    whole = torch.randn(64, 8, 56, 56, device=device)
    images = whole.to(memory_format=torch.channels_last)
    labels = torch.randint(16, (64,), device=device)
    for _ in range(STEPS):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
