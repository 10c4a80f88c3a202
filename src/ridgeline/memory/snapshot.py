"""Reads a snapshot of the CUDA allocator, as `torch.cuda.memory._dump_snapshot` writes it, into
columns. The pickle is opened in a child process with limits; see `unpickling`."""

import contextlib
import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.memory import unpickling
from ridgeline.memory.unpickling import ACTIONS, OTHER_ACTION, STATES, Refusal
from ridgeline.units import bytes_

Ints = NDArray[np.int64]

MEMORY_PER_BYTE = 12
"""The child may take 12 times the unpacked size of the file: real snapshots take 4 to 7 times."""
MIN_MEMORY_BYTES = 1 << 30
LIKELY_MEMORY_PER_BYTE = 6
"""A snapshot larger than a sixth of the free memory is refused before it is opened."""
MIN_CPU_S, CPU_S_PER_BYTE = 9, 1e-7
"""Processor time of the child: 9 s, and 10 s for each 100 MB. Reading takes a fifth of that."""
WALL_FACTOR = 6
"""The child may take so many times its processor time, on a machine with other work."""
MIN_BOMB_BYTES = 1 << 28
MAX_PACKING_RATIO = 250
"""A gzip file is refused that unpacks to more than 256 MiB and more than 250 times its size."""
READ_BYTES = 1 << 20
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables without which some builds of Python do not start. The child gets no others."""

ALLOC, FREE_REQUESTED, FREE_COMPLETED, FREE = range(4)
SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, SNAPSHOT = range(4, 10)
assert ACTIONS[OOM] == "oom"
assert OTHER_ACTION == SNAPSHOT + 1
INACTIVE, ACTIVE, PENDING, AWAITING = range(len(STATES))


class Header(Struct):
    """The child sends this before the columns: why it refused the file, or which columns follow."""

    refused: Refusal | None = None
    facts: dict[str, str | int] = {}
    events_of_devices: list[int] = []
    damaged: int = 0
    settings: dict[str, str | int | float | bool] = {}
    annotation_names: list[str] = []
    frames: list[tuple[str, int, str]] = []
    columns: list[tuple[str, str, int]] = []


class Stacks:
    """All different stacks of a snapshot, with their frames innermost first."""

    def __init__(self, frames: Sequence[tuple[str, int, str]], ends: Ints, members: Ints) -> None:
        self.frames = frames
        """(file, line, function)"""
        self._ends = ends
        self._members = members

    def __len__(self) -> int:
        return len(self._ends)

    def of(self, stack: int) -> list[int]:
        """Return the numbers of the frames of a stack, innermost first; none for stack -1."""
        if stack < 0:
            return []
        start = int(self._ends[stack - 1]) if stack else 0
        members: list[int] = self._members[start : int(self._ends[stack])].tolist()
        return members


class Snapshot:
    """The columns of a snapshot. `events(device)` gives the events of one device."""

    def __init__(self, header: Header, columns: dict[str, NDArray[Any]]) -> None:
        self.settings = header.settings
        self.damaged = header.damaged
        """How many events, segments and blocks were left out because they are damaged."""
        self.columns = columns
        self.annotation_names = header.annotation_names
        self.events_of_devices = header.events_of_devices
        self.stacks = Stacks(header.frames, columns["stack_ends"], columns["stack_frames"])

    @property
    def devices(self) -> list[int]:
        """Return the devices that have events or segments, in order."""
        have = {n for n, events in enumerate(self.events_of_devices) if events}
        return sorted(have | set(self.columns["segment_device"].tolist()))

    @property
    def has_history(self) -> bool:
        return any(self.events_of_devices)

    @property
    def has_stacks(self) -> bool:
        return len(self.stacks) > 0

    def events(self, device: int) -> dict[str, NDArray[Any]]:
        """Return the columns action, address, size, stream, time_us and stack of a device."""
        counts = self.events_of_devices
        start = sum(counts[:device])
        rows = slice(start, start + (counts[device] if device < len(counts) else 0))
        names = ("action", "address", "event_size", "event_stream", "time_us", "stack")
        return {name.removeprefix("event_"): self.columns[name][rows] for name in names}

    def segments(self, device: int) -> dict[str, Ints]:
        """Return the columns address, size, stream, is_large and is_expandable, and `number`, to
        which the blocks refer."""
        columns = _beginning(self.columns, "segment_")
        rows = np.flatnonzero(columns["device"] == device)
        return {name: column[rows] for name, column in columns.items()} | {"number": rows}

    def blocks(self, device: int) -> dict[str, Ints]:
        """Return the columns segment, address, size, requested, state and stack."""
        columns = _beginning(self.columns, "block_")
        devices = self.columns["segment_device"]
        rows = np.flatnonzero(devices[columns["segment"]] == device)
        return {name: column[rows] for name, column in columns.items()}

    def annotations(self, device: int) -> list[tuple[str, bool, int]]:
        """Return (name, is the start, microseconds) of each annotation of a device, in order."""
        columns = _beginning(self.columns, "annotation_")
        rows = np.flatnonzero(columns["device"] == device)
        rows = rows[np.argsort(columns["time_us"][rows], kind="stable")]
        names = self.annotation_names
        return [
            (names[name], bool(start), time)
            for name, start, time in zip(
                columns["name"][rows].tolist(),
                columns["is_start"][rows].tolist(),
                columns["time_us"][rows].tolist(),
                strict=True,
            )
        ]


def _beginning(columns: dict[str, NDArray[Any]], start: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(start): c for name, c in columns.items() if name.startswith(start)}


_EMPTY = {
    "action": "B", "address": "Q", "event_size": "q", "event_stream": "q", "time_us": "q",
    "stack": "i",
}  # fmt: skip


def read_snapshot(path: Path, *, max_bytes: int | None = None) -> Snapshot:
    """Read a snapshot, plain or packed with gzip. Raise RidgelineError for whatever cannot be read;
    nothing in the file is run.

    `max_bytes` is how large the unpacked file may be; by default a sixth of the free memory.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = _unpacked_size(path, file, max_bytes)
            answer, code = _opened_by_child(path, file, size)
    except OSError as error:
        raise RidgelineError(f"{path}: {error.strerror or error}") from error
    return _decoded(path, answer, code)


