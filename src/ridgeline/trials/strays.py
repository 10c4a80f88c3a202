"""Processes a trial left behind in sessions of their own, where its group's end does not reach
them: a launcher's workers, a service some library started. Found by the variable that every
descendant inherits."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def end(variable: str, value: str, proc: Path = _PROC) -> int:
    """How many were ended. Elsewhere than on Linux nobody can be asked: none."""
    wanted = f"{variable}={value}".encode()
    ended = 0
    for pid, environment in _environments(proc):
        if wanted in environment.split(b"\0") and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    return ended


def _environments(proc: Path) -> Iterator[tuple[int, bytes]]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(proc):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                    yield int(entry.name), Path(entry.path, "environ").read_bytes()
