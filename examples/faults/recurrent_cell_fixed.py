"""A recurrent cell that has the whole sequence at once: a layer.

fault: python-loop
runs on: cpu, gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100


class Forecast(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.size(0), self.hidden)
        c = x.new_zeros(x.size(0), self.hidden)
        outputs, _ = self.cell(x, (h[None], c[None]))
        return self.head(outputs)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Forecast(16, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs = torch.randn(32, 64, 16, device=device)
    wanted = inputs.mean(-1, keepdim=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
