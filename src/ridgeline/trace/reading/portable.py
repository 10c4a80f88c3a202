"""The decoder for machines without a compiler: msgspec, a quarter of a megabyte at a time.

Decodes pieces of the array to typed events, and these to columns, column by column. An event that
does not fit the types, or whose numbers cannot be told, is where it stops.
"""

import gc
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import DecodeError, Raw, ValidationError
from msgspec.structs import astuple
from numpy.typing import NDArray

from ridgeline.trace.columns import RAW, kind_of
from ridgeline.trace.reading.event import (
    ABSENT,
    BAD,
    CAPACITY,
    EVENT,
    EVENTS,
    INFO_FIELDS,
    INFO_KEYS,
    LATEST_US,
    PIECES,
    SHAPE_FIELDS,
    SHAPE_KEYS,
    SHORT,
    Args,
    Chunk,
    Event,
    Row,
    Stop,
    raw,
    token,
    value_end,
)
from ridgeline.trace.reading.tables import TABLES, home_of

MOST_TEXT = 1 << 31
SOME_ROWS = 1 << 12
"""Of a new chunk; it doubles as it fills: small traces are the common case."""
LONGEST_GROUP = 65_536
"""Bytes of arguments one event may carry before it is looked at closely (as in scanner.c)."""

_ODD = -9
_NONE = Args()
_TEXTS = ("name", "category", "lane", "shape", "info")
_SECOND = {"external": "external_2", "device": "device_2", "bytes": "bytes_2"}
_AT = {name: i for i, name in enumerate(Args.__struct_fields__)}
_SHAPE = slice(_AT[SHAPE_FIELDS[0]], _AT[SHAPE_FIELDS[-1]] + 1)
_INFO = slice(_AT[INFO_FIELDS[0]], _AT[INFO_FIELDS[-1]] + 1)
_RARE = slice(_INFO.start + 3, _INFO.stop)
"""All of it but a kernel's grid, block and occupancy."""
_NO_SHAPE = astuple(_NONE)[_SHAPE]
_NO_INFO = astuple(_NONE)[_INFO]
_NOT_RARE = astuple(_NONE)[_RARE]
_SURE = frozenset("XiIsft")


