"""Reading a run's files, which a kill may have cut anywhere and others may have touched.

A line that cannot be read costs that line and is counted; a whole file that cannot be read is one
sentence. Links are not followed, pipes are not waited for, and nothing is read without a limit.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self, TypeVar

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.run import SCHEMA

T = TypeVar("T")

LONGEST_LINE = 16 << 20
"""A step takes 0.3 kB, a second of sampled stacks at most some hundred."""
MOST_BYTES = 128 << 20
"""Of one file of lines, the first: 400,000 steps, and 4 times as much memory once decoded."""
MOST_WHOLE = 64 << 20


class Lines(tuple[T, ...]):
    """The records of a file of lines, and what was not read of it."""

    damaged: int = 0
    """Lines that could not be read and were skipped; a last line cut by a kill is none of them."""
    unread_bytes: int = 0
    """Beyond what is read of one file."""

    def __new__(cls, items: Iterable[T] = (), damaged: int = 0, unread_bytes: int = 0) -> Self:
        made = super().__new__(cls, tuple(items))
        made.damaged = damaged
        made.unread_bytes = unread_bytes
        return made


class NewerSchema(RidgelineError):
    """Written by a later version: nothing in it can be trusted to mean what it did."""


class _Versioned(Struct):
    schema: int = SCHEMA


def read_lines(path: Path, kind: type[T], most: int = MOST_BYTES) -> Lines[T]:
    """Every line of `path` that holds a `kind`; none where there is no such file."""
    decoder = msgspec.json.Decoder(kind)
    items: list[T] = []
    damaged = 0
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            for line, ended in _lines(file, most):
                try:
                    items.append(decoder.decode(line))
                except (ValueError, RecursionError):
                    damaged += ended
    except FileNotFoundError:
        return Lines()
    except OSError as error:
        raise RidgelineError(f"{path} cannot be read: {error.strerror or error}") from error
    return Lines(items, damaged, max(size - most, 0))


def read_whole(path: Path, kind: type[T]) -> T:
    """The record in `path`. FileNotFoundError where there is none; a newer schema, damage, and
    what is no file at all are a sentence."""
    try:
        with opened(path) as file:
            data = file.read(MOST_WHOLE + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RidgelineError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_WHOLE:
        raise RidgelineError(f"{path} is damaged: it is larger than {MOST_WHOLE >> 20} MiB")
    if not data.strip():
        raise RidgelineError(f"{path} is damaged: it is empty")
    refuse_newer(path, data)
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise RidgelineError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def refuse_newer(path: Path, data: bytes) -> None:
    try:
        schema = msgspec.json.decode(data, type=_Versioned).schema
    except (ValueError, RecursionError):
        return  # damaged, which the reading proper says better
    if schema > SCHEMA:
        raise NewerSchema(
            f"{path} was written by a newer ridgeline: its schema is {schema}, and this one reads "
            f"up to {SCHEMA}",
            "upgrade ridgeline to read this run",
        )


def opened(path: Path) -> IO[bytes]:
    """`path` for reading, where it is a plain file: no link is followed, no pipe waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def _lines(file: IO[bytes], most: int) -> Iterator[tuple[bytes, bool]]:
    """(line, whether its end was seen), blank ones left out; of one that is too long, a stub that
    cannot be decoded."""
    left, long = most, False
    while left > 0 and (line := file.readline(min(left, LONGEST_LINE))):
        left -= len(line)
        ended = line.endswith(b"\n")
        part, long = long, not ended and len(line) == LONGEST_LINE
        if long or part:
            if ended or not long:
                yield b"", True
        elif line.strip():
            yield line, ended
