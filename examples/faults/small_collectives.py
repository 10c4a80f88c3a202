"""Gradients are averaged over the ranks one parameter at a time.

fault: small-collectives
runs on: cpu
ranks: 2
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS = 80


def average(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient in gradients:
        dist.all_reduce(gradient)  # fault
    torch._foreach_div_(gradients, dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(24)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    inputs, targets = torch.randn(4096, 64), torch.randn(4096, 64)
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
