"""The decoder for machines without a compiler: msgspec, a quarter of a megabyte at a time.

It decodes pieces of the array of events to typed events, and these to columns, column by column. It
stops at an event that does not fit the types, or whose numbers cannot be told.

A piece is cut at its last `}, {` and the parser proves the cut: a piece that starts at an event and
decodes as an array was cut between two events. A piece that does not decode is read event by event.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import DecodeError, Raw, ValidationError
from msgspec.structs import astuple
from numpy.typing import NDArray

from ridgeline.measure.collection import collection_paused
from ridgeline.trace.columns import RAW, kind_of
from ridgeline.trace.reading.event import (
    ABSENT,
    CHUNK_ROWS,
    CUT_OFF,
    EVENT_DECODER,
    EVENTS_DECODER,
    INFO_FIELDS,
    INFO_KEYS,
    MAX_TIME_US,
    NOT_JSON,
    RAW_EVENTS_DECODER,
    SHAPE_FIELDS,
    SHAPE_KEYS,
    Args,
    Chunk,
    Event,
    Row,
    Stop,
    lane_text,
    raw,
    skip_space,
    value_end,
)
from ridgeline.trace.reading.tables import TABLES, table_of

MAX_TEXT_BYTES = 1 << 31
FIRST_CHUNK_ROWS = 1 << 12
"""Rows of a new chunk. A chunk doubles as it fills: small traces are the common case."""
MAX_GROUP_BYTES = 65_536
"""An event with more bytes of arguments than this is interpreted by itself (as in scanner.c)."""
PIECE_BYTES = 1 << 18
"""256 KB. Pieces of 64 to 512 KB take equally long, pieces of 16 MB half as long again."""

_ODD = -9
_NO_ARGS = Args()
_TEXTS = ("name", "category", "lane", "shape", "info")
_SECOND_SPELLING = {"external": "external_2", "device": "device_2", "bytes": "bytes_2"}
_FIELD_INDEX = {name: i for i, name in enumerate(Args.__struct_fields__)}
_SHAPE = slice(_FIELD_INDEX[SHAPE_FIELDS[0]], _FIELD_INDEX[SHAPE_FIELDS[-1]] + 1)
_INFO = slice(_FIELD_INDEX[INFO_FIELDS[0]], _FIELD_INDEX[INFO_FIELDS[-1]] + 1)
_RARE = slice(_INFO.start + 3, _INFO.stop)
"""All fields of the info but a kernel's grid, block and occupancy."""
_NO_SHAPE = astuple(_NO_ARGS)[_SHAPE]
_NO_INFO = astuple(_NO_ARGS)[_INFO]
_NOTHING_RARE = astuple(_NO_ARGS)[_RARE]
_KNOWN_PHASES = frozenset("XiIsft")
_SEAM = b"\x00"
"""Stands between two raw values. No JSON that msgspec accepts holds it."""

_FAILURES = (DecodeError, ValidationError, RecursionError, UnicodeDecodeError)
_DEEP = b"[" * 16
"""A sign of nesting beyond what the scanner takes (64 levels): such a piece is read event by
event."""
_SEPARATOR = re.compile(rb"[ \n\r\t]*,[ \n\r\t]*")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class _Walk:
    """A piece that is read event by event: where each event is, and which are known to be odd."""

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
        """Return one event; None if it does not fit the types."""
        if i in self.odd:
            return None
        if self._events is not None:
            return self._events[i]
        try:
            return EVENT_DECODER.decode(self._text[self.starts[i] : self.ends[i]])
        except _FAILURES:
            return None


class _Lookup(dict[Any, int]):
    """Codes by key, each made when it is first asked for."""

    def __init__(self, make: Callable[[Any], int]) -> None:
        self._make = make

    def __missing__(self, key: Any) -> int:
        code = self[key] = self._make(key)
        return code


