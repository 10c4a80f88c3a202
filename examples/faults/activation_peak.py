"""A deep stack of attention blocks whose activations fill half of the device.

fault: activation-peak
runs on: gpu
measure: memory
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS = 512, 4, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        q, k, v = self.qkv(x).view(batch, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, TOKENS, WIDTH))


class Net(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)  # fault
        return x


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    whole = torch.cuda.get_device_properties(device).total_memory
    depth = 32
    # A block keeps five tensors of the batch's size for its backward: 0.56 of the device.
    batch = int(0.56 * whole / (5 * depth * TOKENS * WIDTH * 2))
    model = Net(depth).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(batch, TOKENS, WIDTH, device=device, dtype=torch.bfloat16)
    targets = torch.randn_like(inputs)
    for _ in range(18):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()
