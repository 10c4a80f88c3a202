"""Who the devices are: everything that can be said without measuring."""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ridgeline.machine import datasheet, native, nvml, processor
from ridgeline.machine.native import Support
from ridgeline.records.machine import Device, Machine


def identify() -> Machine:
    """This machine's CPU and GPUs, with datasheet ceilings for the GPUs that are known."""
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
    """Whether the device computes `dtype` natively, emulates it, or cannot."""
    if device.type == "cpu":
        return native.on_cpu(dtype, processor.flags())
    if torch.version.hip is not None:
        return native.on_amd(dtype, _architecture(torch.cuda.get_device_properties(device)))
    return native.on_nvidia(dtype, torch.cuda.get_device_capability(device))


def address(device: torch.device) -> nvml.Address:
    """How NVML can find a torch device."""
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
        # "gfx942:sramecc+:xnack-": what follows the colon is configuration.
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


# Starting NVML takes tens of milliseconds, and a driver does not change under a process.
@lru_cache
def _driver() -> str:
    if torch.version.hip is not None:
        try:
            return Path("/sys/module/amdgpu/version").read_text().strip()
        except OSError:
            return f"ROCm {torch.version.hip}"
    with nvml.session() as library:
        if library is not None:
            return nvml.driver(library)
    try:
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