class Portable:
    """A `Decoder` in Python."""

    def __init__(self) -> None:
        self.flows = 0
        self._comma = False
        self._codes: dict[bytes, int] = {}
        self._texts: list[bytes] = []
        self._bytes = 0
        self._names = _Lookup(lambda name: _ODD if name is None else self._code(raw(name)))
        self._categories = _Lookup(lambda name: -1 if name is None else self._code(raw(name)))
        self._lanes = _Lookup(lambda ids: self._code(lane_text(*ids)))
        self._groups = {
            "shape": _Lookup(lambda parts: self._group(parts, SHAPE_KEYS)),
            "info": _Lookup(lambda parts: self._group(parts, INFO_KEYS)),
        }
        self._wanted = _Lookup(self._want)
        self._columns_of: list[tuple[str, ...]] = []
        self._rows = 0
        self._chunk = _fresh_chunk(SOME_ROWS)
        self._walk = Walk(b"", [], [])

    # ------------------------------------------------------------ the protocol

    def scan(self, text: bytes, start: int, last: bool) -> tuple[Stop, int]:
        """Read events of `text` from `start`; why it stopped, and where."""
        with _collector_off():
            at = start
            while True:
                stop, at = self._step(text, at)
                if stop is not None:
                    return stop, at

    def wants_comma(self, wants: bool) -> None:
        self._comma = wants

    def value_end(self, text: bytes, start: int) -> int:
        return value_end(text, start)

    @property
    def full(self) -> bool:
        return self._rows >= CAPACITY

    def add(self, row: Row) -> None:
        """One row that was interpreted elsewhere."""
        at = self._room(1)
        for name, number in row.numbers.items():
            self._chunk[name][at] = number
        for name in _TEXTS:
            text = getattr(row, name)
            if text is not None:
                self._chunk[name][at] = self._code(text)
        self._chunk["phase"][at] = ord(row.phase)

    def take(self) -> Chunk:
        taken = {name: column[: self._rows] for name, column in self._chunk.items()}
        self._chunk = _fresh_chunk(SOME_ROWS)
        self._rows = 0
        return taken

    def texts(self) -> list[bytes]:
        return self._texts[:]

    # ------------------------------------------------------------ where events are

    def _step(self, text: bytes, p: int) -> tuple[Stop | None, int]:
        """One piece; the rules between events are those of scanner.c's `scan`."""
        q = space(text, p)
        if q >= len(text):
            return Stop.MORE, p
        if text[q] == 0x5D:
            return Stop.END, q + 1
        if self._comma:
            if text[q] != 0x2C:
                return Stop.JUNK, p
            q = space(text, q + 1)
            if q >= len(text):
                return Stop.MORE, p
        if text[q] != 0x7B:  # a comma before the bracket is forgiven
            return (Stop.END, q + 1) if text[q] == 0x5D else (Stop.ODD, q)
        if self.full:
            return Stop.FULL, p
        if self._bytes > MOST_TEXT:
            return Stop.NO_MEMORY, p
        if not self._walk.covers(text, q):
            end = piece_end(text, q)
            if end == SHORT:
                return Stop.MORE, p
            if end == BAD:
                return Stop.ODD, q
            if (done := self._at_once(text, q, end)) > 0:
                self._comma = True
                return None, done
        return self._one_by_one(text, q)

    def _at_once(self, text: bytes, start: int, end: int) -> int:
        """The whole piece, if no event of it is odd: where it ends; 0: walk through it."""
        try:
            events, end = decoded(text, start, end)
        except FAILURES:
            self._walk = Walk(text, *positions(text, start, end))
            return 0
        odd = self._store(events)
        if odd is None:
            return end
        starts, ends = positions(text, start, end)
        if len(starts) == len(events):
            self._walk = Walk(text, starts, ends, events, odd)
        else:
            self._walk = Walk(text, starts, ends)
        return 0

    def _one_by_one(self, text: bytes, start: int) -> tuple[Stop | None, int]:
        """From `start` on to the next odd event of a piece that was not read at once."""
        walk = self._walk
        first = walk.index(start)
        if first is None:  # nothing there is known to be whole
            end = value_end(text, start)
            if end == SHORT:
                return Stop.MORE, start
            if end == BAD:
                return Stop.ODD, start
            self._walk = walk = Walk(text, [start], [end])
            first = 0
        events: list[Event] = []
        at = first
        while at < len(walk.starts):
            event = walk.event(at)
            if event is None:
                break
            events.append(event)
            at += 1
        while (odd := self._store(events)) is not None:
            walk.odd.update(first + i for i in odd)
            at = first + min(odd)
            events = events[: min(odd)]
        if at > first:
            self._comma = True
        if at < len(walk.starts):
            return (None, walk.ends[at - 1]) if at > first else (Stop.ODD, walk.starts[at])
        return None, walk.ends[-1]

    # ------------------------------------------------------------ columns

    def _store(self, events: list[Event]) -> set[int] | None:
        """All rows of these events, or none of them and which ones are odd."""
        phases = [event.ph for event in events]
        kept = events
        if not _SURE.issuperset(phases):
            return {i for i, phase in enumerate(phases) if phase not in _SURE}
        index: Sequence[int] = range(len(events))
        if not set(phases) <= {"X", "i", "I"}:
            index = [i for i, phase in enumerate(phases) if phase in "XiI"]
            kept = [events[i] for i in index]
            phases = [phases[i] for i in index]
        columns, odd = self._columns(kept, phases)
        if odd.any():
            return {index[i] for i in np.flatnonzero(odd).tolist()}
        self.flows += len(events) - len(kept)
        # only now: lanes are numbered in the order of the rows, whoever reads them
        lanes = self._lanes
        columns.append(("lane", None, np.array([lanes[e.pid, e.tid] for e in kept], np.int32)))
        at = self._room(len(kept))
        for name, rows, values in columns:
            if rows is None:
                self._chunk[name][at : self._rows] = values
            else:
                self._chunk[name][at + rows] = values
        return None

    def _columns(
        self, events: list[Event], phases: list[str]
    ) -> tuple[list[tuple[str, Any, NDArray[Any]]], NDArray[np.bool_]]:
        """Columns of rows (all of them, or the rows told), and the rows that are odd."""
        spans = [phase == "X" for phase in phases]
        all_spans = all(spans)
        ts = nanoseconds([event.ts for event in events])
        name = np.array([self._names[event.name] for event in events], np.int32)
        odd = (ts == UNKNOWN) | (name == _ODD)
        timed = events if all_spans else [e for e, span in zip(events, spans, strict=True) if span]
        dur = nanoseconds([event.dur for event in timed])
        if not all_spans:
            every = np.zeros(len(events), np.int64)
            every[np.flatnonzero(np.array(spans, bool))] = dur
            dur = every
        odd |= dur < 0
        categories = [event.cat for event in events]
        columns: list[tuple[str, Any, NDArray[Any]]] = [
            ("ts", None, ts),
            ("dur", None, dur),
            ("name", None, name),
            ("category", None, np.array([self._categories[c] for c in categories], np.int32)),
            ("phase", None, np.frombuffer("".join(phases).encode(), np.uint8)),
        ]
        for wanted, rows in self._grouped(phases, categories):
            args = [astuple(events[i].args or _NONE) for i in rows.tolist()]
            at = rows
            for column in wanted:
                values, strange = self._argument(column, args)
                columns.append((column, at, values))
                if strange is not None:
                    odd[at[strange]] = True
        return columns, odd

    def _grouped(
        self, phases: list[str], categories: list[str | None]
    ) -> Iterator[tuple[tuple[str, ...], NDArray[np.int64]]]:
        """The rows that want the same columns."""
        wanted = self._wanted
        group = np.array([wanted[key] for key in zip(phases, categories, strict=True)], np.int32)
        for code in np.unique(group).tolist():
            yield self._columns_of[code], np.flatnonzero(group == code)

    def _want(self, key: tuple[str, str | None]) -> int:
        columns = _wanted(*key)
        if columns not in self._columns_of:
            self._columns_of.append(columns)
        return self._columns_of.index(columns)

    def _argument(self, column: str, args: list[Any]) -> tuple[NDArray[Any], Any]:
        """One column of these arguments, and which rows cannot be told (None: all can)."""
        if column in ("shape", "info"):
            codes = np.array(self._coded(column, args), np.int32)
            strange = codes == _ODD
            return codes, strange if strange.any() else None
        at = _AT[column]
        if column == "parent":
            parents = [ABSENT if a[at] is None else a[at] for a in args]
            return _present(parents, column), None
        values = np.array([a[at] for a in args], np.int64)
        strange = None
        if column in _SECOND:
            at = _AT[_SECOND[column]]
            second = np.array([a[at] for a in args], np.int64)
            told = second != ABSENT
            if told.any():
                both = told & (values != ABSENT)
                strange = both if both.any() else None
                values = np.where(told, second, values)
        return _present(values, column), strange

    def _coded(self, column: str, args: list[Any]) -> list[int]:
        """The code of each one's shape or info: one code for all its parts, since joining four
        values takes 250 ns and coding four takes 1700."""
        lookup = self._groups[column]
        if column == "shape":
            return [
                lookup[_SEAM.join(parts)] if (parts := a[_SHAPE]) != _NO_SHAPE else -1 for a in args
            ]
        return [
            -1 if (parts := a[_INFO]) == _NO_INFO
            else lookup[_SEAM.join(parts if a[_RARE] != _NOT_RARE else parts[:3])]
            for a in args
        ]  # fmt: skip

    def _group(self, joined: bytes, keys: Sequence[bytes]) -> int:
        """The code of some arguments' text, by the raw values in the order of `keys`."""
        values = joined.split(_SEAM)
        if len(values) not in (3, len(keys)):
            return _ODD  # a value that holds the seam itself
        text = b",".join(b'"%b":%b' % (k, v) for k, v in zip(keys, values, strict=False) if v)
        if not text:
            return -1
        if len(text) > LONGEST_GROUP or b"\\ud" in text.lower():
            return _ODD
        return self._code(text)

    def _code(self, text: bytes) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text)
            self._bytes += len(text)
        return code

    def _room(self, rows: int) -> int:
        """Where `rows` more rows go; the columns grow when one piece is larger than planned."""
        at = self._rows
        self._rows += rows
        if self._rows > len(self._chunk["ts"]):
            more = _fresh_chunk(max(rows, at))
            self._chunk = {n: np.concatenate([c[:at], more[n]]) for n, c in self._chunk.items()}
        return at


