"""A recurrent cell that enters autocast once, so that its weights are cast once a step.

fault: cast-churn
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, TIMES, STEPS = 4096, 1024, 32, 80


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(TIMES):
                state = self.mix(state)
        return state


def main() -> None:
    torch.manual_seed(0)
    model = Cell().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    targets = torch.randn(BATCH, WIDTH, device="cuda")
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
