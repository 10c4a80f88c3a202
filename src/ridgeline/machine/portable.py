"""The processes of a program where there is no /proc: slower, by psutil."""

from collections.abc import Iterable
from typing import Any

from ridgeline.records.run import ProcessSample


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
