"""Keeps a trace as Parquet files beside it, so that a large one is read once.

    .ridgeline/traces/<name>-<content hash>/   one Parquet file a table, texts, trace.json
                                               and the answers already given

An entry is found by name and checked by content: by size, time and samples if those are unchanged,
else by the whole file. If the trace's own folder cannot be written, the entry is in the cache
folder. An entry appears whole, by rename, or not at all; one that cannot be read is ignored.

A folder that came with a trace, in an archive or a repository, may hold whatever its maker wants to
show. So trace.json, which has the digest of every table, and each answer carry a seal that only
this user can make (`machine.cache_folder`). Files without a valid seal are ignored.
"""

import contextlib
import functools
import hashlib
import hmac
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from ridgeline.trace.columns import Events
from ridgeline.trace.reading.tables import TABLES, dtype_of
from ridgeline.trace.trace import Lane, Metadata, Origin, Trace

if TYPE_CHECKING:
    import duckdb

MIN_TEXT_BYTES = 1 << 24
"""Traces with less text than 16 MiB are not cached: they are read faster (0.06 s) than duckdb is
imported (0.16 s)."""
SAMPLE_COUNT = 16
SAMPLE_BYTES = 1 << 16

T = TypeVar("T")


class _Sealed(Struct, frozen=True):
    """A file of the cache: its content, and the proof that this user wrote it."""

    seal: str
    content: msgspec.Raw


class Manifest(Struct, frozen=True, kw_only=True):
    """The content of trace.json, beside the Parquet files."""

    fingerprint: str
    size: int
    mtime_ns: int
    samples: str
    origin: Origin
    metadata: Metadata
    lanes: tuple[Lane, ...]
    rows: dict[str, int]
    texts: int
    digests: dict[str, str]
    """The digest of each Parquet file, so that damage is found before anything is computed."""


class Entry:
    """One trace's folder in the cache."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._manifest = manifest

    def trace(self, path: Path) -> Trace | None:
        """Return the trace, which reads a table at its first use; None if a file is damaged."""
        try:
            if any(_digest(self.folder / f) != sum_ for f, sum_ in self._manifest.digests.items()):
                return None
            texts = self._texts()
        except OSError:
            return None
        origin = msgspec.structs.replace(self._manifest.origin, path=str(path), from_cache=True)
        return Trace(origin, self._manifest.metadata, texts, self._manifest.lanes, self._table)

    def answer(self, question: str, kind: type[T]) -> T | None:
        """Return the answer that was given before to the same question."""
        return _unsealed(self.folder / f"{question}.json", self._about(question), kind)

    def remember(self, question: str, answer: Struct) -> None:
        with contextlib.suppress(OSError):
            path = self.folder / f".{question}.{os.getpid()}"
            if _write_sealed(path, self._about(question), answer):
                path.replace(self.folder / f"{question}.json")

    def _about(self, question: str) -> str:
        """Return what an answer's seal depends on beside the answer: the trace's content, the code
        that answered, and the question."""
        return f"{self._manifest.origin.digest} {self._manifest.fingerprint} {question}"

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    def _table(self, name: str) -> Events:
        kind, rows = TABLES[name], self._manifest.rows[name]
        wanted = {c: dtype_of(c) for c in kind.columns()}
        if not rows:
            return kind(**{c: np.empty(0, dtype) for c, dtype in wanted.items()})
        columns = ", ".join(f'"{c}"' for c in wanted)
        query = f"select {columns} from '{_quoted(self._file(name))}'"
        arrays = _connect().execute(query).fetchnumpy()
        return kind(**{c: np.ascontiguousarray(arrays[c], dtype) for c, dtype in wanted.items()})

    def _texts(self) -> list[str]:
        if not self._manifest.texts:
            return []
        query = f"select text from '{_quoted(self._file('texts'))}'"
        texts: list[str] = _connect().execute(query).fetchnumpy()["text"].tolist()
        return texts


def find(path: Path) -> Entry | None:
    """Return the entry for this very content, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    for home in _homes(path):
        for folder in sorted(home.glob(f"{_stem(path)}-*")):
            manifest = _manifest(folder)
            if (
                manifest is None
                or manifest.size != status.st_size
                or manifest.fingerprint != fingerprint()
            ):
                continue
            unchanged = manifest.mtime_ns == status.st_mtime_ns and manifest.samples == _samples(
                path
            )
            if unchanged or manifest.origin.digest == _digest(path):
                return Entry(folder, manifest)
    return None


def write_behind(trace: Trace, path: Path) -> threading.Thread:
    """Write the cache in a second thread, while the analyses run; join it before leaving."""
    thread = threading.Thread(target=store, args=(trace, path), name="ridgeline-cache")
    thread.start()
    return thread


