"""The C scanner, built once with the machine's own compiler and kept in the cache folder.

The scanner is optional. Without a compiler, after a failed build or with a read-only home,
`portable` reads instead, three times slower. Nothing is built for small files. A scanner that
another user could have changed is not loaded, because it would run in this process.
"""

import ctypes
import functools
import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from ridgeline.trace.columns import RAW
from ridgeline.trace.reading.event import CHUNK_ROWS, Chunk, Row, Stop

_SOURCE = Path(__file__).with_name("scanner.c")
_FLAGS = ("-O3", "-shared", "-fPIC")
_DEFAULTS = {"bytes": 0}
_TEXTS = ("name", "category", "lane", "shape", "info")


class _Columns(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in RAW]


class Compiled:
    """A `Decoder` in C."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = library
        self._vocabulary = library.vocabulary_new(secrets.randbits(64))
        self._reader = library.reader_new(self._vocabulary)
        if not self._vocabulary or not self._reader:
            raise MemoryError
        self._chunk = _empty_chunk()
        self._write_into_chunk(0)

    def __del__(self) -> None:
        self._c.reader_free(self._reader)
        self._c.vocabulary_free(self._vocabulary)

    @property
    def flows(self) -> int:
        return int(self._c.reader_flows(self._reader))

    @flows.setter
    def flows(self, count: int) -> None:
        self._c.reader_count_flows(self._reader, count)

    def scan(self, text: bytes, start: int) -> tuple[Stop, int]:
        position = c_int64(start)
        stop = self._c.scan(self._reader, text, len(text), byref(position))
        return Stop(stop), position.value

    def wants_comma(self, wants: bool) -> None:
        self._c.reader_wants_comma(self._reader, wants)

    def value_end(self, text: bytes, start: int) -> int:
        return int(self._c.value_end(text, start, len(text)))

    @property
    def full(self) -> bool:
        return bool(self._c.reader_rows(self._reader) >= CHUNK_ROWS)

    def add(self, row: Row) -> None:
        at = self._c.reader_rows(self._reader)
        for name, column in self._chunk.items():
            column[at] = row.numbers.get(name, _DEFAULTS.get(name, -1)) if name != "phase" else 0
        for name in _TEXTS:
            text = getattr(row, name)
            if text is not None:
                self._chunk[name][at] = self._code(text)
        self._chunk["phase"][at] = ord(row.phase)
        self._write_into_chunk(at + 1)

    def take(self) -> Chunk:
        rows = self._c.reader_rows(self._reader)
        taken = {name: column[:rows] for name, column in self._chunk.items()}
        self._chunk = _empty_chunk()
        self._write_into_chunk(0)
        return taken

    def texts(self) -> list[bytes]:
        length = c_uint64()
        texts = []
        for code in range(self._c.vocabulary_count(self._vocabulary)):
            at = self._c.vocabulary_text(self._vocabulary, code, byref(length))
            texts.append(ctypes.string_at(at, length.value))
        return texts

    def _code(self, text: bytes) -> int:
        code = int(self._c.vocabulary_code(self._vocabulary, text, len(text)))
        if code < 0:
            raise MemoryError
        return code

    def _write_into_chunk(self, rows: int) -> None:
        columns = _Columns(*(self._chunk[name].ctypes.data for name in RAW))
        self._c.reader_target(self._reader, byref(columns), CHUNK_ROWS, rows)


def _empty_chunk() -> Chunk:
    return {name: np.empty(CHUNK_ROWS, dtype) for name, dtype in RAW.items()}


def library(build: bool = True) -> ctypes.CDLL | None:
    """Return the scanner; None if this machine has none. `build`: build it if it does not exist."""
    if os.environ.get("RIDGELINE_SCANNER", "") == "off" or sys.byteorder != "little":
        return None
    existing = _opened()
    return _opened_or_built() if existing is None and build else existing


class Exposed(OSError):
    """Another user can change the scanner or the folder for it."""


_refusals: list[str] = []


def refusal() -> str:
    """Return why a scanner that exists or could be built was refused; "" if none was refused."""
    return _refusals[-1] if _refusals else ""


def _opened() -> ctypes.CDLL | None:
    try:
        return _loaded(_place())
    except Exposed as error:
        _refusals.append(str(error))
    except (OSError, AttributeError):
        pass
    return None


@functools.cache
def _opened_or_built() -> ctypes.CDLL | None:
    """Build the scanner if need be. This is tried once in a process: a compiler that fails takes
    its time."""
    _refusals.clear()
    try:
        return _loaded(_built())
    except Exposed as error:
        _refusals.append(str(error))
    except (OSError, subprocess.SubprocessError, AttributeError):
        pass
    return None


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    _refuse_exposed(path)
    return _typed(ctypes.CDLL(str(path)))


def _refuse_exposed(path: Path) -> None:
    from ridgeline.machine.cache_folder import exposed_to_others

    if why := exposed_to_others(path):
        raise Exposed(why)


@functools.cache
def _place() -> Path:
    from ridgeline.machine.cache_folder import folder

    source = _SOURCE.read_bytes()
    compiler = _compiler()
    tag = hashlib.blake2b(
        source + " ".join((compiler, *_FLAGS, sysconfig.get_platform())).encode(), digest_size=8
    ).hexdigest()
    return folder() / "scanner" / f"scanner-{tag}.so"


def _built() -> Path:
    path = _place()
    home = path.parent
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_exposed(home)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        made = Path(scratch) / "scanner.so"
        subprocess.run(
            [_compiler(), *_FLAGS, "-o", str(made), str(_SOURCE)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        made.chmod(0o700)  # the umask may allow more
        made.replace(path)  # whole, or not there: two processes may build at once
    return path


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise OSError("no C compiler")


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, returns, takes in (
        ("vocabulary_new", c_void_p, (c_uint64,)),
        ("vocabulary_free", None, (c_void_p,)),
        ("vocabulary_code", c_int32, (c_void_p, c_char_p, c_uint64)),
        ("vocabulary_count", c_uint32, (c_void_p,)),
        ("vocabulary_text", c_void_p, (c_void_p, c_uint32, POINTER(c_uint64))),
        ("reader_new", c_void_p, (c_void_p,)),
        ("reader_free", None, (c_void_p,)),
        ("reader_target", None, (c_void_p, POINTER(_Columns), c_int64, c_int64)),
        ("reader_rows", c_int64, (c_void_p,)),
        ("reader_flows", c_int64, (c_void_p,)),
        ("reader_count_flows", None, (c_void_p, c_int64)),
        ("reader_wants_comma", None, (c_void_p, c_int32)),
        ("scan", c_int, (c_void_p, c_char_p, c_int64, POINTER(c_int64))),
        ("value_end", c_int64, (c_char_p, c_int64, c_int64)),
    ):
        function = getattr(library, name)
        function.restype = returns
        function.argtypes = takes
    return library