_SEAM = b"\x00"
"""Between two raw values: no JSON that msgspec accepts holds it."""


class _Lookup(dict[Any, int]):
    """Codes by key, made when first asked for."""

    def __init__(self, make: Callable[[Any], int]) -> None:
        self._make = make

    def __missing__(self, key: Any) -> int:
        code = self[key] = self._make(key)
        return code


def lane_text(pid: int | str, tid: int | str) -> bytes:
    return f"{token(pid)}\n{token(tid)}".encode()


def _wanted(phase: str, category: str | None) -> tuple[str, ...]:
    """The arguments that a row of this phase and category may carry into its table."""
    if phase != "X":
        homes = ["memory", "others"]
    elif category is None:  # its process decides
        homes = ["ops", "annotations", "device", "others"]
    else:
        homes = [home_of(kind_of(phase, category))]
    plain = {"kind", "ts", "dur", "name", "lane"}
    return tuple(dict.fromkeys(c for h in homes for c in TABLES[h].columns() if c not in plain))


def _present(values: Any, column: str) -> NDArray[np.int64]:
    found = np.asarray(values, np.int64)
    found[found == ABSENT] = 0 if column == "bytes" else -1
    return found


def _fresh_chunk(rows: int = CAPACITY) -> Chunk:
    chunk = {
        name: np.full(rows, -1 if name != "phase" else 0, dtype) for name, dtype in RAW.items()
    }
    chunk["bytes"][:] = 0
    return chunk


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection over millions of objects that cannot form a cycle."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


