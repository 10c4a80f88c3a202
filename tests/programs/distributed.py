"""Two gloo processes under torchrun, wrapped by DDP or FSDP2 (the argument); ranks count alike."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import CLASSES, WIDTH, Blocks
from torch.nn.parallel import DistributedDataParallel
from truth import Truth

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
truth = Truth()
model = Blocks()
if "fsdp" in sys.argv:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + rank)
for _ in range(20):
    inputs, labels = torch.randn(4 + rank, WIDTH), torch.randint(0, CLASSES, (4 + rank,))
    loss = F.cross_entropy(model(inputs), labels)
    truth.forward(4 + rank)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
for each in range(dist.get_world_size()):  # one after the other, so that lines stay whole
    if each == rank:
        truth.tell(rank=rank)
        sys.stdout.flush()
    dist.barrier()
dist.destroy_process_group()