def _unpacked_size(path: Path, file: io.FileIO, max_bytes: int | None) -> int:
    """Return the unpacked size of the file, and leave the file at its beginning."""
    limit = max_bytes
    if limit is None:
        limit = psutil.virtual_memory().available // LIKELY_MEMORY_PER_BYTE
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not size:
        raise RidgelineError(f"{path}: the file is empty", _HOW_TO_RECORD)
    unpacked = size
    if is_packed and size <= limit:
        most = min(limit, max(MIN_BOMB_BYTES, size * MAX_PACKING_RATIO))
        unpacked = _gzip_size(path, file, most)
        if unpacked > most and most < limit:
            raise RidgelineError(
                f"{path}: refused, it unpacks to more than {MAX_PACKING_RATIO} times its size",
                "no snapshot does; unpack it yourself if you trust it",
            )
    if unpacked > limit:
        more = "more than " if is_packed else ""
        why = "the free memory of this machine is enough for"
        if max_bytes is not None:
            why = "--max-bytes allows"
        raise RidgelineError(
            f"{path}: {more}{bytes_(unpacked)} of pickle; {why} {bytes_(limit)}",
            "record fewer events (max_entries=), or read it on a larger machine with --max-bytes",
        )
    return unpacked


def _gzip_size(path: Path, file: io.FileIO, most: int) -> int:
    """Return the unpacked size, or a size above `most` as soon as it is reached."""
    unpacking: Any = zlib
    with contextlib.suppress(ImportError):
        from isal import isal_zlib as unpacking  # several times as fast
    made = 0
    unpacker = unpacking.decompressobj(wbits=31)
    rest = b""
    with contextlib.suppress(zlib.error, unpacking.error):  # the child says what is wrong
        while rest or (rest := file.read(READ_BYTES)):
            made += len(unpacker.decompress(rest, READ_BYTES))
            if made > most:
                break
            rest = unpacker.unconsumed_tail
            if unpacker.eof:
                rest = unpacker.unused_data.lstrip(b"\0")
                unpacker = unpacking.decompressobj(wbits=31)
    file.seek(0)
    return made