PIECE = 1 << 18
"""256 KB: 64 to 512 KB are alike, 16 MB takes half as long again."""

FAILURES = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)

_DEEP = b"[" * 16
"""A sign that something is nested beyond what the scanner takes (64): it is looked at closely."""
_SPACE = re.compile(rb"[ \n\r\t]*")
_SEPARATOR = re.compile(rb"[ \n\r\t]*,[ \n\r\t]*")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Walk:
    """A piece that is read event by event: where each is, and those known to be odd."""

    def __init__(
        self,
        text: bytes,
        starts: list[int],
        ends: list[int],
        events: list[Event] | None = None,
        odd: set[int] | None = None,
    ) -> None:
        self._text = text
        self.starts = starts
        self.ends = ends
        self._events = events
        self.odd = odd or set()

    def covers(self, text: bytes, at: int) -> bool:
        return text is self._text and self.index(at) is not None

    def index(self, at: int) -> int | None:
        i = bisect_left(self.starts, at)
        return i if i < len(self.starts) and self.starts[i] == at else None

    def event(self, i: int) -> Event | None:
        """None where it does not fit the types."""
        if i in self.odd:
            return None
        if self._events is not None:
            return self._events[i]
        try:
            return EVENT.decode(self._text[self.starts[i] : self.ends[i]])
        except FAILURES:
            return None


def space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def piece_end(text: bytes, start: int) -> int:
    """Where a piece that starts at an event ends; SHORT or BAD where not even one is whole."""
    size = PIECE
    while True:
        stop = min(start + size, len(text))
        at = stop
        while (at := text.rfind(b"{", start + 1, at)) > 0:
            before = text[max(start, at - 64) : at].rstrip(b" \n\r\t")
            if before.endswith(b",") and before[:-1].rstrip(b" \n\r\t").endswith(b"}"):
                return at - (min(64, at - start) - len(before[:-1].rstrip(b" \n\r\t")))
        if stop == len(text):
            return value_end(text, start)
        size *= 4


