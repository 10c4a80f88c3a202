"""A run on disk, `.ridgeline/runs/<time>-<name>/`: the names of its files, and how they are written
and read.

Whole files appear by rename, and files of lines grow by one write at a time, so that a kill at any
moment leaves a directory that can be read. This module is also used inside the user's program, so
it imports little and keeps no file open.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TypeVar

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.run import (
    SCHEMA,
    Capture,
    RunFile,
    Sampled,
    Status,
    Step,
    TargetKind,
    Telemetry,
)

if TYPE_CHECKING:
    from ridgeline.records.run_summary import RunSummary

RECENT_WRITE_S = 120.0
"""A run on another machine counts as running if it was written to within this time. Telemetry comes
at least once a second, and the clocks of two machines differ by less than this."""


class RunDirectory:
    """The directory of one run. It need not exist: reading then returns nothing or raises a
    RidgelineError."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, root: Path, name: str, *, shared: bool = False) -> Self:
        """Make the directory `name` in `root`, which only its user can read. With `shared`, all
        ranks of a job get the same directory; else a name that is taken becomes `name`-2."""
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
    def case_file(self) -> Path:
        """The facts that the findings were made from, compressed; see `diagnosis.stored_case`."""
        return self.path / "case.msgpack.zlib"

    @property
    def page_file(self) -> Path:
        """The page that `ridgeline run` leaves."""
        return self.path / "report.html"

    @property
    def stopping_file(self) -> Path:
        """A file that exists once the program was ended after the requested number of steps."""
        return self.path / "stopping"

    def steps_file(self, rank: int = 0) -> Path:
        return self.path / (f"steps-rank{rank}.jsonl" if rank else "steps.jsonl")

    def telemetry_file(self, rank: int = 0) -> Path:
        return self.path / (f"telemetry-rank{rank}.jsonl" if rank else "telemetry.jsonl")

    def capture_file(self, rank: int = 0) -> Path:
        return self.path / f"capture-rank{rank}.json"

    def trace_file(self, rank: int = 0) -> Path:
        return self.path / f"trace-rank{rank}.json.gz"

    def stored_trace(self, rank: int = 0) -> Path | None:
        """Return the trace of a rank, which is not packed yet if the run was killed; None if there
        is no trace."""
        packed = self.trace_file(rank)
        return next((path for path in (packed, packed.with_suffix("")) if path.is_file()), None)

    def allocations_file(self, rank: int = 0) -> Path:
        return self.path / f"allocations-rank{rank}.msgpack"

    @property
    def memory_study_file(self) -> Path:
        return self.path / "memory.json"

    def memory_file(self, rank: int = 0) -> Path:
        return self.path / f"memory-rank{rank}.pickle"

    def lock_file(self, rank: int = 0) -> Path:
        return self.path / f".watch-rank{rank}.lock"

    def python_file(self, pid: int) -> Path:
        return self.path / f"python-{pid}.jsonl"

    def write_whole(self, name: str | Path, data: bytes) -> None:
        """Write the file `name` by rename: it appears complete, or stays as it was. Raise OSError
        if that fails."""
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
        """Append `data`, which are whole lines, to the file `name`. Raise OSError if not all of it
        could be written; the file is then as before."""
        # O_NONBLOCK: a pipe that somebody put under this name must not stop the program.
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
        """Return the path of the file `name` in this directory. Raise RidgelineError if the name
        would lead elsewhere; it may come from a file that somebody else wrote."""
        if isinstance(name, Path) and name.parent == self.path:
            name = name.name
        name = str(name)
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise RidgelineError(f"{name!r} is no name of a file in a run")
        return self.path / name

    def run(self) -> RunFile:
        """Read run.json. Raise RidgelineError if it is missing or cannot be read."""
        try:
            return read_whole(self.run_file, RunFile)
        except FileNotFoundError as error:
            raise RidgelineError(f"{self.path} is not a run: it has no run.json") from error

    def summary(self) -> "RunSummary | None":
        """Read the summary; None if the run has not been concluded."""
        from ridgeline.records.run_summary import RunSummary

        try:
            return read_whole(self.summary_file, RunSummary)
        except FileNotFoundError:
            return None

    def captures(self) -> tuple[Capture, ...]:
        """Return the captures of every rank whose file can be read, by rank."""
        return self.read_captures()[0]

    def damaged_captures(self) -> tuple[str, ...]:
        """Return a sentence for each file of a rank that cannot be read."""
        return self.read_captures()[1]

    def read_captures(self) -> tuple[tuple[Capture, ...], tuple[str, ...]]:
        """Return the captures of every rank, by rank, and a sentence for each that cannot be read.
        Each file is decoded once."""
        read = list(self._captures())
        captures = tuple(item for item in read if isinstance(item, Capture))
        return captures, tuple(item for item in read if isinstance(item, str))

    def capture(self, rank: int = 0) -> Capture | None:
        """Read the capture of a rank; None if it does not exist yet."""
        try:
            return read_whole(self.capture_file(rank), Capture)
        except FileNotFoundError:
            return None

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that have a capture file, in order."""
        numbers = (_number(name, "capture-rank", ".json") for name in self._names())
        return tuple(sorted(rank for rank in numbers if rank is not None))

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
            if capture.ended == "running" and is_process_alive(capture.pid, 0.0)
        )

    def steps(self, rank: int = 0) -> "Lines[Step]":
        return read_lines(self.steps_file(rank), Step)

    def telemetry(self, rank: int = 0) -> "Lines[Telemetry]":
        return read_lines(self.telemetry_file(rank), Telemetry)

    def sampled(self) -> "Lines[Sampled]":
        """Read the sampled Python stacks of every process, one process after the other."""
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
        """Return the status in run.json. A run that is still "running" there while its process is
        gone has the status that its capture gives, or was killed."""
        run = self.run()
        if run.status != "running":
            return run.status
        with contextlib.suppress(RidgelineError):  # the capture may be damaged
            capture = self.capture()
            if capture is not None and capture.ended != "running":
                return capture.ended
        return "running" if self.busy(run) else "killed"

    def busy(self, run: RunFile | None = None) -> bool:
        """Return whether something may still write here: the program is alive, perhaps on another
        machine."""
        run = run or self.run()
        if run.status != "running":
            return False
        host = run.environment.host
        if host and host != os.uname().nodename:
            return time.time() - self._last_written() < RECENT_WRITE_S
        return is_process_alive(run.pid, run.pid_started)

    def size(self) -> int:
        """Return the size of all files in the directory, in bytes; links are not followed."""
        return sum(entry.st_size for entry in plain_files(self.path))

    def remove(self) -> int:
        """Delete the run and return how many bytes that freed; see `runs.remove`."""
        from ridgeline.records.runs import remove

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


def _number(name: str, prefix: str, suffix: str) -> int | None:
    """Return the number between `prefix` and `suffix` in a file's name; None if there is none."""
    digits = name.removeprefix(prefix).removesuffix(suffix)
    is_number = name == f"{prefix}{digits}{suffix}" and digits.isascii() and digits.isdigit()
    return int(digits) if is_number and len(digits) < 10 else None


