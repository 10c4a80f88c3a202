"""Whether the process a run names is still that process: ids are used again."""

import os


def started(pid: int) -> float:
    """When process `pid` began, in the system's clock ticks; 0 where it is gone or not said."""
    fields = _fields(pid)
    try:
        return float(fields[19]) if len(fields) > 19 else 0.0
    except ValueError:
        return 0.0


def alive(pid: int, began: float) -> bool:
    """Whether the process that had this id and began then still runs. `began` 0: any of that id."""
    if pid <= 0:
        return False
    fields = _fields(pid)
    if fields:
        # A zombie has ended: only its parent has not asked yet.
        return fields[0] not in ("Z", "X", "x") and (not began or started(pid) == began)
    return not os.path.isdir("/proc/self") and _answers(pid)


def _fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat, from the state on; empty where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096).decode("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold anything, spaces too


def _answers(pid: int) -> bool:
    """Without /proc: whether the id is taken."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
