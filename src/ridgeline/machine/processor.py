"""The CPU: its name, instruction flags, usable cores, last-level cache and memory."""

import math
import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from ridgeline.machine import cgroup

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
    total = int(psutil.virtual_memory().total)
    limit = cgroup.memory_limit()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
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