def plain_files(folder: Path | str) -> Iterator[os.stat_result]:
    """Yield the status of every plain file below `folder`; links are not followed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                if entry.is_dir(follow_symlinks=False):
                    yield from plain_files(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False)


T = TypeVar("T")

MAX_LINE_BYTES = 16 << 20
"""Longest line that is read: a step takes 0.3 kB, and a second of sampled stacks at most a few
hundred kB."""
MAX_LINES_FILE_BYTES = 128 << 20
"""Only this much of a file of lines is read, from its beginning: 400,000 steps, which take four
times as much memory once decoded."""
MAX_WHOLE_FILE_BYTES = 64 << 20


class Lines(tuple[T, ...]):
    """The records in a file of lines, and how much of the file was not read."""

    damaged: int = 0
    """Number of lines that could not be decoded and were skipped. A last line that was cut off by a
    kill does not count."""
    unread_bytes: int = 0
    """Bytes beyond the part of a file that is read."""

    def __new__(cls, items: Iterable[T] = (), damaged: int = 0, unread_bytes: int = 0) -> Self:
        made = super().__new__(cls, tuple(items))
        made.damaged = damaged
        made.unread_bytes = unread_bytes
        return made


class NewerSchema(RidgelineError):
    """The file was written by a later version, in which its fields may mean something else."""


class _Versioned(Struct):
    schema: int = SCHEMA


def read_lines(path: Path, kind: type[T], max_bytes: int = MAX_LINES_FILE_BYTES) -> Lines[T]:
    """Decode every line of `path` as a `kind`, up to `max_bytes`. A file that does not exist has no
    lines."""
    decoder = msgspec.json.Decoder(kind)
    items: list[T] = []
    damaged = 0
    try:
        with open_plain_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            for line, ended in _lines(file, max_bytes):
                try:
                    items.append(decoder.decode(line))
                except (ValueError, RecursionError):
                    damaged += ended
    except FileNotFoundError:
        return Lines()
    except OSError as error:
        raise RidgelineError(f"{path} cannot be read: {error.strerror or error}") from error
    return Lines(items, damaged, max(size - max_bytes, 0))


def read_whole(path: Path, kind: type[T]) -> T:
    """Read the record in `path`. Raise FileNotFoundError if the file does not exist, and
    RidgelineError if its schema is newer, if it is damaged, or if it is not a plain file."""
    try:
        with open_plain_file(path) as file:
            data = file.read(MAX_WHOLE_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RidgelineError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_WHOLE_FILE_BYTES:
        raise RidgelineError(
            f"{path} is damaged: it is larger than {MAX_WHOLE_FILE_BYTES >> 20} MiB"
        )
    if not data.strip():
        raise RidgelineError(f"{path} is damaged: it is empty")
    refuse_newer(path, data, newest_schema(kind))
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise RidgelineError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def newest_schema(kind: type) -> int:
    """Return the schema that this version writes a kind of record with."""
    return next((f.default for f in msgspec.structs.fields(kind) if f.name == "schema"), SCHEMA)


def refuse_newer(path: Path, data: bytes, newest: int = SCHEMA) -> None:
    try:
        schema = msgspec.json.decode(data, type=_Versioned).schema
    except (ValueError, RecursionError):
        return  # the file is damaged, which the caller reports with more detail
    if schema > newest:
        raise NewerSchema(
            f"{path} was written by a newer ridgeline: its schema is {schema}, and this one reads "
            f"up to {newest}",
            "upgrade ridgeline to read this run",
        )


def open_plain_file(path: Path) -> IO[bytes]:
    """Open `path` for reading if it is a plain file. Links are not followed, and pipes are not
    waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def _lines(file: IO[bytes], max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each line that is not blank, and whether the line is complete. For a line that is too
    long, yield an empty line, which cannot be decoded."""
    left, long = max_bytes, False
    while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES))):
        left -= len(line)
        ended = line.endswith(b"\n")
        part, long = long, not ended and len(line) == MAX_LINE_BYTES
        if long or part:
            if ended or not long:
                yield b"", True
        elif line.strip():
            yield line, ended


def started(pid: int) -> float:
    """Return when process `pid` began, in the system's clock ticks; 0 if it is gone or not
    known."""
    fields = _stat_fields(pid)
    try:
        return float(fields[19]) if len(fields) > 19 else 0.0
    except ValueError:
        return 0.0


def is_process_alive(pid: int, began: float) -> bool:
    """Return whether the process with this id that began at `began` (clock ticks) is alive. With 0
    for `began`, any process with this id counts."""
    if pid <= 0:
        return False
    fields = _stat_fields(pid)
    if fields:
        # A zombie has ended; only its parent has not collected it yet.
        return fields[0] not in ("Z", "X", "x") and (not began or started(pid) == began)
    return not os.path.isdir("/proc/self") and _is_id_taken(pid)


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; none if the file cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096).decode("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name in parentheses may hold spaces


def _is_id_taken(pid: int) -> bool:
    """Return whether a process has this id, on a system without /proc."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


HOME = ".ridgeline"
MAX_PROGRAM_NAME_LENGTH = 40


def make_directory(root: Path, name: str, shared: bool) -> Path:
    """Make the directory of a run, as `RunDirectory.make` describes."""
    _refuse_name(name)
    try:
        _make_root(root)
        for number in range(1, 1000):
            path = root / (name if number == 1 else f"{name}-{number}")
            if _make_folder(path) or shared:
                return path
    except OSError as error:
        raise RidgelineError(
            f"a run directory cannot be made in {root}: {error.strerror or error}",
            "choose another place with --runs-dir",
        ) from error
    raise RidgelineError(f"there are a thousand runs called {name} in {root}")


def runs_root(directory: Path | None = None) -> Path:
    """Return the directory that keeps the runs of programs started in `directory`."""
    return (Path.cwd() if directory is None else directory) / HOME / "runs"


def run_name(kind: TargetKind, program: str, at: datetime) -> str:
    """Return the name of a run that begins at `at`, such as 1115-120301-train."""
    stem = {"script": Path(program).stem, "module": program, "code": "code"}.get(kind)
    if stem in ("__main__", ""):
        stem = Path(program).absolute().parent.name
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem or "program").strip("-.")
    return f"{at:%m%d-%H%M%S}-{word[:MAX_PROGRAM_NAME_LENGTH] or 'program'}"


