"""Writes what is recorded: steps a line each, at most once a second; the rest whole, by rename.

No file stays open and no thread runs: the program's descriptors and threads are its own. If the
disk is full or gone, that is said once, and the program goes on.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ridgeline.records.run import Capture, Step
from ridgeline.records.run_directory import RunDirectory

FLUSH_NS = 1_000_000_000
MOST_ROWS = 1_000_000
"""About 300 MB of lines: only `--full` gets there, and it is said."""


class Journal:
    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = RunDirectory(directory)
        self.rank = rank
        self._rows: list[Step] = []
        self._written = 0
        self._flushed_ns = time.perf_counter_ns()
        self.broken = ""
        """Why nothing can be written any more."""

    def due(self, now_ns: int) -> bool:
        return now_ns - self._flushed_ns >= FLUSH_NS

    def add(self, steps: list[Step]) -> None:
        room = MOST_ROWS - self._written - len(self._rows)
        self._rows.extend(steps[:room])

    @property
    def full(self) -> bool:
        return self._written + len(self._rows) >= MOST_ROWS

    def flush(self, now_ns: int) -> None:
        self._flushed_ns = now_ns
        if not self._rows:
            return
        encode = msgspec.json.Encoder().encode
        data = b"".join(encode(row) + b"\n" for row in self._rows)
        name = self.directory.steps_file(self.rank).name
        if self.try_(lambda: self.directory.append(name, data)):
            self._written += len(self._rows)
        self._rows.clear()

    def again(self) -> None:
        """What was counted so far was no step."""
        self._rows.clear()
        if self._written:
            name = self.directory.steps_file(self.rank).name
            self.try_(lambda: self.directory.write_whole(name, b""))
            self._written = 0

    def capture(self, capture: Capture) -> bool:
        data = msgspec.json.encode(capture)
        name = self.directory.capture_file(self.rank).name
        return self.try_(lambda: self.directory.write_whole(name, data), last=True)

    def try_(self, write: Callable[[], object], last: bool = False) -> bool:
        if self.broken and not last:
            return False
        try:
            write()
        except OSError as error:
            self.broken = self.broken or f"could not be written: {error.strerror or error}"
            return False
        return True
