"""The twin of late_rank.py: the weights are looked at once, when training is done.

fault: late-rank
runs on: cpu
ranks: 2
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 80


def largest(model: nn.Module) -> float:
    return max(float(torch.linalg.svdvals(p).max()) for p in model.parameters() if p.ndim == 2)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    inputs, targets = torch.randn(2048, 128), torch.randn(2048, 128)
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}, largest singular value {largest(net):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