def restarted_name(name: str, restarts: int) -> str:
    """Return the name of a job's run after this number of restarts; `name` is the first run's."""
    return f"{name}-restart{restarts}" if restarts else name


def _refuse_name(name: str) -> None:
    if not name or name.startswith(".") or len(name) > 120 or not name.isprintable():
        raise RidgelineError(f"{name!r} cannot be the name of a run")
    if "/" in name or "\\" in name:
        raise RidgelineError(f"{name!r} cannot be the name of a run: it is a path")


def _make_root(root: Path) -> None:
    home = root.parent
    if (home.name, root.name) != (HOME, "runs"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    if _make_folder(home):
        with contextlib.suppress(OSError), open(home / ".gitignore", "x") as file:
            file.write("*\n")
    _make_folder(root)


def _make_folder(path: Path) -> bool:
    """Make the directory `path` and return True; return False if it exists. Raise RidgelineError if
    it is a link or belongs to another user: a folder that others can write to, or a repository, may
    hold a link that leads elsewhere."""
    try:
        os.mkdir(path, 0o700)
        return True
    except FileExistsError:
        found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise RidgelineError(f"{path} is a link, and links are not followed", "remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise RidgelineError(f"{path} is in the way: it is not a directory")
    # The owner of the parent folder can replace anything in it anyway, and some shared file systems
    # show one owner for all files.
    trusted = {0, os.geteuid(), os.lstat(path.absolute().parent).st_uid}
    if os.geteuid() != 0 and found.st_uid not in trusted:
        hint = "choose another place with --runs-dir"
        raise RidgelineError(f"{path} belongs to another user", hint)
    return False
