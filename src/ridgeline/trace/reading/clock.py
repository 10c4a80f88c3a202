"""Microseconds as text to whole nanoseconds, a block at a time and exact.

float64 is not: at epoch microseconds (1.7e15) it is a quarter of a microsecond off.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from ridgeline.trace.reading.lenient import LATEST_US

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
