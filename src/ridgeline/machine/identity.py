"""The identity of this machine's devices: everything that is known without measuring."""

import platform
import re
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.machine import datasheet, nvml, processor
from ridgeline.machine.datasheet import Support
from ridgeline.records.machine import Device, Machine


def identify() -> Machine:
    """Return this machine's CPU and GPUs, with datasheet ceilings for known GPUs."""
    devices = [describe(torch.device("cpu"))]
    if torch.cuda.is_available():
        devices += [describe(torch.device("cuda", i)) for i in range(torch.cuda.device_count())]
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        devices=tuple(devices),
    )


def describe(device: torch.device) -> Device:
    return _gpu(device) if device.type == "cuda" else _cpu()


def support(device: torch.device, dtype: str) -> Support:
    """Return whether the device computes `dtype` natively, emulates it, or cannot compute it."""
    if device.type == "cpu":
        return datasheet.on_cpu(dtype, processor.flags())
    if torch.version.hip is not None:
        return datasheet.on_amd(dtype, _architecture(torch.cuda.get_device_properties(device)))
    return datasheet.on_nvidia(dtype, torch.cuda.get_device_capability(device))


def address(device: torch.device) -> nvml.Address:
    """Return what NVML needs to find a torch device."""
    properties: Any = torch.cuda.get_device_properties(device)
    pci = ""
    if hasattr(properties, "pci_bus_id"):  # torch 2.7 and later
        domain = getattr(properties, "pci_domain_id", 0)
        pci = f"{domain:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    return nvml.Address(
        uuid=str(getattr(properties, "uuid", "")).removeprefix("GPU-"),
        pci=pci,
        name=properties.name,
    )


def _cpu() -> Device:
    return Device(
        kind="cpu",
        index=0,
        name=processor.name(),
        memory_bytes=processor.memory_bytes(),
        architecture=processor.widest_extension(processor.flags()),
        cores=processor.usable_cores(),
        cache_bytes=processor.cache_bytes(),
    )


def _gpu(device: torch.device) -> Device:
    properties: Any = torch.cuda.get_device_properties(device)
    cores = int(properties.multi_processor_count)
    row = datasheet.match(properties.name, cores)
    return Device(
        kind="cuda",
        index=device.index,
        name=properties.name,
        memory_bytes=int(properties.total_memory),
        driver=_driver(),
        architecture=_architecture(properties),
        cores=cores,
        cache_bytes=int(getattr(properties, "L2_cache_size", 0)),
        ceilings=row.ceilings() if row is not None else (),
    )


def _architecture(properties: Any) -> str:
    if torch.version.hip is not None:
        # In "gfx942:sramecc+:xnack-" the configuration follows the first colon.
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


# Cached: starting NVML takes tens of milliseconds, and the driver of a process does not change.
@lru_cache
def _driver() -> str:
    if torch.version.hip is not None:
        version = processor.system_text(Path("/sys/module/amdgpu/version"))
        return version or f"ROCm {torch.version.hip}"
    with nvml.session() as library:
        if library is not None:
            return nvml.driver(library)
    lines = processor.system_text(Path("/proc/driver/nvidia/version")).splitlines()
    words = lines[0].split() if lines else []
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def resolve_device(name: str | None) -> torch.device:
    """Return the torch device for `cpu`, `cuda` or `cuda:1`. None chooses a GPU if there is one.

    Raise UsageError for a name or an index that does not exist, and RidgelineError (exit code 4) if
    the name asks for CUDA and there is none.
    """
    if name is None:
        return torch.device("cuda", _current()) if _cuda_problem() is None else torch.device("cpu")
    parsed = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name.strip().lower())
    if parsed is None:
        raise UsageError(
            f"'{name}' is not a device Ridgeline measures", hint="use cpu, cuda or cuda:<index>"
        )
    kind, index = parsed[1], parsed[2]
    if kind == "cpu":
        return torch.device("cpu")
    problem = _cuda_problem()
    if problem is not None:
        raise RidgelineError(
            f"device '{name}' was asked for, but {problem}", hint="use --device cpu"
        )
    count = torch.cuda.device_count()
    if index is not None and int(index) >= count:
        devices = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(f"there is no device '{name}' here", hint=f"this machine has {devices}")
    return torch.device("cuda", _current() if index is None else int(index))


def _current() -> int:
    # current_device() would start CUDA, and the answer would be 0.
    is_started: bool = torch.cuda.is_initialized()
    return torch.cuda.current_device() if is_started else 0


def _cuda_problem() -> str | None:
    """Return why there is no usable CUDA device; None if there is one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    # torch reports a driver that is too old or broken only by a warning.
    reason = str(caught[0].message).split(" (Triggered")[0].split(". ")[0] if caught else ""
    return "torch finds no usable CUDA device" + (f": {reason}" if reason else "")
