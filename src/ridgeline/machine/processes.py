"""The processes of a program, itself and all it started, as /proc shows them.

Read directly: psutil opens more files and builds more objects for the same counters, ten times a
second beside a program that is being measured. Where there is no /proc, psutil it is
(`portable.py`). A process that vanishes between listing and reading is left out.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from ridgeline.records.run import ProcessSample

PROC = "/proc"


class Stat(Struct, frozen=True):
    """The fields of /proc/<pid>/stat that are used here."""

    state: str
    parent: int
    major_faults: int
    ticks: int
    """User and system time."""
    threads: int
    started: int
    """In clock ticks since the machine began: with the id, this names a process for good."""
    exit_status: int = 0
    """As wait() gives it; 0 too where it may not be seen."""


class Tree:
    """A process and its descendants, found again at each look.

    Only ids that were not there before are opened, and nothing is listed while no process was
    started anywhere. A descendant stays one when its parent dies."""

    def __init__(self, pid: int, *, proc: str = PROC) -> None:
        self._proc = proc
        self._pid = pid
        # The watcher was started by the program, and is its child again where the program is
        # process 1 of a container.
        self._stranger = os.getpid() if os.getpid() != pid else 0
        self._started: dict[int, int] = {}
        """Members, and when each began."""
        self._known: set[int] = set()
        self._newest = -1
        self._tick = _per_second()
        self._page = os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> list[int]:
        """Members, the program first."""
        self._look()
        return list(self._started)

    def sample(self, pids: Iterable[int] | None = None) -> tuple[ProcessSample, ...]:
        """One reading of each member, or of those named."""
        found = (self._read(pid) for pid in (self.pids() if pids is None else list(pids)))
        return tuple(sample for sample in found if sample is not None)

    def _look(self) -> None:
        newest = _newest_pid(self._proc)
        if newest == self._newest and newest >= 0:
            return
        self._newest = newest
        present = {int(name) for name in _listed(self._proc) if name.isdigit()}
        self._known &= present
        for gone in self._started.keys() - present:
            del self._started[gone]
        # A child mostly has a higher id than its parent, but ids start again at the top: what
        # found no parent is tried once more after all the others.
        left = self._adopt(sorted(present - self._known))
        while left and len(again := self._adopt(left)) < len(left):
            left = again
        self._known |= present

    def _adopt(self, pids: Iterable[int]) -> list[int]:
        """Takes in the children of members; the others are given back."""
        left = []
        for pid in pids:
            if pid == self._stranger:
                continue
            seen = stat(pid, self._proc)
            if seen is None:
                continue
            if pid == self._pid or seen.parent in self._started:
                self._started[pid] = seen.started
            else:
                left.append(pid)
        return left

    def _read(self, pid: int) -> ProcessSample | None:
        seen = stat(pid, self._proc)
        # A dead one that nobody waited for yet works no more; another start: the id was used again.
        if seen is None or seen.state in "ZX" or self._started.get(pid) != seen.started:
            self._started.pop(pid, None)
            self._known.discard(pid)
            return None
        resident = _read(f"{self._proc}/{pid}/statm").split()
        storage = _fields(_read(f"{self._proc}/{pid}/io"))
        return ProcessSample(
            pid=pid,
            worker=pid != self._pid,
            cpu_s=round(seen.ticks / self._tick, 3),
            rss_bytes=int(resident[1]) * self._page if len(resident) > 1 else 0,
            read_bytes=storage.get(b"read_bytes", 0),
            write_bytes=storage.get(b"write_bytes", 0),
            major_faults=seen.major_faults,
            threads=seen.threads,
        )


def stat(pid: int, proc: str = PROC) -> Stat | None:
    """None: there is no such process."""
    # The name stands in brackets and may hold anything, brackets too.
    fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        major_faults=int(fields[9]),
        ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        started=int(fields[19]),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def supported(proc: str = PROC) -> bool:
    return Path(proc, "self", "stat").exists()


def _newest_pid(proc: str) -> int:
    """The id given out last; -1 where the system does not say. While it stays, nobody is new."""
    last = _read(f"{proc}/loadavg").split()[-1:]
    return int(last[0]) if last and last[0].isdigit() else -1


def _listed(proc: str) -> list[str]:
    try:
        return os.listdir(proc)
    except OSError:
        return []


def _fields(text: bytes) -> dict[bytes, int]:
    pairs = (line.split(b": ") for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _read(path: str) -> bytes:
    # os.open costs half of open(), and these are dozens a look. None of the files is longer.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:
        return b""
    finally:
        os.close(file)


class PortableTree:
    """As `processes.Tree`, without storage and faults, which psutil gives only here and there."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._pid = pid
        self._gone: type[Exception] = psutil.Error
        self._find = psutil.Process
        self._members: dict[int, Any] = {}

    def pids(self) -> list[int]:
        try:
            program = self._members.get(self._pid) or self._find(self._pid)
            found = [program, *program.children(recursive=True)]
        except self._gone:
            return []
        own = self._find().pid
        self._members = {process.pid: process for process in found if process.pid != own}
        return list(self._members)

    def sample(self, pids: Iterable[int] | None = None) -> tuple[ProcessSample, ...]:
        found = (self._read(pid) for pid in (self.pids() if pids is None else list(pids)))
        return tuple(sample for sample in found if sample is not None)

    def _read(self, pid: int) -> ProcessSample | None:
        try:
            process = self._members[pid]
            with process.oneshot():
                times = process.cpu_times()
                return ProcessSample(
                    pid=pid,
                    worker=pid != self._pid,
                    cpu_s=round(times.user + times.system, 3),
                    rss_bytes=process.memory_info().rss,
                    threads=process.num_threads(),
                )
        except (self._gone, KeyError):
            return None