class Portable:
    """A `Decoder` in Python."""

    def __init__(self) -> None:
        self.flows = 0
        self._comma = False
        self._codes: dict[bytes, int] = {}
        self._texts: list[bytes] = []
        self._text_bytes = 0
        self._names = _Lookup(lambda name: _ODD if name is None else self._code(raw(name)))
        self._categories = _Lookup(lambda name: -1 if name is None else self._code(raw(name)))
        self._lanes = _Lookup(lambda ids: self._code(lane_text(*ids)))
        self._groups = {
            "shape": _Lookup(lambda parts: self._group(parts, SHAPE_KEYS)),
            "info": _Lookup(lambda parts: self._group(parts, INFO_KEYS)),
        }
        self._argument_sets = _Lookup(self._argument_set)
        self._columns_of_set: list[tuple[str, ...]] = []
        self._rows = 0
        self._chunk = _new_chunk(FIRST_CHUNK_ROWS)
        self._walk = _Walk(b"", [], [])

    # ------------------------------------------------------------ the protocol

    def scan(self, text: bytes, start: int) -> tuple[Stop, int]:
        with collection_paused():  # it would go over millions of objects that form no cycle
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
        return self._rows >= CHUNK_ROWS

    def add(self, row: Row) -> None:
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
        self._chunk = _new_chunk(FIRST_CHUNK_ROWS)
        self._rows = 0
        return taken

    def texts(self) -> list[bytes]:
        return self._texts[:]

    # ------------------------------------------------------------ where events are

    def _step(self, text: bytes, p: int) -> tuple[Stop | None, int]:
        """Read one piece. The rules between events are those of `scan` in scanner.c."""
        q = skip_space(text, p)
        if q >= len(text):
            return Stop.MORE, p
        if text[q] == 0x5D:
            return Stop.END, q + 1
        if self._comma:
            if text[q] != 0x2C:
                return Stop.JUNK, p
            q = skip_space(text, q + 1)
            if q >= len(text):
                return Stop.MORE, p
        if text[q] != 0x7B:  # a comma before the bracket is forgiven
            return (Stop.END, q + 1) if text[q] == 0x5D else (Stop.ODD, q)
        if self.full:
            return Stop.FULL, p
        if self._text_bytes > MAX_TEXT_BYTES:
            return Stop.NO_MEMORY, p
        if not self._walk.covers(text, q):
            end = _piece_end(text, q)
            if end == CUT_OFF:
                return Stop.MORE, p
            if end == NOT_JSON:
                return Stop.ODD, q
            if (done := self._read_piece(text, q, end)) > 0:
                self._comma = True
                return None, done
        return self._read_one_by_one(text, q)

    def _read_piece(self, text: bytes, start: int, end: int) -> int:
        """Read the whole piece if no event of it is odd, and return where it ends. Else return 0,
        with the walk set up to read it event by event."""
        try:
            events, end = _decode_piece(text, start, end)
        except _FAILURES:
            self._walk = _Walk(text, *_event_positions(text, start, end))
            return 0
        odd = self._store(events)
        if odd is None:
            return end
        starts, ends = _event_positions(text, start, end)
        if len(starts) == len(events):
            self._walk = _Walk(text, starts, ends, events, odd)
        else:
            self._walk = _Walk(text, starts, ends)
        return 0

    def _read_one_by_one(self, text: bytes, start: int) -> tuple[Stop | None, int]:
        """Read from `start` to the next odd event of the piece that the walk is in."""
        walk = self._walk
        first = walk.index(start)
        if first is None:  # nothing there is known to be whole
            end = value_end(text, start)
            if end == CUT_OFF:
                return Stop.MORE, start
            if end == NOT_JSON:
                return Stop.ODD, start
            self._walk = walk = _Walk(text, [start], [end])
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
        """Store the rows of all these events; or, if some are odd, store none and return which."""
        phases = [event.ph for event in events]
        kept = events
        if not _KNOWN_PHASES.issuperset(phases):
            return {i for i, phase in enumerate(phases) if phase not in _KNOWN_PHASES}
        index: Sequence[int] = range(len(events))
        if not set(phases) <= {"X", "i", "I"}:
            index = [i for i, phase in enumerate(phases) if phase in "XiI"]
            kept = [events[i] for i in index]
            phases = [phases[i] for i in index]
        columns, odd = self._columns(kept, phases)
        if odd.any():
            return {index[i] for i in np.flatnonzero(odd).tolist()}
        self.flows += len(events) - len(kept)
        # Only now: both decoders number lanes in the order of the rows.
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
        """Return columns as (name, rows or None for all rows, values), and which rows are odd."""
        is_span = np.array([phase == "X" for phase in phases], bool)
        ts = nanoseconds([event.ts for event in events])
        name = np.array([self._names[event.name] for event in events], np.int32)
        odd = (ts == UNKNOWN) | (name == _ODD)
        dur = np.zeros(len(events), np.int64)
        dur[is_span] = nanoseconds([events[i].dur for i in np.flatnonzero(is_span).tolist()])
        odd |= dur < 0
        categories = [event.cat for event in events]
        columns: list[tuple[str, Any, NDArray[Any]]] = [
            ("ts", None, ts),
            ("dur", None, dur),
            ("name", None, name),
            ("category", None, np.array([self._categories[c] for c in categories], np.int32)),
            ("phase", None, np.frombuffer("".join(phases).encode(), np.uint8)),
        ]
        lookup = self._argument_sets
        sets = np.array([lookup[key] for key in zip(phases, categories, strict=True)], np.int32)
        for code in np.unique(sets).tolist():
            rows = np.flatnonzero(sets == code)
            args = [astuple(events[i].args or _NO_ARGS) for i in rows.tolist()]
            for column in self._columns_of_set[code]:
                values, ambiguous = self._argument(column, args)
                columns.append((column, rows, values))
                if ambiguous is not None:
                    odd[rows[ambiguous]] = True
        return columns, odd

    def _argument_set(self, key: tuple[str, str | None]) -> int:
        columns = _argument_columns(*key)
        if columns not in self._columns_of_set:
            self._columns_of_set.append(columns)
        return self._columns_of_set.index(columns)

    def _argument(self, column: str, args: list[Any]) -> tuple[NDArray[Any], Any]:
        """Return one column of these arguments, and which rows are ambiguous (None: no row is)."""
        if column in ("shape", "info"):
            codes = np.array(self._group_codes(column, args), np.int32)
            ambiguous = codes == _ODD
            return codes, ambiguous if ambiguous.any() else None
        at = _FIELD_INDEX[column]
        if column == "parent":
            parents = [ABSENT if a[at] is None else a[at] for a in args]
            return _with_defaults(parents, column), None
        values = np.array([a[at] for a in args], np.int64)
        ambiguous = None
        if column in _SECOND_SPELLING:
            at = _FIELD_INDEX[_SECOND_SPELLING[column]]
            second = np.array([a[at] for a in args], np.int64)
            present = second != ABSENT
            if present.any():
                both = present & (values != ABSENT)
                ambiguous = both if both.any() else None
                values = np.where(present, second, values)
        return _with_defaults(values, column), ambiguous

    def _group_codes(self, column: str, args: list[Any]) -> list[int]:
        """Return the code of each row's shape or info. All parts share one code: joining four
        values takes 250 ns, and coding four takes 1700."""
        lookup = self._groups[column]
        if column == "shape":
            return [
                lookup[_SEAM.join(parts)] if (parts := a[_SHAPE]) != _NO_SHAPE else -1 for a in args
            ]
        return [
            -1 if (parts := a[_INFO]) == _NO_INFO
            else lookup[_SEAM.join(parts if a[_RARE] != _NOTHING_RARE else parts[:3])]
            for a in args
        ]  # fmt: skip

    def _group(self, joined: bytes, keys: Sequence[bytes]) -> int:
        """Return the code of some arguments' text, given the raw values in the order of `keys`."""
        values = joined.split(_SEAM)
        if len(values) not in (3, len(keys)):
            return _ODD  # a value that holds the seam itself
        text = b",".join(b'"%b":%b' % (k, v) for k, v in zip(keys, values, strict=False) if v)
        if not text:
            return -1
        if len(text) > MAX_GROUP_BYTES or b"\\ud" in text.lower():
            return _ODD
        return self._code(text)

    def _code(self, text: bytes) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text)
            self._text_bytes += len(text)
        return code

    def _room(self, rows: int) -> int:
        """Return where `rows` more rows go. The columns grow if a piece is larger than planned."""
        at = self._rows
        self._rows += rows
        if self._rows > len(self._chunk["ts"]):
            more = _new_chunk(max(rows, at))
            self._chunk = {n: np.concatenate([c[:at], more[n]]) for n, c in self._chunk.items()}
        return at


