"""Both decoders, and a way to read bytes with one: what the tests of damaged files share."""

from collections.abc import Callable
from typing import Any

from ridgeline.trace.reading import compiled
from ridgeline.trace.reading.event import Decoder
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.trace import Trace

LIBRARY = compiled.library()


def scanner() -> Decoder:
    assert LIBRARY is not None
    return compiled.Compiled(LIBRARY)


DECODERS: list[Callable[[], Decoder]] = [Portable] if LIBRARY is None else [scanner, Portable]
Parse = Callable[[bytes], Trace]
GOOD: dict[str, Any] = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5,
                        "dur": 2, "args": {"stream": 7, "correlation": 9}}  # fmt: skip
