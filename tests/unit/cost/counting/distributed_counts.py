"""Run by test_distributed in a process of its own: four ranks, of which this is the first, with
collectives that do nothing. Prints what was counted as JSON."""

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from ridgeline.cost.counting import count

RANKS = 4


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))

    def tensor_parallel() -> nn.Module:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(mlp(), mesh, plan)

    def sharded() -> nn.Module:
        return fully_shard(mlp(), mesh=mesh)

    found = {
        # first: what torch works out about shapes at a first call it remembers for the next
        "tensor parallel, auto": counted(tensor_parallel, "auto"),
        "tensor parallel, real": counted(tensor_parallel, "real"),
        "sharded, real": counted(sharded, "real"),
        "sharded, auto": counted(sharded, "auto"),
    }
    print(json.dumps(found))


def counted(make: Callable[[], nn.Module], backend: Any) -> dict[str, Any]:
    model, x = make(), torch.randn(8, 32)
    inference = count(model, (x,), backend=backend)
    try:
        training = count(model, (x,), backend=backend, training=True)
        model(x).sum().backward()
        broken = ""
    except RuntimeError as error:
        training, broken = inference, str(error)
    return {
        "forward": inference.cost.phases["forward"].macs,
        "backward": training.cost.phases["backward"].macs,
        "parameters_bytes": inference.memory.parameters_bytes,
        "coverage": training.cost.coverage_percent,
        "notes": inference.cost.notes,
        "broken": broken,
    }


main()
