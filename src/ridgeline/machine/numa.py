"""Which cores lie beside which memory, and beside which GPU (Linux, from sysfs).

Every answer may be missing: another system, a sandbox without /sys, a virtual machine whose
firmware places no device. Then it is empty or -1, never an exception.
"""

import re
from collections.abc import Collection
from pathlib import Path

from ridgeline.machine import nvml
from ridgeline.records.ground import NumaNode

_SYSFS = Path("/sys")


def nodes(allowed: Collection[int], root: Path = _SYSFS) -> tuple[NumaNode, ...]:
    """Those that have cores, with the `allowed` ones among them, which may be none. Memory without
    cores (CXL, a GPU's own) is no place to run."""
    found = []
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        there = cores_in(_text(folder / "cpulist"))
        if there:
            cores = tuple(core for core in there if core in allowed)
            number = int(folder.name.removeprefix("node"))
            found.append(NumaNode(number=number, cores=cores, physical=_physical(cores, root)))
    return tuple(sorted(found, key=lambda one: one.number))


def node_of(address: str, root: Path = _SYSFS) -> int:
    """Of a PCI device by its sysfs name; -1 where the firmware does not say."""
    said = _text(root / "bus/pci/devices" / address / "numa_node") if address else ""
    return int(said) if said.isdecimal() else -1


def gpu_address(gpu: nvml.Address) -> str:
    """Its sysfs name: from what torch told, else from NVML, which knows it without starting CUDA;
    torch before 2.7 does not tell."""
    if gpu.pci:
        return sysfs_name(gpu.pci)
    with nvml.session() as library:
        handle = nvml.find(library, gpu) if library is not None else None
        if handle is None:
            return ""
        told = nvml.ask(library, "nvmlDeviceGetPciInfo", handle)
        return sysfs_name(nvml.string(getattr(told, "busId", "")))


def sysfs_name(pci: str) -> str:
    """00000000:3B:00.0, as NVML writes it, is 0000:3b:00.0 there; "" where it is no address."""
    parts = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", pci.strip("\0 ").lower())
    return f"{int(parts[1], 16):04x}:{parts[2]}" if parts else ""


def cores_in(listed: str) -> tuple[int, ...]:
    """0-3,8 is 0, 1, 2, 3, 8; empty where it is no such list."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", listed):
        return ()
    spans = [span.split("-") for span in listed.split(",")]
    every = {core for span in spans for core in range(int(span[0]), int(span[-1]) + 1)}
    return tuple(sorted(every))


def cpulist(cores: Collection[int]) -> str:
    """The other way round."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and spans[-1][1] == core - 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _physical(cores: Collection[int], root: Path) -> int:
    """A core whose siblings are not told counts as one."""
    folder = root / "devices/system/cpu"
    siblings = {_text(folder / f"cpu{one}/topology/thread_siblings_list") or one for one in cores}
    return len(siblings)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