def decoded(text: bytes, start: int, end: int) -> tuple[list[Event], int]:
    """The events of a piece; up to the bracket that closes them all, if it is in there."""
    piece = b"[" + text[start:end] + b"]"
    if _DEEP in piece:
        raise RecursionError
    try:
        return EVENTS.decode(piece), end
    except DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            raise
    close = piece.rindex(b"]", 0, int(trailing.group(1)))
    return EVENTS.decode(piece[: close + 1]), start + close - 1


def positions(text: bytes, start: int, end: int) -> tuple[list[int], list[int]]:
    """Where each event of a piece starts and ends, as far as there are whole ones."""
    starts, ends = [], []
    try:
        if _DEEP in text[start:end]:
            raise RecursionError
        sizes = [len(memoryview(piece)) for piece in PIECES.decode(b"[" + text[start:end] + b"]")]
    except FAILURES:
        sizes = []
    at = start
    for size in sizes:
        starts.append(at)
        ends.append(at + size)
        match = _SEPARATOR.match(text, at + size)
        at = match.end() if match else end
    if sizes:
        return starts, ends
    while (stop := value_end(text, at)) >= 0:
        starts.append(at)
        ends.append(stop)
        match = _SEPARATOR.match(text, stop)
        if match is None or match.end() >= end or text[match.end()] != 0x7B:
            break
        at = match.end()
    return starts, ends


UNKNOWN = -(2**63)
_PLAIN = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]+))?")
_LATEST = LATEST_US * 1000


def nanoseconds(texts: Sequence[Raw]) -> NDArray[np.int64]:
    """Half away from zero; UNKNOWN where the text is no plain number within reach."""
    if not texts:
        return np.empty(0, np.int64)
    found = _at_once(b",".join(texts), len(texts))
    if found is None:
        found = np.array([_one(bytes(text)) for text in texts], np.int64)
    found[np.abs(found) >= _LATEST] = UNKNOWN
    return found


def _at_once(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """All of them, where every one is digits and a point."""
    if joined.translate(None, b"0123456789.-,"):
        return None
    text = np.frombuffer(joined + b",", np.uint8)
    ends = np.flatnonzero(text == 0x2C)
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != count or lengths.min() == 0 or lengths.max() > 32:
        return None
    dots = np.flatnonzero(text == 0x2E)
    owner = np.searchsorted(ends, dots)
    decimals = np.zeros(count, np.int64)
    decimals[owner] = ends[owner] - dots - 1
    up = np.zeros(count, np.int64)
    if decimals.max(initial=0) > 3:
        long = decimals[owner] > 3
        up[owner[long]] = text[dots[long] + 4] >= 0x35
        joined, decimals = _cut(text, dots[long], ends[owner[long]]), np.minimum(decimals, 3)
    whole = np.fromstring(joined.replace(b".", b"").decode(), np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    if (np.abs(whole.astype(np.float64)) * scale).max() > 9e18:
        return None
    negative = text[np.concatenate([[0], ends[:-1] + 1])] == 0x2D
    return whole * scale + np.where(negative, -up, up)


def _cut(text: NDArray[Any], dots: NDArray[Any], ends: NDArray[Any]) -> bytes:
    """The text without the decimals after the third, of the numbers with these dots and ends."""
    inside = np.zeros(len(text), np.int8)
    inside[dots + 4] = 1
    inside[ends] = -1
    kept: bytes = text[np.cumsum(inside, dtype=np.int8) == 0].tobytes()
    return kept.rstrip(b",")


def _one(text: bytes) -> int:
    match = _PLAIN.fullmatch(text)
    if match is None:
        return UNKNOWN
    sign, micros, decimals = match.group(1), match.group(2), match.group(3) or b""
    ns = int(micros) * 1000 + int(decimals[:3].ljust(3, b"0")) + (decimals[3:4] >= b"5")
    if ns >= _LATEST:
        return UNKNOWN
    return -ns if sign else ns
