"""The twin of exposed_collectives.py: each rank scores its own outputs.

fault: exposed-collectives
runs on: cpu
ranks: 2
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 80


def scored(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.sign() == targets.sign()).float().mean()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1024))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    inputs, targets = torch.randn(2048, 64), torch.randn(2048, 1024)
    score = torch.zeros(())
    for _ in range(STEPS):
        outputs = model(inputs)
        loss = F.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score += scored(outputs.detach(), targets)
    print(f"loss {loss.item():.4f}, score {score.item() / STEPS:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
