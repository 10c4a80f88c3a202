"""A run on disk: `.ridgeline/runs/<time>-<name>/`, what its files are called, written and read.

Whole files appear by rename, files of lines grow by one write each, so that a kill at any moment
leaves a directory that can be read. Used inside the user's program too: imports little, keeps no
file open.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ridgeline.errors import RidgelineError
from ridgeline.records import run_process
from ridgeline.records.run import Capture, RunFile, Status
from ridgeline.records.run_making import make_directory
from ridgeline.records.run_reading import Lines, NewerSchema, read_lines, read_whole

if TYPE_CHECKING:
    from ridgeline.records.python_view import Sampled
    from ridgeline.records.run_summary import RunSummary
    from ridgeline.records.step import Step
    from ridgeline.records.telemetry import Telemetry

LATELY_S = 120.0
"""Written to within this time, a run on another machine is running: telemetry comes ten times a
second, and clocks of two machines differ by less."""


class RunDirectory:
    """One run. `path` need not be there: what is not is read as nothing, or said in a sentence."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, root: Path, name: str, *, shared: bool = False) -> Self:
        """The directory `name` in `root`, for its user alone. `shared`: the ranks of one job come
        to the same one; else another run that has the name already makes this `name`-2."""
        return cls(make_directory(root, name, shared))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def findings_file(self) -> Path:
        return self.path / "findings.json"

    @property
    def stopping_file(self) -> Path:
        """There once the program was told to end, after the steps that were asked for."""
        return self.path / "stopping"

    def steps_file(self, rank: int = 0) -> Path:
        return self.path / (f"steps-rank{rank}.jsonl" if rank else "steps.jsonl")

    def telemetry_file(self, rank: int = 0) -> Path:
        return self.path / (f"telemetry-rank{rank}.jsonl" if rank else "telemetry.jsonl")

    def capture_file(self, rank: int = 0) -> Path:
        return self.path / f"capture-rank{rank}.json"

    def trace_file(self, rank: int = 0) -> Path:
        return self.path / f"trace-rank{rank}.json.gz"

    def memory_file(self, rank: int = 0) -> Path:
        return self.path / f"memory-rank{rank}.pickle"

    def lock_file(self, rank: int = 0) -> Path:
        return self.path / f".watch-rank{rank}.lock"

    def python_file(self, pid: int) -> Path:
        return self.path / f"python-{pid}.jsonl"

    def write_whole(self, name: str | Path, data: bytes) -> None:
        """The file `name` appears complete, by rename, or stays as it was. Raises OSError."""
        target = self.named(name)
        temporary = self.path / f".{target.name}.{os.urandom(4).hex()}"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            try:
                # There is no fsync: a file survives a kill without it, which is what we promise,
                # and a disk that is busy with a checkpoint would hold the program up for seconds.
                _write_all(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def append(self, name: str | Path, data: bytes) -> None:
        """`data`, whole lines, at the end of `name`, or nothing of it. Raises OSError."""
        # Not blocking: a pipe that somebody put under this name must not stop the program.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self.named(name)
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file", str(path))
            if os.write(descriptor, data) != len(data):
                os.ftruncate(descriptor, before.st_size)  # the disk is full: no half line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)

    def named(self, name: str | Path) -> Path:
        """The file of that name in here, and nowhere else, whoever wrote the name."""
        if isinstance(name, Path) and name.parent == self.path:
            name = name.name
        name = str(name)
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise RidgelineError(f"{name!r} is no name of a file in a run")
        return self.path / name

    def run(self) -> RunFile:
        """run.json, or one sentence."""
        try:
            return read_whole(self.run_file, RunFile)
        except FileNotFoundError as error:
            raise RidgelineError(f"{self.path} is not a run: it has no run.json") from error

    def summary(self) -> "RunSummary | None":
        """What was concluded, where it was."""
        from ridgeline.records.run_summary import RunSummary

        try:
            return read_whole(self.summary_file, RunSummary)
        except FileNotFoundError:
            return None

    def captures(self) -> tuple[Capture, ...]:
        """Of every rank whose file can be read, by rank."""
        return tuple(found for found in self._captures() if isinstance(found, Capture))

    def damaged_captures(self) -> tuple[str, ...]:
        """A sentence for each file of a rank that cannot be read."""
        return tuple(found for found in self._captures() if isinstance(found, str))

    def capture(self, rank: int = 0) -> Capture | None:
        """None where there is none yet."""
        try:
            return read_whole(self.capture_file(rank), Capture)
        except FileNotFoundError:
            return None

    def ranks(self) -> tuple[int, ...]:
        """Those that left a capture."""
        found = (_number(name, "capture-rank", ".json") for name in self._names())
        return tuple(sorted(rank for rank in found if rank is not None))

    def damage(self) -> tuple[str, ...]:
        """Return a sentence for each necessary file that cannot be read: run.json and the captures.
        Raise NewerSchema if a later version wrote the run."""
        try:
            self.run()
        except NewerSchema:
            raise
        except RidgelineError as error:
            return (error.message, *self.damaged_captures())
        return self.damaged_captures()

    def open_ranks(self) -> tuple[int, ...]:
        """Return the ranks that began on this machine, are alive, and have not written how they
        ended."""
        return tuple(
            capture.rank
            for capture in self.captures()
            if capture.ended == "running" and run_process.alive(capture.pid, 0.0)
        )

    def steps(self, rank: int = 0) -> "Lines[Step]":
        from ridgeline.records.step import Step

        return read_lines(self.steps_file(rank), Step)

    def telemetry(self, rank: int = 0) -> "Lines[Telemetry]":
        from ridgeline.records.telemetry import Telemetry

        return read_lines(self.telemetry_file(rank), Telemetry)

    def sampled(self) -> "Lines[Sampled]":
        """Of every process, one after the other."""
        from ridgeline.records.python_view import Sampled

        pids = (_number(name, "python-", ".jsonl") for name in self._names())
        files = [
            read_lines(self.python_file(pid), Sampled)
            for pid in sorted(pid for pid in pids if pid is not None)
        ]
        return Lines(
            (item for file in files for item in file),
            sum(file.damaged for file in files),
            sum(file.unread_bytes for file in files),
        )

    def status(self) -> Status:
        """As run.json has it; one left "running" by a process that is gone was killed, unless the
        program said goodbye itself."""
        run = self.run()
        if run.status != "running":
            return run.status
        with contextlib.suppress(RidgelineError):  # damaged: it says nothing
            capture = self.capture()
            if capture is not None and capture.ended != "running":
                return capture.ended
        return "running" if self.busy(run) else "killed"

    def busy(self, run: RunFile | None = None) -> bool:
        """Whether something may still write here: the program lives, or does on another machine."""
        run = run or self.run()
        if run.status != "running":
            return False
        host = run.environment.host
        if host and host != os.uname().nodename:
            return time.time() - self._last_written() < LATELY_S
        return run_process.alive(run.pid, run.pid_started)

    def size(self) -> int:
        """Bytes of all files in here; links are not followed."""
        return sum(entry.st_size for entry in plain_files(self.path))

    def remove(self) -> int:
        """Delete the run, and say how many bytes that freed; see `run_removal`."""
        from ridgeline.records.run_removal import remove

        return remove(self)

    def _captures(self) -> Iterator[Capture | str]:
        for rank in self.ranks():
            try:
                yield read_whole(self.capture_file(rank), Capture)
            except FileNotFoundError:
                continue
            except NewerSchema:
                raise
            except RidgelineError as error:
                yield error.message

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:
            return []

    def _last_written(self) -> float:
        return max((entry.st_mtime for entry in plain_files(self.path)), default=0.0)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _number(name: str, before: str, after: str) -> int | None:
    middle = name.removeprefix(before).removesuffix(after)
    right = name == f"{before}{middle}{after}" and middle.isascii() and middle.isdigit()
    return int(middle) if right and len(middle) < 10 else None


def plain_files(folder: Path | str) -> Iterator[os.stat_result]:
    """Of all plain files below `folder`; links are not followed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                if entry.is_dir(follow_symlinks=False):
                    yield from plain_files(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False)
