"""The host as this process may use it: CPU name and instruction flags, usable cores, last-level
cache, memory, NUMA nodes, and the limits of the control group (Linux, cgroup v1 and v2).

In a container, everything except the control group shows the processors and the memory of the whole
host.
"""

import math
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

from ridgeline.machine import nvml
from ridgeline.records.ground import NumaNode

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

# macOS has its own names for ARM features; this module reports Linux's names everywhere.
_APPLE_FEATURES = {
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.AdvSIMD": "asimd",
}

# Widest first.
_EXTENSIONS = (
    ("amx", "amx_tile"),
    ("avx512", "avx512f"),
    ("avx2", "avx2"),
    ("avx", "avx"),
    ("sse2", "sse2"),
    ("sve", "sve"),
    ("neon", "asimd"),
    ("neon", "neon"),
)


def name() -> str:
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return _field(_cpuinfo(), "model name") or platform.processor() or platform.machine()


@lru_cache
def flags() -> frozenset[str]:
    """Return the instruction flags in Linux's spelling; an empty set if they cannot be read, as on
    Windows."""
    if platform.system() == "Darwin":
        listed = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}"
        apple = {flag for key, flag in _APPLE_FEATURES.items() if _sysctl(key) == "1"}
        return frozenset({f.replace(".", "_").lower() for f in listed.split()} | apple)
    return parse_flags(_cpuinfo())


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset((_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split())


def widest_extension(present: frozenset[str]) -> str:
    return next((extension for extension, flag in _EXTENSIONS if flag in present), "")


def affinity() -> frozenset[int]:
    """Return the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many processors affinity and the cgroup quota allow. A fraction of a core counts
    as a whole one."""
    quota = cgroup_cpu_quota()
    allowed = len(affinity())
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cache_bytes() -> int:
    """Return the size of the last-level cache; 0 if it is not known."""
    if platform.system() == "Darwin":
        keys = ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")
        return next((int(v) for key in keys if (v := _sysctl(key)).isdigit() and int(v)), 0)
    levels = [
        (int(level), parse_size(system_text(folder / "size")))
        for folder in sorted(_CACHES.glob("index*"))
        if (level := system_text(folder / "level")).isdigit()
    ]
    # Some sandboxes hide /sys; /proc/cpuinfo then still has the size, as "49152 KB".
    return max(levels)[1] if levels else parse_size(_field(_cpuinfo(), "cache size"))


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "49152K", "49152 KB" or "1M"."""
    match = re.match(r"(\d+)\s*([KMG]?)", text.strip())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def memory_bytes() -> int:
    """Return the memory of the host, or of the control group if that allows less; 0 if it is not
    known."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    limit = cgroup_memory_limit()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
    """Return the memory that may still be taken, on the host and in the control group."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    available = int(psutil.virtual_memory().available)
    left = cgroup_memory_left()
    return available if left is None else max(0, min(available, left))


def _cpuinfo() -> str:
    return system_text(_CPUINFO)


def _field(cpuinfo: str, key: str) -> str:
    match = re.search(rf"^{re.escape(key)}[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""


def _sysctl(key: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


_SYSFS = Path("/sys")


def nodes(allowed: Collection[int], root: Path = _SYSFS) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have cores, each with its `allowed` cores, of which there may be
    none. Nodes without cores (CXL memory, the memory of a GPU) are skipped: nothing can run there.
    """
    numa_nodes = []
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        node_cores = cores_in(system_text(folder / "cpulist"))
        if node_cores:
            cores = tuple(core for core in node_cores if core in allowed)
            number = int(folder.name.removeprefix("node"))
            physical = _physical_cores(cores, root)
            numa_nodes.append(NumaNode(number=number, cores=cores, physical=physical))
    return tuple(sorted(numa_nodes, key=lambda node: node.number))


def node_of(address: str, root: Path = _SYSFS) -> int:
    """Return the NUMA node of the PCI device with this sysfs name; -1 if the firmware does not name
    one."""
    number = system_text(root / "bus/pci/devices" / address / "numa_node") if address else ""
    return int(number) if number.isdecimal() else -1


def gpu_address(gpu: nvml.Address) -> str:
    """Return the sysfs name of a GPU, "" if it is not known. Torch reports the PCI address since
    version 2.7; otherwise NVML is asked, which knows it without starting CUDA."""
    if gpu.pci:
        return sysfs_name(gpu.pci)
    with nvml.session() as library:
        handle = nvml.find(library, gpu) if library is not None else None
        if handle is None:
            return ""
        pci_info = nvml.ask(library, "nvmlDeviceGetPciInfo", handle)
        return sysfs_name(nvml.string(getattr(pci_info, "busId", "")))


def sysfs_name(pci: str) -> str:
    """Return the sysfs name of a PCI address: NVML's 00000000:3B:00.0 is 0000:3b:00.0 in sysfs.
    Return "" if the text is not an address."""
    parts = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", pci.strip("\0 ").lower())
    return f"{int(parts[1], 16):04x}:{parts[2]}" if parts else ""


def cores_in(listed: str) -> tuple[int, ...]:
    """Return the cores of a kernel list: "0-3,8" means 0, 1, 2, 3 and 8. Return an empty tuple if
    the text is not such a list."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", listed):
        return ()
    spans = [span.split("-") for span in listed.split(",")]
    cores = {core for span in spans for core in range(int(span[0]), int(span[-1]) + 1)}
    return tuple(sorted(cores))


def cpulist(cores: Collection[int]) -> str:
    """Write cores as a kernel list: 0, 1, 2, 3 and 8 become "0-3,8"."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and spans[-1][1] == core - 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _physical_cores(cores: Collection[int], root: Path) -> int:
    """Return how many physical cores these logical ones are. A logical core whose siblings are not
    known counts as a physical one."""
    folder = root / "devices/system/cpu"
    siblings = {
        system_text(folder / f"cpu{core}/topology/thread_siblings_list") or core for core in cores
    }
    return len(siblings)


def system_text(path: Path) -> str:
    """Return what a small file of the system holds; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
# cgroup v1 writes "no limit" as a number near 2**63; no real limit is above an exbibyte.
_UNLIMITED_BYTES = 1 << 60


def cgroup_cpu_quota(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float | None:
    """Return the CPU quota in cores, the smallest of the nested groups; None if there is none."""
    quotas = [
        q
        for folder in _cgroup_folders(root, membership, "cpu")
        if (q := _folder_quota(folder)) is not None
    ]
    return min(quotas, default=None)


def cgroup_memory_left(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int | None:
    """Return the bytes that may still be taken under the tightest memory limit; None if there is no
    limit."""
    return min((limit - used for limit, used in _cgroup_memory(root, membership)), default=None)


def cgroup_memory_limit(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int | None:
    """Return the smallest memory limit of the nested groups; None if there is none."""
    return min((limit for limit, _ in _cgroup_memory(root, membership)), default=None)


def oom_kills(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Return how many processes of this process's own group the kernel has killed for memory."""
    for folder in _cgroup_folders(root, membership, "memory", own_first=True):
        for name in ("memory.events", "memory.oom_control"):
            for line in system_text(folder / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    return int(value)
    return 0


def _cgroup_memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    for folder in _cgroup_folders(root, membership, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = system_number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED_BYTES:
                yield limit, (system_number(folder / used_name) or 0) - _file_cache(folder)


def _file_cache(folder: Path) -> int:
    """Return the bytes of file cache in a group. The kernel gives them back when memory is short: a
    job that reads a data set stays at its limit all day without lacking memory."""
    cached = 0
    for line in system_text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "active_file"):
            cached += int(value)
    return cached


def _folder_quota(folder: Path) -> float | None:
    parts = system_text(folder / "cpu.max").split()
    if len(parts) == 2 and parts[0] != "max":
        return int(parts[0]) / int(parts[1])
    quota, period = (
        system_number(folder / "cpu.cfs_quota_us"),
        system_number(folder / "cpu.cfs_period_us"),
    )
    if quota is not None and quota > 0 and period:
        return quota / period
    return None


def _cgroup_folders(
    root: Path, membership: Path, controller: str, own_first: bool = False
) -> Iterator[Path]:
    """Yield the folder of the group that this process is in and those of its parents, up to the
    root as mounted here."""
    for line in system_text(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        # A container's v1 mount shows its own group as the root, while the path is the host's:
        # missing folders read as "no limit" and the root still answers.
        base = root / controller if controllers else root
        inner = Path(path.lstrip("/"))
        inside = [base / part for part in (inner, *inner.parents) if part != Path(".")]
        yield from ([*inside, base] if own_first else [base, *inside])


def system_number(path: Path) -> int | None:
    """Return the number in a small file of the system; None if there is none."""
    text = system_text(path)
    return int(text) if text.lstrip("-").isdigit() else None
