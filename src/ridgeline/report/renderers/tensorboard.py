"""Scalars as TensorBoard's event files, without the package.

An event file is a sequence of records. A record is its length, the length's checksum, a message,
and the message's checksum. A message is an `Event` of TensorBoard's protocol buffers, of which four
fields are needed: 1 the time, 2 the step, 3 the file's version, 5 a summary of tagged values.
"""

import math
import struct
from collections.abc import Iterator, Sequence

from ridgeline.report.document import Scalars

MAX_STEPS = 20_000
"""A longer run has every n-th step written: a step takes 0.2 ms, and TensorBoard itself keeps a
thousand points of a curve."""
VERSION = b"brain.Event:2"
"""The first event of a file; without it TensorBoard does not read the file."""
_CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, its bits reversed."""
_MASK = 0xA282EAD8
"""Added to each checksum, because the checksum of data that holds a checksum is weak."""


def render(processes: Sequence[Scalars]) -> dict[str, bytes]:
    """Return the content of each event file by its path: a folder for each process, which
    TensorBoard shows as one run. The path is the same each time, so that a file is replaced and its
    values are not shown twice."""
    files = {}
    for process in processes:
        began_s = int(min(process.times_s, default=0))
        files[f"{process.name}/events.out.tfevents.{began_s}.ridgeline"] = _file(process)
    return files


def stride(processes: Sequence[Scalars]) -> int:
    """Return n if every n-th step is written; 1 if all are."""
    return max((-(-len(process.steps) // MAX_STEPS) for process in processes), default=1) or 1


def _file(process: Scalars) -> bytes:
    began_s = min(process.times_s, default=0.0)
    tags = [_field(1, scalar.name.encode("utf-8", "replace")) for scalar in process.scalars]
    records = [_record(_event(began_s) + _field(3, VERSION))]
    for i in range(0, len(process.steps), stride([process])):
        at_s, step = process.times_s[i], process.steps[i]
        values = (scalar.values[i] for scalar in process.scalars)
        summary = b"".join(
            _field(1, tag + bytes([2 << 3 | 5]) + _single(float(value)))
            for tag, value in zip(tags, values, strict=True)
            if value is not None
        )
        if summary:
            records.append(_record(_event(at_s, step) + _field(5, summary)))
    return b"".join(records)


def _event(at_s: float, step: int = 0) -> bytes:
    return struct.pack("<Bd", 1 << 3 | 1, at_s) + bytes([2 << 3]) + _varint(step)


def _field(number: int, content: bytes) -> bytes:
    """Return a field that is a text or a message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _single(value: float) -> bytes:
    """Return a number in single precision, in which the largest ones are infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of data."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _checksum_table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        yield crc


_TABLE = tuple(_checksum_table())