def _argument_columns(phase: str, category: str | None) -> tuple[str, ...]:
    """Return the arguments that a row of this phase and category may carry into its table."""
    if phase != "X":
        tables = ["memory", "others"]
    elif category is None:  # its process decides
        tables = ["ops", "annotations", "device", "others"]
    else:
        tables = [table_of(kind_of(phase, category))]
    plain = {"kind", "ts", "dur", "name", "lane"}
    return tuple(dict.fromkeys(c for t in tables for c in TABLES[t].columns() if c not in plain))


def _with_defaults(values: Any, column: str) -> NDArray[np.int64]:
    numbers = np.asarray(values, np.int64)
    numbers[numbers == ABSENT] = 0 if column == "bytes" else -1
    return numbers


def _new_chunk(rows: int) -> Chunk:
    chunk = {
        name: np.full(rows, -1 if name != "phase" else 0, dtype) for name, dtype in RAW.items()
    }
    chunk["bytes"][:] = 0
    return chunk


# ------------------------------------------------------------ pieces


def _piece_end(text: bytes, start: int) -> int:
    """Return where a piece that starts at an event ends; CUT_OFF or NOT_JSON if not even one event
    is whole."""
    size = PIECE_BYTES
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


def _decode_piece(text: bytes, start: int, end: int) -> tuple[list[Event], int]:
    """Return the events of a piece and where they end: at the bracket that closes the whole array,
    if the piece holds it."""
    piece = b"[" + text[start:end] + b"]"
    if _DEEP in piece:
        raise RecursionError
    try:
        return EVENTS_DECODER.decode(piece), end
    except DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            raise
    close = piece.rindex(b"]", 0, int(trailing.group(1)))
    return EVENTS_DECODER.decode(piece[: close + 1]), start + close - 1