def _opened_by_child(path: Path, file: io.FileIO, size: int) -> tuple[bytes, int]:
    """Return what the child wrote and its exit code."""
    cpu_s = MIN_CPU_S + int(CPU_S_PER_BYTE * size)
    memory = max(MIN_MEMORY_BYTES, MEMORY_PER_BYTE * size)
    command = [sys.executable, "-I", "-S", unpickling.__file__, str(size), str(memory), str(cpu_s)]
    child = subprocess.Popen(
        command,
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
    )
    try:
        answer, _ = child.communicate(timeout=WALL_FACTOR * cpu_s)
    except subprocess.TimeoutExpired as error:
        raise RidgelineError(f"{path}: reading it took more than {error.timeout:.0f} s") from error
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
    return answer, child.returncode


def _decoded(path: Path, answer: bytes, code: int) -> Snapshot:
    """Return the columns that the child wrote. The child handles whatever is in the file, so that
    its words are checked like a file's."""
    try:
        (length,) = struct.unpack_from("<q", answer)
        header = msgspec.json.decode(answer[8 : 8 + length], type=Header)
        if header.refused is not None:
            raise _refusal(path, header.refused, header.facts)
        columns = dict(_columns(header, answer, 8 + length))
        for name, typecode in _EMPTY.items():
            columns.setdefault(name, np.zeros(0, np.dtype(typecode)))
        return Snapshot(header, columns)
    except (struct.error, msgspec.DecodeError, ValueError, KeyError, UnicodeError) as error:
        cause = "it takes more time or memory than a file of its size may take"
        if code >= 0:
            cause = f"the process that reads it ended with exit code {code}"
        raise RidgelineError(f"{path}: refused, {cause}", _HOW_TO_RECORD) from error


def _columns(header: Header, answer: bytes, start: int) -> "Sequence[tuple[str, NDArray[Any]]]":
    made = []
    for name, typecode, length in header.columns:
        column = np.frombuffer(answer, np.dtype(typecode), length, start)
        start += column.nbytes
        made.append((name, column.astype(np.int64) if name == "address" else column))
    return made


_HOW_TO_RECORD = (
    "a snapshot is what torch.cuda.memory._dump_snapshot writes; "
    "ridgeline memory --help shows how to record one"
)
_FOREIGN = {
    "zip": "a zip archive (a checkpoint of torch.save?), not a memory snapshot",
    "json": "JSON, not a memory snapshot; ridgeline trace reads traces",
    "sqlite": "an SQLite database, not a memory snapshot",
    "numpy": "an array of numpy, not a memory snapshot",
    "zstd": "packed with zstd, which this does not read: unpack it first",
    "bzip2": "packed with bzip2, which this does not read: unpack it first",
    "xz": "packed with xz, which this does not read: unpack it first",
    "html": "a page; give the snapshot that it was made from",
}


def _refusal(path: Path, code: Refusal, facts: dict[str, str | int]) -> RidgelineError:
    """Return the error for a file that the child refused."""
    match code:
        case Refusal.GLOBAL:
            sentence = (
                f"refused, because the pickle asks for {facts.get('name', '')}, which no memory "
                "snapshot does; nothing in it was run"
            )
        case Refusal.TRUNCATED:
            sentence = "the file ends before its end: the program was killed while it wrote it?"
        case Refusal.FOREIGN:
            sentence = _FOREIGN.get(str(facts.get("what")), "no pickle, and so no memory snapshot")
        case Refusal.OTHER_PICKLE:
            sentence = f"a pickle of something else (a {facts.get('what')}), not a memory snapshot"
        case Refusal.TRAILING:
            sentence = "refused, because the file goes on after the end of the pickle"
        case Refusal.GZIP:
            sentence = f"it cannot be unpacked: {facts.get('error')}"
        case Refusal.TOO_LARGE | Refusal.TOO_MUCH_MEMORY | Refusal.TOO_MANY_ITEMS:
            sentence = "refused, because it would grow far beyond the size of the file"
        case Refusal.MALFORMED:
            sentence = f"a damaged snapshot: its {facts.get('what')} is no list"
        case _:
            sentence = f"a damaged pickle ({facts.get('error', code)})"
    return RidgelineError(f"{path}: {sentence}", _HOW_TO_RECORD)
