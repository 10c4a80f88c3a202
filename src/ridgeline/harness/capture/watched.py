"""A process that is not our child, watched until it dies: by a pidfd where the kernel has them.

A pidfd names one process for good (ids are used again) and can be waited on. Since Linux 6.15 it
also gives the exit code once the parent has collected it; before that, only /proc shows it, for as
long as nobody did.
"""

import fcntl
import os
import select
import struct
import time
from contextlib import suppress

from ridgeline.machine import processes

# linux/pidfd.h: struct pidfd_info of 64 bytes, whose last word is the exit status as wait() has it.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3
_SLICE_S = 0.05


class Watched:
    """The process `pid` as it is now; `started` (clock ticks) tells it from a later namesake."""

    def __init__(self, pid: int, started: float | None = None) -> None:
        self._pid = pid
        self._gone = False
        self._file = -1
        try:
            self._file = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except (OSError, AttributeError):  # an old kernel, a sandbox, not Linux
            pass
        self._started = _started(pid)
        if started and self._started is not None and self._started != started:
            self._gone = True
            self.close()

    def gone(self, within_s: float = 0.0) -> bool:
        """Waits for its death, no longer than `within_s`; True once it is dead."""
        if not self._gone:
            self._gone = self._wait(within_s)
        return self._gone

    def exit_code(self) -> int | None:
        """After its death; negative for a signal, None where the system does not say."""
        return exit_code(self._file) if self._gone and self._file >= 0 else None

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _wait(self, within_s: float) -> bool:
        if self._file >= 0:
            poll = select.poll()
            poll.register(self._file, select.POLLIN)
            return bool(poll.poll(max(within_s, 0) * 1000))
        end = time.monotonic() + within_s
        while _alive(self._pid, self._started):
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_SLICE_S, left))
        return True


def exit_code(pidfd: int, wait_s: float = 0.3) -> int | None:
    """Of a dead process, whoever its parent was; negative for a signal.

    `wait_s`: how long its parent may take to collect it, where /proc does not show it either."""
    end = time.monotonic() + wait_s
    while True:
        status = _collected(pidfd)
        if status is None:
            status = _uncollected(pidfd)
        if status is None:  # collected between the two looks
            status = _collected(pidfd)
        if status is not None:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def _collected(pidfd: int) -> int | None:
    asked = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:  # an older kernel knows no such request, or no such process any more
        return None
    said = _INFO.unpack(asked)
    return int(said[-1]) if said[0] & _EXIT else None


def _uncollected(pidfd: int) -> int | None:
    """From /proc, which shows it to the process's own user and to root, and 0 to others."""
    pid = _pid_of(pidfd)
    seen = processes.stat(pid) if pid > 0 else None
    if seen is None or seen.state != "Z" or _pid_of(pidfd) != pid:
        return None
    with suppress(OSError):
        if os.geteuid() in (0, os.stat(f"{processes.PROC}/{pid}").st_uid):
            return seen.exit_status
    return None


def _pid_of(pidfd: int) -> int:
    """-1 once it has been collected."""
    with suppress(OSError, ValueError), open(f"{processes.PROC}/self/fdinfo/{pidfd}") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1


def _started(pid: int) -> float | None:
    seen = processes.stat(pid)
    return None if seen is None else float(seen.started)


def _alive(pid: int, started: float | None) -> bool:
    if processes.supported():
        seen = processes.stat(pid)
        return seen is not None and seen.state not in "ZX" and float(seen.started) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
