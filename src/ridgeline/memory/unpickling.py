"""The program that opens a memory snapshot, in a process of its own with limits, so that a hostile
pickle can neither run code nor take the machine.

`ridgeline.memory.snapshot` starts it as `python -I -S unpickling.py LIMITS`, with the file as its
standard input, and reads columns from its standard output: never objects. It imports the standard
library alone. Three things protect the user:

1. The unpickler refuses every global, every extension and every persistent id. A snapshot has none,
   so that no list of harmless ones is needed.
2. Limits on memory, on processor time, on other processes, and on what may be written.
3. Only the places where a snapshot has its lists are visited, each list once, and no more items are
   visited than `ITEMS_PER_BYTE` allows: a few bytes of a pickle can stand for a tree without end.
"""

import gc
import io
import json
import os
import pickle
import resource
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any

MAX_TEXT_LENGTH = 4096
"""Longer names of files and functions are cut."""
MAX_SETTINGS = 100
MAX_ANNOTATIONS = 1_000_000
MAX_DEVICES = 4096
MAX_FRAMES_PER_STACK = 2048
MIN_ITEMS, ITEMS_PER_BYTE = 10_000, 8
MAX_KNOWN_LISTS = 1 << 16
"""Lists of frames that are remembered by their identity: neighbouring events share them."""
READ_BYTES = 1 << 20
PICKLE_MARK = 0x80
"""The first byte of every pickle since protocol 2, which all versions of torch write."""
ACTIONS = (
    "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "oom", "snapshot",
)  # fmt: skip
"""The number of an action is its place here; all others have the number that follows."""
OTHER_ACTION = len(ACTIONS)
STATES = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")
_ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
_STATE_NUMBERS = {name: number for number, name in enumerate(STATES)}
_MAX_SIZE = 1 << 62
_FRAMES = itemgetter("frames")


class Refusal(StrEnum):
    """Says why a file is not read. The comment names the facts."""

    GLOBAL = "global"  # name: what the pickle asks for
    TRUNCATED = "truncated"
    DAMAGED = "damaged"  # error
    FOREIGN = "foreign"  # what: a name of `FOREIGN`, or ""
    OTHER_PICKLE = "other pickle"  # what: the type of its outermost object
    TRAILING = "trailing"
    GZIP = "gzip"  # error
    TOO_LARGE = "too large"  # limit: bytes
    TOO_MUCH_MEMORY = "memory"
    TOO_MANY_ITEMS = "items"
    MALFORMED = "malformed"  # what: the list or the field


FOREIGN = {
    b"PK\x03\x04": "zip",
    b"{": "json",
    b"[": "json",
    b"SQLite format 3": "sqlite",
    b"\x93NUMPY": "numpy",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"<": "html",
}


class Refused(Exception):
    """The file is not read, and why."""

    def __init__(self, why: Refusal, **facts: str | int) -> None:
        super().__init__(why, facts)
        self.code = why
        self.facts = facts


class Unpickler(pickle.Unpickler):
    """Loads plain data. Whatever would call or import is refused by name."""

    def find_class(self, module: str, name: str) -> Any:
        raise Refused(Refusal.GLOBAL, name=f"{module}.{name}"[:200])

    def persistent_load(self, pid: Any) -> Any:
        raise Refused(Refusal.GLOBAL, name="a persistent id")


def load(file: Any) -> Any:
    """Return the plain data in `file`. Raise Refused for whatever is wrong with it."""
    try:
        data = Unpickler(file).load()
    except Refused:
        raise
    except MemoryError:
        raise Refused(Refusal.TOO_MUCH_MEMORY) from None
    except EOFError:
        raise Refused(Refusal.TRUNCATED) from None
    except Exception as error:
        # A damaged pickle raises any class of error: nine were seen.
        if "truncated" in str(error):
            raise Refused(Refusal.TRUNCATED) from None
        raise Refused(Refusal.DAMAGED, error=type(error).__name__) from None
    if file.read(1):
        raise Refused(Refusal.TRAILING)
    return data


