"""Peak memory of one call of a workload, without what other workloads hold beside it."""

import gc

import torch

from ridgeline.cost.counting.traffic import stored_bytes
from ridgeline.equality.calls.reach import reachable
from ridgeline.errors import RidgelineError
from ridgeline.harness.usercode.workload import Workload
from ridgeline.measure.peak import measure_peak


def peak_of(workload: Workload, device: str) -> tuple[int | None, str]:
    """Bytes and how they were found, or None and why not. What the workload holds (weights, data,
    optimizer state) plus the highest point its call reaches above that."""
    held = [t for _, t in reachable(workload) if t.device.type == torch.device(device).type]
    static = stored_bytes(*held)
    if device == "cpu":
        try:
            measured = measure_peak(workload, device, static, "inference")
        except RidgelineError as error:
            return None, f"not measured: {error.message}"
        return measured.peak_bytes, measured.method
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = workload()
    torch.cuda.synchronize(device)
    above = torch.cuda.max_memory_allocated(device) - before
    del kept
    return static + above, "CUDA caching allocator, above what the workload holds"
