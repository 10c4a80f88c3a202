"""What the control group allows this process: a CPU quota and a memory limit (Linux, v1 and v2).

Containers show the host's processors and memory everywhere else. None means: no limit found.
"""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
# v1 writes "no limit" as a number near 2**63; nothing real is above an exbibyte.
_UNLIMITED = 1 << 60


def cpu_quota(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> float | None:
    """Cores' worth of time per period, the tightest over the nested groups; None if unlimited."""
    found = [q for folder in _folders(root, membership, "cpu") if (q := _quota(folder)) is not None]
    return min(found, default=None)


def memory_left(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int | None:
    """Bytes that may still be taken under the tightest limit."""
    return min((limit - used for limit, used in _memory(root, membership)), default=None)


def memory_limit(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int | None:
    return min((limit for limit, _ in _memory(root, membership)), default=None)


def oom_kills(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """Return how many processes of this process's own group the kernel has killed for memory."""
    for folder in _folders(root, membership, "memory", own_first=True):
        for name in ("memory.events", "memory.oom_control"):
            for line in _text(folder / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    return int(value)
    return 0


def _memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    for folder in _folders(root, membership, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and limit < _UNLIMITED:
                yield limit, (_number(folder / used_name) or 0) - _file_cache(folder)


def _file_cache(folder: Path) -> int:
    """What the group holds of files and would give back: a job that reads a data set runs at its
    limit all day without being short of memory."""
    cached = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "active_file"):
            cached += int(value)
    return cached


def _quota(folder: Path) -> float | None:
    parts = _text(folder / "cpu.max").split()
    if len(parts) == 2 and parts[0] != "max":
        return int(parts[0]) / int(parts[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if quota is not None and quota > 0 and period:
        return quota / period
    return None


def _folders(
    root: Path, membership: Path, controller: str, own_first: bool = False
) -> Iterator[Path]:
    """The group this process is in and its parents, up to the root as mounted here."""
    for line in _text(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        # A container's v1 mount shows its own group as the root, while the path is the host's:
        # missing folders read as "no limit" and the root still answers.
        base = root / controller if controllers else root
        inner = Path(path.lstrip("/"))
        inside = [base / part for part in (inner, *inner.parents) if part != Path(".")]
        yield from ([*inside, base] if own_first else [base, *inside])


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
