"""What turns the text of events into rows. Two of them exist: `compiled` (C, where a compiler is at
hand) and `portable` (msgspec). Both stop at every event they are not sure of."""

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.reading.lenient import Row

CAPACITY = 1 << 17
"""Rows of one chunk: 130 bytes each, so 17 MB are being filled at any time."""

Chunk = dict[str, NDArray[Any]]
"""Columns of RAW, equally long."""


class Stop(IntEnum):
    """Why a decoder stopped (the numbers are scanner.c's)."""

    MORE = 0
    """At the end of the text, or inside an event that goes on beyond it."""
    ODD = 1
    """At an event it is not sure of."""
    END = 2
    """After the bracket that closes the events."""
    FULL = 3
    """The chunk has no room: take it and go on."""
    JUNK = 4
    """Something other than a comma after an event."""
    NO_MEMORY = 5
    """More distinct texts than any trace has."""


class Decoder(Protocol):
    flows: int

    def scan(self, text: bytes, start: int, last: bool) -> tuple[Stop, int]:
        """Read events from `start`; why it stopped, and where. `last`: no more text follows."""

    def wants_comma(self, wants: bool) -> None:
        """Whether the next event must be led by a comma: set after an event was read elsewhere."""

    def value_end(self, text: bytes, start: int) -> int:
        """Where the JSON value at `start` ends; -1: beyond this text; -2: it is no JSON."""

    @property
    def full(self) -> bool:
        """No room for another row: `take` first."""

    def add(self, row: Row) -> None:
        """One row that was interpreted elsewhere."""

    def take(self) -> Chunk:
        """The rows so far; the decoder starts a new chunk."""

    def texts(self) -> list[bytes]:
        """Each code's text, as raw JSON between its quotes."""


def empty_chunk() -> Chunk:
    from ridgeline.trace.columns import RAW

    return {name: np.empty(CAPACITY, dtype) for name, dtype in RAW.items()}