def store(trace: Trace, path: Path) -> Entry | None:
    """Write the cache and return it; None if it cannot be written or sealed."""
    from ridgeline.machine.cache_folder import seal

    if seal(b"") is None:
        return None
    for home in _homes(path):
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            return _store(trace, path, home)
    return None


def _store(trace: Trace, path: Path, home: Path) -> Entry:
    status = path.stat()
    tables: dict[str, Events] = {name: getattr(trace, name) for name in TABLES}
    manifest = Manifest(
        fingerprint=fingerprint(),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        samples=_samples(path),
        origin=trace.origin,
        metadata=trace.metadata,
        lanes=trace.lanes,
        rows={name: len(table) for name, table in tables.items()},
        texts=len(trace.texts),
        digests={},
    )
    target = home / f"{_stem(path)}-{trace.origin.digest[:16]}"
    scratch = Path(tempfile.mkdtemp(dir=home, prefix=".writing-"))
    connection = _connect()  # one for all: each costs 20 ms
    try:
        for name, table in tables.items():
            columns = {c: getattr(table, c) for c in table.columns()}
            _copy(connection, columns, scratch / f"{name}.parquet")
        _copy(connection, {"text": np.array(trace.texts, object)}, scratch / "texts.parquet")
        digests = {file.name: _digest(file) for file in scratch.glob("*.parquet")}
        manifest = msgspec.structs.replace(manifest, digests=digests)
        _write_sealed(scratch / "trace.json", "trace", manifest)
        for old in home.glob(f"{_stem(path)}-*"):
            shutil.rmtree(old, ignore_errors=True)
        scratch.replace(target)
    finally:
        connection.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return Entry(target, manifest)


def _copy(connection: "duckdb.DuckDBPyConnection", columns: dict[str, Any], path: Path) -> None:
    if len(next(iter(columns.values()))):
        connection.execute(
            f"copy (select * from columns) to '{_quoted(path)}' "
            "(format parquet, compression zstd, compression_level 1)"
        )


def _connect() -> "duckdb.DuckDBPyConnection":
    import duckdb

    connection = duckdb.connect(config={"threads": min(os.cpu_count() or 1, 4)})
    connection.execute("set enable_progress_bar = false")  # it would draw on stdout
    return connection


def _manifest(folder: Path) -> Manifest | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None  # another user's folder is not trusted
    except OSError:
        return None
    return _unsealed(folder / "trace.json", "trace", Manifest)


def _write_sealed(path: Path, about: str, content: Struct) -> bool:
    """Write `content` with a seal. Return False, and write nothing, if this user has no key."""
    from ridgeline.machine.cache_folder import seal

    encoded = msgspec.json.encode(content)
    made = seal(about.encode() + b"\n" + encoded)
    if made is not None:
        path.write_bytes(msgspec.json.encode(_Sealed(made, msgspec.Raw(encoded))))
    return made is not None


def _unsealed(path: Path, about: str, kind: type[T]) -> T | None:
    """Return the content of a file that this user sealed; None if it cannot be trusted."""
    from ridgeline.machine.cache_folder import seal

    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        made = seal(about.encode() + b"\n" + bytes(sealed.content))
        if made is None or not hmac.compare_digest(made.encode(), sealed.seal.encode()):
            return None
        return msgspec.json.decode(sealed.content, type=kind)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _homes(path: Path) -> Iterator[Path]:
    """Yield the folders for entries: beside the trace, then in the cache folder."""
    from ridgeline.machine.cache_folder import folder

    yield path.absolute().parent / ".ridgeline" / "traces"
    yield folder() / "traces"


def _stem(path: Path) -> str:
    """Return the file's name without characters that are special in a glob or a folder's name."""
    return "".join(c if c.isalnum() or c in "._" else "_" for c in path.name)[:80]


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _samples(path: Path) -> str:
    """Return a hash of pieces spread evenly over the file."""
    digest = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    with path.open("rb") as file:
        for i in range(SAMPLE_COUNT):
            file.seek(max(0, (size - SAMPLE_BYTES) * i // (SAMPLE_COUNT - 1)))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@functools.cache
def fingerprint() -> str:
    """Return a hash of the code that reads and analyses. Another version of it ignores entries that
    this one wrote."""
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parents[2]
    for folder in ("trace", "cost/formulas", "records"):
        for file in sorted((package / folder).rglob("*.[pc]*")):
            if file.suffix in (".py", ".c"):
                status = file.stat()
                digest.update(f"{file.name}{status.st_size}{status.st_mtime_ns}".encode())
    return digest.hexdigest()
