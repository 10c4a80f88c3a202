"""The events of a trace file copied as text while it is read, whatever is wrong with the file.

Wraps a decoder: what it read without doubt is copied in one piece, an odd event by itself, damage
is left out. What comes out is always events that any JSON reader takes.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

from ridgeline.trace.reading.decoder import Chunk, Decoder, Stop
from ridgeline.trace.reading.lenient import Row

_CONTROLS = bytes.maketrans(bytes(range(32)), b" " * 32)
"""Inside a string a control character is an error, between tokens it is space."""


class _Event(msgspec.Struct):
    """Anything that is an object: only that it is whole matters."""


_events = msgspec.json.Decoder(list[_Event])


class Copier:
    """A `Decoder` that also hands the text of every event to `write`, commas between them."""

    def __init__(self, inner: Decoder, write: Callable[[bytes], Any]) -> None:
        self._inner = inner
        self._write = write
        self._odd: tuple[bytes, int, int] | None = None
        self.copied = False

    @property
    def flows(self) -> int:
        return self._inner.flows

    @flows.setter
    def flows(self, count: int) -> None:
        self._inner.flows = count

    @property
    def full(self) -> bool:
        return self._inner.full

    def scan(self, text: bytes, start: int, last: bool) -> tuple[Stop, int]:
        stop, end = self._inner.scan(text, start, last)
        self._copy(text[start:end].strip(b" \n\r\t,]" if stop is Stop.END else b" \n\r\t,"))
        self._odd = None
        return stop, end

    def wants_comma(self, wants: bool) -> None:
        """True comes after an event that was read elsewhere: the value last asked for."""
        if wants and self._odd is not None:
            text, start, end = self._odd
            self._copy(text[start:end])
        self._odd = None
        self._inner.wants_comma(wants)

    def value_end(self, text: bytes, start: int) -> int:
        end = self._inner.value_end(text, start)
        self._odd = (text, start, end) if end > start else None
        return end

    def add(self, row: Row) -> None:
        self._inner.add(row)

    def take(self) -> Chunk:
        return self._inner.take()

    def texts(self) -> list[bytes]:
        return self._inner.texts()

    def _copy(self, text: bytes) -> None:
        if not text:
            return
        clean = text.translate(_CONTROLS)
        if not clean.isascii():
            clean = clean.decode("utf-8", "replace").encode()
        if not _is_whole(clean):
            clean = self._repaired(clean)
        if clean:
            self._write(b",\n" if self.copied else b"")
            self._write(clean)
            self.copied = True

    def _repaired(self, text: bytes) -> bytes:
        """Event by event: as it is, or written anew, or left out."""
        kept, at = [], 0
        while (at := text.find(b"{", at)) >= 0:
            end = self._inner.value_end(text, at)
            if end <= at:
                break
            event = text[at:end]
            kept.append(event if _is_whole(event) else rewritten(event))
            at = end
        return b",\n".join(event for event in kept if event)


def _is_whole(events: bytes) -> bool:
    try:
        _events.decode(b"[" + events + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def rewritten(text: bytes) -> bytes:
    """JSON that every reader takes: NaN and the infinities, which torch writes, become null."""
    try:
        meant = json.loads(
            text.decode("utf-8", "replace"),
            strict=False,
            parse_constant=lambda _: None,
            parse_float=_finite,
        )
        return json.dumps(meant).encode()
    except (ValueError, RecursionError):
        return b""


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
