"""The case and the summary of a concluded run, kept in its directory.

The watcher concludes a run, and `ridgeline optimize` reads the result instead of studying the trace
again. A stored case is refused if the recorded files have changed since, or if another version of
the code or another machine has made it.
"""

import contextlib
import functools
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ridgeline import diagnosis
from ridgeline.diagnosis.case import Case
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from ridgeline.source.file import CalledLines, SourceFiles
from ridgeline.trace.reading import cache

SCHEMA = 1
COMPRESSION_LEVEL = 1
"""A case of 155 KB becomes 30 KB in 3 ms."""
_RECORDED = ("capture-", "steps", "telemetry", "trace-", "python-")
"""Beginnings of the names of the files that a conclusion is drawn from."""


class _Stored(Struct, frozen=True, kw_only=True, array_like=True):
    schema: int
    made_by: str
    content: str
    """The digest of the recorded files."""
    summary: RunSummary
    case: Case
    roots: tuple[str, ...]
    called: Mapping[str, CalledLines]
    """What the sources of the case know: folders, and the calls that each line was seen making."""


class _Header(Struct, frozen=True, array_like=True):
    """The first fields of what is stored, which can be read whatever follows them."""

    schema: int
    made_by: str
    content: str


def store_case(directory: RunDirectory, summary: RunSummary, case: Case) -> None:
    """Write what was concluded beside what was recorded. Without this file, on a full disk, the
    run is concluded again."""
    stored = _Stored(
        schema=SCHEMA,
        made_by=_made_by(),
        content=_content(directory.path),
        summary=summary,
        case=case,
        roots=tuple(map(str, case.sources.roots)),
        called=case.sources.called,
    )
    data = msgspec.msgpack.encode(stored, enc_hook=_plain)
    with contextlib.suppress(OSError):
        directory.write_whole(directory.case_file.name, zlib.compress(data, COMPRESSION_LEVEL))


def stored_case(directory: RunDirectory) -> tuple[RunSummary, Case] | None:
    """Return what was concluded of a run; None if nothing was stored, or if it is out of date."""
    try:
        data = zlib.decompress(directory.case_file.read_bytes())
        header = msgspec.msgpack.decode(data, type=_Header)
        expected = _Header(SCHEMA, _made_by(), _content(directory.path))
        if header != expected:
            return None
        stored = msgspec.msgpack.decode(data, type=_Stored, dec_hook=_empty_sources)
    except (OSError, zlib.error, msgspec.DecodeError):
        return None
    sources = SourceFiles([Path(root) for root in stored.roots], called=stored.called)
    return stored.summary, replace(stored.case, sources=sources)


@functools.cache
def code_fingerprint() -> str:
    """Return a hash of the code of the diagnosis, its rules included."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(diagnosis.__path__[0]).rglob("*.py")):
        status = file.stat()
        digest.update(f"{file.name}{status.st_size}{status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _made_by() -> str:
    """Return what a case depends on beside the run: the code, and the machine it was made on."""
    return f"{cache.fingerprint()} {code_fingerprint()} {os.uname().nodename}"


def _content(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(os.listdir(folder)):
        if name.startswith(_RECORDED):
            with (folder / name).open("rb") as file:
                content = hashlib.file_digest(file, hashlib.blake2b).hexdigest()
            digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Encode the sources of a case as nothing, because they are read from the user's files, and a
    number from numpy as Python's."""
    if isinstance(value, SourceFiles):
        return None
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def _empty_sources(kind: type, _: Any) -> SourceFiles:
    assert kind is SourceFiles
    return SourceFiles()
