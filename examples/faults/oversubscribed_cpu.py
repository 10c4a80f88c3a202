"""Two ranks on one machine, each with a thread for every core: twice as many as can run.

fault: oversubscribed-cpu
runs on: cpu
ranks: 2
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def main() -> None:
    dist.init_process_group("gloo")
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)  # fault
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    inputs, targets = torch.randn(4096, 128), torch.randn(4096, 128)
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
