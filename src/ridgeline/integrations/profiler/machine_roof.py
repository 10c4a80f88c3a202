"""The ceilings of the device a torch module runs on, and where its operators stand under them."""

import torch

from ridgeline.cost.study.placement import ceiling_dtype, place
from ridgeline.errors import RidgelineError
from ridgeline.integrations.profiler.subject import Roof
from ridgeline.integrations.profiler.verdict import COURSE_ROOF
from ridgeline.machine import ceilings
from ridgeline.records.cost import Cost


def machine_roof(device: torch.device, cost: Cost) -> Roof:
    """Measured ceilings; the first time on a machine they take some seconds, then they are kept.
    Where the device has none (meta, mps), the course's assumption, which says so."""
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    dtype = ceiling_dtype(cost.dtype, tf32)
    try:
        machine = ceilings(str(device), [dtype])
    except RidgelineError:
        return COURSE_ROOF
    product = machine.ceiling("matmul", dtype) or machine.doubtful_ceiling("matmul", dtype)
    traffic = machine.ceiling("copy") or machine.doubtful_ceiling("copy")
    if product is None or traffic is None:
        return COURSE_ROOF
    busy = "" if product.state == traffic.state == "usable" else ", while the machine was busy"
    limit = place(cost, ("forward",), machine, None, tf32=tf32).bottleneck
    return Roof(
        flops_per_s=product.value,
        bytes_per_s=traffic.value,
        source=f"{product.source}: {machine.name}, {dtype}{busy}",
        limit=limit.removesuffix("-bound"),
    )