def _event_positions(text: bytes, start: int, end: int) -> tuple[list[int], list[int]]:
    """Return where the events of a piece start and end, as far as they are whole."""
    starts, ends = [], []
    try:
        if _DEEP in text[start:end]:
            raise RecursionError
        raw_events = RAW_EVENTS_DECODER.decode(b"[" + text[start:end] + b"]")
        sizes = [len(memoryview(event)) for event in raw_events]
    except _FAILURES:
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


# ------------------------------------------------------------ times
# Times are read from their text. A float64 is a quarter of a microsecond off at epoch microseconds
# (1.7e15).

UNKNOWN = -(2**63)
_PLAIN_NUMBER = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]+))?")
_MAX_TIME_NS = MAX_TIME_US * 1000


def nanoseconds(texts: Sequence[Raw]) -> NDArray[np.int64]:
    """Return microseconds as whole nanoseconds, half rounded away from zero; UNKNOWN for a text
    that is no plain number, or is too large."""
    if not texts:
        return np.empty(0, np.int64)
    times = _convert_together(b",".join(texts), len(texts))
    if times is None:
        times = np.array([_convert(bytes(text)) for text in texts], np.int64)
    times[np.abs(times) >= _MAX_TIME_NS] = UNKNOWN
    return times


def _convert_together(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Convert all numbers at once; None if one of them is more than digits and a point."""
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
    round_up = np.zeros(count, np.int64)
    if decimals.max(initial=0) > 3:
        long = decimals[owner] > 3
        round_up[owner[long]] = text[dots[long] + 4] >= 0x35
        joined = _without_long_decimals(text, dots[long], ends[owner[long]])
        decimals = np.minimum(decimals, 3)
    whole = np.fromstring(joined.replace(b".", b"").decode(), np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    if (np.abs(whole.astype(np.float64)) * scale).max() > 9e18:
        return None
    negative = text[np.concatenate([[0], ends[:-1] + 1])] == 0x2D
    return whole * scale + np.where(negative, -round_up, round_up)


def _without_long_decimals(text: NDArray[Any], dots: NDArray[Any], ends: NDArray[Any]) -> bytes:
    """Return the text without the decimals after the third of the numbers with these dots and
    ends."""
    inside = np.zeros(len(text), np.int8)
    inside[dots + 4] = 1
    inside[ends] = -1
    kept: bytes = text[np.cumsum(inside, dtype=np.int8) == 0].tobytes()
    return kept.rstrip(b",")


def _convert(text: bytes) -> int:
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is None:
        return UNKNOWN
    sign, micros, decimals = match.group(1), match.group(2), match.group(3) or b""
    ns = int(micros) * 1000 + int(decimals[:3].ljust(3, b"0")) + (decimals[3:4] >= b"5")
    if ns >= _MAX_TIME_NS:  # it may not fit in 64 bits
        return UNKNOWN
    return -ns if sign else ns
