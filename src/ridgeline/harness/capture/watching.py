"""Watches a program from outside until it ends, and samples telemetry meanwhile.

The program is not our child, so it is watched by a pidfd if the kernel has them. A pidfd names one
process for good, although process ids are reused, and can be waited on. Since Linux 6.15 it also
gives the exit code once the parent has collected it. Until then only /proc shows the exit code.
"""

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from os import stat_result
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from ridgeline.machine import processor, telemetry
from ridgeline.machine.telemetry import Sampler
from ridgeline.records.run import Telemetry
from ridgeline.records.run_directory import RunDirectory

# linux/pidfd.h: struct pidfd_info has 64 bytes; its last word is the exit status, as in wait().
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3
_ALIVE_POLL_S = 0.05


class Watched:
    """A process to watch. `started` (clock ticks) tells it from a later process with the same
    id."""

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
        """Wait for its death, no longer than `within_s`. Return whether it is dead."""
        if not self._gone:
            self._gone = self._wait(within_s)
        return self._gone

    def exit_code(self) -> int | None:
        """Return the exit code of the dead process, negative for a signal; None if it is not
        known."""
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
            time.sleep(min(_ALIVE_POLL_S, left))
        return True


def exit_code(pidfd: int, wait_s: float = 0.3) -> int | None:
    """Return the exit code of a dead process with any parent, negative for a signal; None if it is
    not known. If /proc does not show it, wait up to `wait_s` for the parent to collect it."""
    end = time.monotonic() + wait_s
    while True:
        status = _collected(pidfd)
        if status is None:
            status = _uncollected(pidfd)
        if status is None:  # the parent may have collected it between the two readings
            status = _collected(pidfd)
        if status is not None:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def _collected(pidfd: int) -> int | None:
    """Return the exit status of a process that its parent has collected."""
    request = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, request)
    except OSError:  # an older kernel does not have this request, or the process is gone
        return None
    answer = _INFO.unpack(request)
    return int(answer[-1]) if answer[0] & _EXIT else None


def _uncollected(pidfd: int) -> int | None:
    """Return the exit status of a process that its parent has not collected. /proc shows it to the
    process's own user and to root, and shows 0 to others."""
    pid = _pid_of(pidfd)
    seen = telemetry.process_stat(pid) if pid > 0 else None
    if seen is None or seen.state != "Z" or _pid_of(pidfd) != pid:
        return None
    with suppress(OSError):
        if os.geteuid() in (0, os.stat(f"{telemetry.PROC}/{pid}").st_uid):
            return seen.exit_status
    return None


def _pid_of(pidfd: int) -> int:
    """Return the process's id; -1 once its parent has collected it."""
    with suppress(OSError, ValueError), open(f"{telemetry.PROC}/self/fdinfo/{pidfd}") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1


def _started(pid: int) -> float | None:
    seen = telemetry.process_stat(pid)
    return None if seen is None else float(seen.started)


def _alive(pid: int, started: float | None) -> bool:
    if telemetry.has_proc():
        seen = telemetry.process_stat(pid)
        return seen is not None and seen.state not in "ZX" and float(seen.started) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


__all__ = ["Ending", "exit_code", "ignore_signals", "watch"]

_SECOND = 1_000_000_000
_POLL_INTERVAL_S = 0.1
_SAMPLE_INTERVAL_NS = _SECOND // 10
# The windows are over within minutes; after that one sample a second is enough.
_FAST_SAMPLING_NS = 600 * _SECOND
MAX_TELEMETRY_BYTES = 32 * 1024 * 1024


class Ending(Struct, frozen=True, kw_only=True):
    """Says how a program ended, as seen from outside."""

    kind: Literal["goodbye", "death"]
    """goodbye: the program wrote its last capture file and waits; death: it ended without."""
    at_ns: int
    """The time at which the end was noticed, by CLOCK_MONOTONIC."""
    exit_code: int | None = None
    """The exit code after a death, negative for a signal; None if it is not known."""
    oom_kills: int = 0
    """Number of processes in the program's control group that the kernel killed for memory during
    the run."""
    samples: int = 0
    problem: str = ""
    """One sentence that says why the telemetry is incomplete; "" if it is complete."""


class Program(Protocol):
    """The process that is watched."""

    def gone(self, within_s: float = 0.0) -> bool: ...
    def exit_code(self) -> int | None: ...
    def close(self) -> None: ...


class Samples(Protocol):
    def sample(self, at_ns: int) -> Telemetry: ...
    def close(self) -> None: ...


