"""The decoder for machines without a compiler: msgspec, a quarter of a megabyte at a time.

Decodes pieces of the array to typed events, and these to columns, column by column. An event that
does not fit the types, or whose numbers cannot be told, is where it stops.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from ridgeline.trace.columns import RAW
from ridgeline.trace.kinds import kind_of
from ridgeline.trace.reading.clock import UNKNOWN, nanoseconds
from ridgeline.trace.reading.decoder import CAPACITY, Chunk, Stop
from ridgeline.trace.reading.ends import BAD, SHORT, value_end
from ridgeline.trace.reading.lenient import Row, raw, token
from ridgeline.trace.reading.pieces import FAILURES, Walk, decoded, piece_end, positions, space
from ridgeline.trace.reading.tables import TABLES, home_of
from ridgeline.trace.reading.typed import (
    ABSENT,
    INFO_FIELDS,
    INFO_KEYS,
    SHAPE_FIELDS,
    SHAPE_KEYS,
    Args,
    Event,
)

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
