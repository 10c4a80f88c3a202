"""Pieces of an array of events: where to cut them, and what is in one.

A piece is cut at its last `}, {` and the parser proves the cut: one that starts at an event and
decodes as an array was cut between two events. One that does not is gone through event by event.
"""

import re
from bisect import bisect_left

from msgspec import DecodeError, ValidationError

from ridgeline.trace.reading.ends import value_end
from ridgeline.trace.reading.typed import EVENT, EVENTS, PIECES, Event

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