class GzipText(io.RawIOBase):
    """Unpacks a gzip file, at most `limit` bytes of it."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._made = 0
        self._unpacker = zlib.decompressobj(wbits=31)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._unpacker.eof:
                self._rest = self._unpacker.unused_data.lstrip(b"\0")  # padding
                if not self._rest and not self._fill():
                    return 0
                self._unpacker = zlib.decompressobj(wbits=31)
            if not self._rest and not self._fill():
                raise Refused(Refusal.TRUNCATED)
            try:
                text = self._unpacker.decompress(self._rest, len(buffer))
            except zlib.error as error:
                raise Refused(Refusal.GZIP, error=str(error)[:200]) from None
            self._rest = self._unpacker.unconsumed_tail
            if text:
                self._made += len(text)
                if self._made > self._limit:
                    raise Refused(Refusal.TOO_LARGE, limit=self._limit)
                buffer[: len(text)] = text
                return len(text)

    def _fill(self) -> bool:
        self._rest = self._file.read(READ_BYTES)
        return bool(self._rest)


def opened(file: Any, limit: int) -> Any:
    """Return the pickle in `file`, unpacked. Raise Refused if the file is something else."""
    head = file.peek(16)[:16]
    if head.startswith(b"\x1f\x8b"):
        file = io.BufferedReader(GzipText(file, limit), READ_BYTES)
        head = file.peek(16)[:16]
    if not head:
        raise Refused(Refusal.TRUNCATED)
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise Refused(Refusal.FOREIGN, what=what)
    if head[0] != PICKLE_MARK:
        raise Refused(Refusal.FOREIGN, what="")
    return file


# ---------------------------------------------------------------------- from data to columns


class Columns:
    """Collects the columns of a snapshot, and counts the items that were visited."""

    def __init__(self, max_items: int) -> None:
        self.items_left = max_items
        self.arrays: dict[str, array[Any]] = {}
        self.frames: list[tuple[str, int, str]] = []
        self.stack_ends = array("q")
        self.stack_frames = array("i")
        self._frame_numbers: dict[int, int] = {}
        self._frame_contents: dict[tuple[str, int, str], int] = {}
        self._stack_of_list: dict[int, int] = {}
        self._stack_of_ids: dict[tuple[int, ...], int] = {}
        self._stack_contents: dict[tuple[int, ...], int] = {}

    def count(self, items: int) -> None:
        self.items_left -= items
        if self.items_left < 0:
            raise Refused(Refusal.TOO_MANY_ITEMS)

    def add(self, name: str, typecode: str, values: Sequence[Any]) -> None:
        self.arrays.setdefault(name, array(typecode)).extend(array(typecode, values))

    def stack(self, frames: Any) -> int:
        """Return the number of a stack; -1 for an empty one."""
        return self._new_stack(frames) if frames else -1

    def stacks(self, events: list[dict[str, Any]]) -> "array[int]":
        """Return the number of the stack of each event. torch makes a list for each event, with
        dicts that all events share, so that most lists are known by the identities in them."""
        numbers = array("i")
        append, new = numbers.append, self._new_stack
        last, number = None, -1
        for frames in map(_FRAMES, events):
            if frames is not last:  # a release is requested and completed with one list
                number = new(frames) if frames else -1
                last = frames
            append(number)
        return numbers

    def _new_stack(self, frames: Any) -> int:
        key = id(frames)
        number = self._stack_of_list.get(key)
        if number is not None:
            return number
        if not frames or not isinstance(frames, list):
            return -1
        self.count(len(frames))
        ids = tuple(map(id, frames))
        number = self._stack_of_ids.get(ids)
        if number is None:
            number = self._stored_stack(ids, frames)
        if len(self._stack_of_list) >= MAX_KNOWN_LISTS:
            self._stack_of_list.clear()
        self._stack_of_list[key] = number
        return number

    def _stored_stack(self, key: tuple[int, ...], frames: list[Any]) -> int:
        content = tuple(self._frame(frame) for frame in frames[:MAX_FRAMES_PER_STACK])
        number = self._stack_contents.get(content)
        if number is None:
            number = self._stack_contents[content] = len(self.stack_ends)
            self.stack_frames.extend(content)
            self.stack_ends.append(len(self.stack_frames))
        self._stack_of_ids[key] = number
        return number

    def _frame(self, frame: Any) -> int:
        number = self._frame_numbers.get(id(frame))
        if number is None:
            content = ("", 0, "")
            if isinstance(frame, dict):
                line = frame.get("line", 0)
                line = int(line) if isinstance(line, int) and 0 <= line < 1 << 31 else 0
                content = (_text(frame.get("filename")), line, _text(frame.get("name")))
            number = self._frame_contents.setdefault(content, len(self._frame_contents))
            if number == len(self.frames):
                self.frames.append(content)
            self._frame_numbers[id(frame)] = number
        return number


def _text(value: Any) -> str:
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else ""


def columns(data: Any, max_items: int) -> tuple[dict[str, Any], Columns]:
    """Return a header with what is not numbers, and the columns of a snapshot."""
    if isinstance(data, list) and data and isinstance(data[0], dict) and "blocks" in data[0]:
        data = {"segments": data}  # torch 2.0 and older, without a history
    if not isinstance(data, dict) or "segments" not in data:
        raise Refused(Refusal.OTHER_PICKLE, what=type(data).__name__)
    made = Columns(max_items)
    traces = _list(data.get("device_traces") or [], "device_traces")
    if len(traces) > MAX_DEVICES:
        raise Refused(Refusal.TOO_MANY_ITEMS)
    counts, damaged = [], 0
    for trace in traces:
        events = _list(trace, "device_traces")
        made.count(len(events))
        try:
            _add_events(made, events)
            counts.append(len(events))
        except (TypeError, ValueError, OverflowError, AttributeError, KeyError):
            _cut(made, sum(counts))
            usable = [event for event in events if _is_usable(event)]
            _add_events(made, usable)
            counts.append(len(usable))
            damaged += len(events) - len(usable)
    damaged += _add_segments(made, _list(data["segments"], "segments"))
    names = _add_annotations(made, data.get("external_annotations"))
    header = {
        "events_of_devices": counts,
        "damaged": damaged,
        "settings": _settings(data.get("allocator_settings")),
        "annotation_names": names,
        "frames": made.frames,
    }
    made.arrays["stack_ends"] = made.stack_ends
    made.arrays["stack_frames"] = made.stack_frames
    return header, made


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise Refused(Refusal.MALFORMED, what=name)
    return value if isinstance(value, list) else list(value)


_EVENT_COLUMNS = ("action", "address", "event_size", "event_stream", "time_us", "stack")


def _add_events(made: Columns, events: list[Any]) -> None:
    try:
        addresses = list(map(itemgetter("addr"), events))
    except KeyError:  # a shortage has the free bytes of the device in place of an address
        addresses = [event.get("addr", event.get("device_free", 0)) for event in events]
    actions = map(itemgetter("action"), events)
    made.add("action", "B", [_ACTION_NUMBERS.get(action, OTHER_ACTION) for action in actions])
    made.add("address", "Q", addresses)
    for name, key, otherwise in (
        ("event_size", "size", 0), ("event_stream", "stream", 0), ("time_us", "time_us", -1)
    ):  # fmt: skip
        try:
            values = list(map(itemgetter(key), events))
        except KeyError:
            values = [event.get(key, otherwise) for event in events]
        made.add(name, "q", values)
    try:
        made.add("stack", "i", made.stacks(events))
    except KeyError:
        made.add("stack", "i", [made.stack(event.get("frames")) for event in events])


def _cut(made: Columns, length: int) -> None:
    for name in _EVENT_COLUMNS:
        if name in made.arrays:
            del made.arrays[name][length:]


def _is_usable(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("action"), str)
        and _is_count(event.get("addr", event.get("device_free", 0)), 1 << 64)
        and _is_count(event.get("size", 0), _MAX_SIZE)
        and _is_count(event.get("time_us", 0), _MAX_SIZE)
        and isinstance(event.get("stream", 0), int)
        and abs(event.get("stream", 0)) < _MAX_SIZE
    )


def _is_count(value: Any, limit: int) -> bool:
    return isinstance(value, int) and 0 <= value < limit


def _add_segments(made: Columns, segments: list[Any]) -> int:
    """Add all segments and blocks; return how many were left out because they are damaged."""
    made.count(len(segments))
    rows: list[tuple[int, ...]] = []
    block_rows: list[tuple[int, ...]] = []
    damaged = 0
    for segment in segments:
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            damaged += 1
            continue
        start = segment.get("address", 0)
        size = segment.get("total_size", 0)
        device = segment.get("device", 0)
        limits = ((start, 1 << 63), (size, _MAX_SIZE), (device, MAX_DEVICES))
        if not all(_is_count(value, limit) for value, limit in limits):
            damaged += 1
            continue
        made.count(len(segment["blocks"]))
        kept = list(_blocks(made, segment["blocks"], start, len(rows)))
        damaged += len(segment["blocks"]) - len(kept)
        block_rows += kept
        stream = segment.get("stream", 0)
        rows.append(
            (
                device,
                start,
                size,
                stream if _is_count(stream, _MAX_SIZE) else 0,
                segment.get("segment_type") == "large",
                bool(segment.get("is_expandable")),
            )
        )
    names = ("device", "address", "size", "stream", "is_large", "is_expandable")
    for place, name in enumerate(names):
        made.add(f"segment_{name}", "q", [row[place] for row in rows])
    block_names = ("segment", "address", "size", "requested", "state", "stack")
    for place, name in enumerate(block_names):
        made.add(f"block_{name}", "q", [row[place] for row in block_rows])
    return damaged


def _blocks(
    made: Columns, blocks: list[Any], start: int, segment: int
) -> Iterator[tuple[int, ...]]:
    for block in blocks:
        size = block.get("size") if isinstance(block, dict) else None
        if not _is_count(size, _MAX_SIZE):
            continue
        assert isinstance(block, dict)
        assert isinstance(size, int)
        address = block.get("address", start)  # older snapshots have the sizes alone
        requested, frames = block.get("requested_size", size), block.get("frames")
        history = block.get("history")
        if isinstance(history, list) and history and isinstance(history[0], dict):  # before 2.1
            requested = history[0].get("real_size", requested)
            frames = history[0].get("frames", frames)
        if _is_count(address, 1 << 63) and _is_count(requested, _MAX_SIZE):
            state = block.get("state")
            number = _STATE_NUMBERS.get(state, 0) if isinstance(state, str) else 0
            yield segment, address, size, requested, number, made.stack(frames)
            start = address + size


def _add_annotations(made: Columns, notes: Any) -> list[str]:
    rows, names = [], dict[str, int]()
    notes = notes if isinstance(notes, list) else []
    made.count(len(notes[:MAX_ANNOTATIONS]))
    for note in notes[:MAX_ANNOTATIONS]:
        if not isinstance(note, dict):
            continue
        name, time, device = _text(note.get("name")), note.get("time_us"), note.get("device", 0)
        if name and _is_count(time, _MAX_SIZE) and _is_count(device, MAX_DEVICES):
            code = names.setdefault(name, len(names))
            rows.append((code, note.get("stage") != "END", device, time))
    for place, name in enumerate(("name", "is_start", "device", "time_us")):
        made.add(f"annotation_{name}", "q", [row[place] for row in rows])
    return list(names)


def _settings(settings: Any) -> dict[str, str | int | float | bool]:
    if not isinstance(settings, dict):
        return {}
    plain: dict[str, str | int | float | bool] = {}
    for key, value in list(settings.items())[:MAX_SETTINGS]:
        if isinstance(value, int | float) and not abs(value) < 1 << 53:  # NaN is left out, too
            continue
        if isinstance(value, str | int | float | bool):
            plain[_text(key)] = _text(value) if isinstance(value, str) else value
    return plain


# ------------------------------------------------------------------------------ the process


def answer(file: Any, max_bytes: int) -> Iterator[bytes | memoryview]:
    """Yield what goes to the parent: the length of a header in JSON, the header, the columns."""
    try:
        pickled = opened(file, max_bytes)
        data = load(pickled)
        header, made = columns(data, max(MIN_ITEMS, ITEMS_PER_BYTE * max_bytes))
        header["columns"] = [(n, c.typecode, len(c)) for n, c in made.arrays.items()]
        parts = [memoryview(column) for column in made.arrays.values()]
    except Refused as refused:
        header, parts = {"refused": str(refused.code), "facts": refused.facts}, []
    except MemoryError:
        header, parts = {"refused": Refusal.TOO_MUCH_MEMORY.value, "facts": {}}, []
    text = json.dumps(header).encode()
    yield struct.pack("<q", len(text))
    yield text
    yield from parts


def limit_process(max_memory_bytes: int, max_cpu_s: int) -> None:
    """Limit this process: it may write to its standard output, compute, and nothing else."""
    for kind, most in (
        (resource.RLIMIT_AS, max_memory_bytes),
        (resource.RLIMIT_CPU, max_cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))


def main() -> None:
    max_bytes, max_memory_bytes, max_cpu_s = map(int, sys.argv[1:4])
    gc.disable()  # a snapshot has no cycles worth collecting, and millions of objects to visit
    limit_process(max_memory_bytes, max_cpu_s)
    standard_input = io.BufferedReader(io.FileIO(0, closefd=False), READ_BYTES)
    standard_output = io.FileIO(1, "w", closefd=False)
    json.dumps({"": 0})
    for part in answer(standard_input, max_bytes):
        view = memoryview(part).cast("B")
        while len(view):
            view = view[standard_output.write(view) :]
    os._exit(0)  # giving back millions of objects one by one would take a second


if __name__ == "__main__":
    main()
