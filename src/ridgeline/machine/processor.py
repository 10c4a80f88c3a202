"""The CPU: its name, instruction flags, usable cores, last-level cache and memory."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from ridgeline.machine import cgroup, nvml
from ridgeline.records.ground import NumaNode

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

# macOS names its ARM features differently; native.py speaks Linux's names only.
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
    """Instruction flags in Linux's spelling; empty where they cannot be read (Windows)."""
    if platform.system() == "Darwin":
        listed = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}"
        apple = {ours for key, ours in _APPLE_FEATURES.items() if _sysctl(key) == "1"}
        return frozenset({f.replace(".", "_").lower() for f in listed.split()} | apple)
    return parse_flags(_cpuinfo())


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset((_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split())


def widest_extension(present: frozenset[str]) -> str:
    return next((extension for extension, flag in _EXTENSIONS if flag in present), "")


def affinity() -> frozenset[int]:
    """The logical processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Processors allowed by affinity and by the cgroup quota; a part of a core counts as one."""
    quota = cgroup.cpu_quota()
    allowed = len(affinity())
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cache_bytes() -> int:
    """Size of the last-level cache, 0 where unknown."""
    if platform.system() == "Darwin":
        keys = ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")
        return next((int(v) for key in keys if (v := _sysctl(key)).isdigit() and int(v)), 0)
    levels = [
        (int(level), parse_size(_read(folder / "size")))
        for folder in sorted(_CACHES.glob("index*"))
        if (level := _read(folder / "level")).isdigit()
    ]
    # Some sandboxes hide /sys; /proc/cpuinfo then still has the size, as "49152 KB".
    return max(levels)[1] if levels else parse_size(_field(_cpuinfo(), "cache size"))


def parse_size(text: str) -> int:
    """ "49152K", "49152 KB" or "1M" in bytes."""
    found = re.match(r"(\d+)\s*([KMG]?)", text.strip())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


def memory_bytes() -> int:
    """Return the memory of the host, or of the control group if that allows less; 0 if it is not
    known."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    limit = cgroup.memory_limit()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    available = int(psutil.virtual_memory().available)
    left = cgroup.memory_left()
    return available if left is None else max(0, min(available, left))


def _cpuinfo() -> str:
    return _read(_CPUINFO)


def _field(cpuinfo: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _sysctl(key: str) -> str:
    try:
        found = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


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