def watch(
    directory: RunDirectory,
    rank: int,
    pid: int,
    *,
    started: float | None = None,
    program: Program | None = None,
    sampler: Callable[[int], Samples] = Sampler,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Ending:
    """Watch a program and write its telemetry. Return when the program has written its last capture
    or is dead.

    `started` is when the process began, in clock ticks, because ids are reused. A `program` that is
    passed in stays open, because its exit code is not known before it is dead."""
    opened = program is None
    program = program or Watched(pid, started)
    goodbye = _Goodbye(directory.capture_file(rank), pid)
    journal = _Journal(directory, directory.telemetry_file(rank))
    safe_sampler = _SafeSampler(sampler, pid)
    killed_before = processor.oom_kills()
    began = due = clock()
    try:
        dead = program.gone()
        while not (has_ended := goodbye.is_written()) and not dead:
            now = clock()
            if now >= due:
                journal.keep(safe_sampler.sample(now), now)
                due = now + (_SAMPLE_INTERVAL_NS if now - began < _FAST_SAMPLING_NS else _SECOND)
            dead = program.gone(_POLL_INTERVAL_S)
        dead = dead or program.gone()
        if not dead:
            journal.keep(safe_sampler.sample(now := clock()), now)
        journal.flush(clock())
        return Ending(
            kind="goodbye" if has_ended else "death",
            at_ns=clock(),
            exit_code=program.exit_code() if dead else None,
            oom_kills=max(processor.oom_kills() - killed_before, 0),
            samples=journal.samples,
            problem=safe_sampler.problem or journal.problem,
        )
    finally:
        safe_sampler.close()
        if opened:
            program.close()


def ignore_signals() -> None:
    """Ignore signals that would end the watcher's process. A job manager signals every process that
    it can find, and the watcher must outlive the program to write the report."""
    for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


class _SafeSampler:
    """A telemetry sampler that is opened at the first sample and given up after an error."""

    def __init__(self, sampler: Callable[[int], Samples], pid: int) -> None:
        self._open = sampler
        self._pid = pid
        self._sampler: Samples | None = None
        self.problem = ""

    def sample(self, at_ns: int) -> Telemetry | None:
        if self.problem:
            return None
        try:
            if self._sampler is None:
                self._sampler = self._open(self._pid)
            return self._sampler.sample(at_ns)
        except Exception as error:
            self.problem = f"telemetry stopped: {type(error).__name__}: {error}"
            return None

    def close(self) -> None:
        try:
            if self._sampler is not None:
                self._sampler.close()
        except Exception as error:
            self.problem = self.problem or f"telemetry did not close: {error}"


class _Journal:
    """Writes the telemetry file: lines are kept for a second and appended together."""

    def __init__(self, directory: RunDirectory, file: Path) -> None:
        self._directory = directory
        self._name = file.name
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._flushed_ns: int | None = None
        self._bytes = _size(file)
        self.samples = 0
        self.problem = ""

    def keep(self, telemetry: Telemetry | None, now: int) -> None:
        if telemetry is None or self.problem:
            return
        self._lines.append(self._encode(telemetry) + b"\n")
        if self._flushed_ns is None:
            self._flushed_ns = now
        if now - self._flushed_ns >= _SECOND:
            self.flush(now)

    def flush(self, now: int) -> None:
        lines, self._lines = self._lines, []
        self._flushed_ns = now
        data = b"".join(lines)
        if not data or self.problem:
            return
        if self._bytes + len(data) > MAX_TELEMETRY_BYTES:
            self.problem = f"telemetry stopped at {MAX_TELEMETRY_BYTES >> 20} MiB, its largest size"
            return
        try:
            self._directory.append(self._name, data)
        except OSError as error:
            self.problem = f"telemetry could not be written: {error.strerror or error}"
            return
        self._bytes += len(data)
        self.samples += len(lines)


class _CaptureEnd(Struct, frozen=True):
    """The two fields of a capture file that tell whether the program has ended."""

    ended: str = "running"
    pid: int = 0


class _Goodbye:
    """Checks whether the program has written its last capture file, which is only decoded when it
    has changed."""

    def __init__(self, path: Path, pid: int) -> None:
        self._path = path
        self._pid = pid
        self._seen: tuple[int, int, int] | None = None
        self._decode = msgspec.json.Decoder(_CaptureEnd).decode

    def is_written(self) -> bool:
        try:
            now = _version(self._path.stat())
            if now == self._seen:
                return False
            self._seen = now
            end = self._decode(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return False
        # A restarted rank finds the file of the previous attempt, with another pid.
        return end.ended != "running" and end.pid in (0, self._pid)


def _version(status: stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def start(directory: RunDirectory) -> "subprocess.Popen[bytes]":
    """Start a process that watches this one."""
    home = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), home]))
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ridgeline.harness.capture.watching",
            str(directory.path),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def main() -> None:
    ignore_signals()
    watch(RunDirectory(Path(sys.argv[1])), 0, int(sys.argv[2]))


if __name__ == "__main__":
    main()
