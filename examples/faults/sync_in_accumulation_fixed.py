"""The twin of sync_in_accumulation.py: gradients are exchanged in the last backward alone.

fault: sync-in-accumulation
runs on: cpu
ranks: 2
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
PARTS = 8


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    inputs, targets = torch.randn(192, 512), torch.randn(192, 512)
    for _ in range(STEPS):
        for part in range(PARTS):
            with nullcontext() if part == PARTS - 1 else model.no_sync():
                loss = F.mse_loss(model(inputs), targets) / PARTS
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {PARTS * loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
