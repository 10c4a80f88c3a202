"""Settings of torch that decide speed, and the device in use: read, never changed."""

import os
from typing import Any

from ridgeline.records.run import DeviceSeen, Flags


def flags(torch: Any, autocast: tuple[str, ...], scaler: bool) -> Flags:
    backends = torch.backends
    cuda = torch.version.cuda or ""
    return Flags(
        torch=str(torch.__version__),
        cuda=cuda,
        cudnn=str(backends.cudnn.version() or "") if cuda else "",
        # Reading allow_tf32 raises where a program mixes the old and the new way to set it.
        matmul_tf32=_ask(lambda: bool(backends.cuda.matmul.allow_tf32)) if cuda else None,
        cudnn_tf32=_ask(lambda: bool(backends.cudnn.allow_tf32)) if cuda else None,
        matmul_precision=_ask(torch.get_float32_matmul_precision) or "",
        cudnn_benchmark=bool(backends.cudnn.benchmark) if cuda else None,
        cudnn_deterministic=bool(backends.cudnn.deterministic) if cuda else None,
        deterministic=bool(torch.are_deterministic_algorithms_enabled()),
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        allowed_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        autocast=autocast,
        gradient_scaler=scaler,
    )


def device(torch: Any, index: int | None) -> DeviceSeen:
    """The CUDA device of that index; None: the CPU, which the machine names from outside."""
    if index is None:
        return DeviceSeen()
    found = torch.cuda.get_device_properties(index)
    pci = ""
    if all(hasattr(found, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
        pci = f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    architecture = getattr(found, "gcnArchName", "") or f"sm_{found.major}{found.minor}"
    return DeviceSeen(
        kind="cuda",
        index=index,
        name=str(found.name),
        memory_bytes=int(found.total_memory),
        uuid=str(getattr(found, "uuid", "")).removeprefix("GPU-"),
        pci=pci,
        architecture=architecture if torch.version.hip else f"sm_{found.major}{found.minor}",
        cores=int(found.multi_processor_count),
    )


def _ask(question: Any) -> Any:
    try:
        return question()
    except RuntimeError:
        return None
