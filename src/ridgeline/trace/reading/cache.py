"""Parquet beside the trace, so that a large one is read once.

    .ridgeline/traces/<name>-<content hash>/   one Parquet file a table, texts, trace.json
                                               and the answers already given

Found by name, checked by content: size, time and samples where those are unchanged, the whole file
where they are not. In the cache folder where the trace's own cannot be written. What cannot be read
is as if it were not there; it appears whole, by rename, or not at all.

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

from ridgeline.trace.columns import RAW, Events
from ridgeline.trace.reading.tables import TABLES
from ridgeline.trace.trace import Lane, Metadata, Origin, Trace

if TYPE_CHECKING:
    import duckdb

LEAST_TEXT_BYTES = 1 << 24
"""Below 16 MiB of text a trace is read faster (0.06 s) than duckdb is imported (0.16 s)."""
SAMPLES = 16
SAMPLE_BYTES = 1 << 16

T = TypeVar("T")


class _Sealed(Struct, frozen=True):
    """A file of the cache: its content, and the proof that this user's Ridgeline wrote it."""

    seal: str
    content: msgspec.Raw


class Kept(Struct, frozen=True, kw_only=True):
    """What stands beside the Parquet files."""

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
    """Of each Parquet file, so that damage is found before anything is computed from it."""


class Entry:
    """One trace's folder in the cache."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self.folder = folder
        self._kept = kept

    def trace(self, path: Path) -> Trace | None:
        """The trace, its tables read when they are asked for; None where a file is damaged."""
        try:
            if any(_digest(self.folder / f) != sum_ for f, sum_ in self._kept.digests.items()):
                return None
            texts = self._column("texts", self._kept.texts, "text").tolist()
        except OSError:
            return None
        origin = msgspec.structs.replace(self._kept.origin, path=str(path), from_cache=True)
        return Trace(origin, self._kept.metadata, texts, self._kept.lanes, self._table)

    def answer(self, question: str, kind: type[T]) -> T | None:
        """What was answered before to the same question."""
        return _unsealed(self.folder / f"{question}.json", self._about(question), kind)

    def remember(self, question: str, answer: Struct) -> None:
        with contextlib.suppress(OSError):
            path = self.folder / f".{question}.{os.getpid()}"
            if _write_sealed(path, self._about(question), answer):
                path.replace(self.folder / f"{question}.json")

    def _about(self, question: str) -> str:
        """Return what an answer's seal depends on beside the answer: the trace's content, the code
        that answered, and the question."""
        return f"{self._kept.origin.digest} {self._kept.fingerprint} {question}"

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    def _table(self, name: str) -> Events:
        kind, rows = TABLES[name], self._kept.rows[name]
        wanted = {c: "|u1" if c == "kind" else RAW[c] for c in kind.columns()}
        if not rows:
            return kind(**{c: np.empty(0, dtype) for c, dtype in wanted.items()})
        columns = ", ".join(f'"{c}"' for c in wanted)
        found = _connect().execute(f"select {columns} from '{_quoted(self._file(name))}'")
        arrays = found.fetchnumpy()
        return kind(**{c: np.ascontiguousarray(arrays[c], dtype) for c, dtype in wanted.items()})

    def _column(self, name: str, rows: int, column: str) -> Any:
        if not rows:
            return np.empty(0, object)
        query = f"select {column} from '{_quoted(self._file(name))}'"
        return _connect().execute(query).fetchnumpy()[column]


def find(path: Path) -> Entry | None:
    """The cache of this very content, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    for home in _homes(path):
        for folder in sorted(home.glob(f"{_stem(path)}-*")):
            kept = _kept(folder)
            if kept is None or kept.size != status.st_size or kept.fingerprint != fingerprint():
                continue
            same_time = kept.mtime_ns == status.st_mtime_ns and kept.samples == _samples(path)
            if same_time or kept.origin.digest == _digest(path):
                return Entry(folder, kept)
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
    kept = Kept(
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
        kept = msgspec.structs.replace(kept, digests=digests)
        _write_sealed(scratch / "trace.json", "trace", kept)
        for old in home.glob(f"{_stem(path)}-*"):
            shutil.rmtree(old, ignore_errors=True)
        scratch.replace(target)
    finally:
        connection.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return Entry(target, kept)


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


def _kept(folder: Path) -> Kept | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None  # somebody else's: not believed
    except OSError:
        return None
    return _unsealed(folder / "trace.json", "trace", Kept)


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
        found = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        made = seal(about.encode() + b"\n" + bytes(found.content))
        if made is None or not hmac.compare_digest(made.encode(), found.seal.encode()):
            return None
        return msgspec.json.decode(found.content, type=kind)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _homes(path: Path) -> Iterator[Path]:
    """Beside the trace, else in the cache folder."""
    from ridgeline.machine.cache_folder import folder

    yield path.absolute().parent / ".ridgeline" / "traces"
    yield folder() / "traces"


def _stem(path: Path) -> str:
    """The file's name, without what a glob or a folder would trip over."""
    return "".join(c if c.isalnum() or c in "._" else "_" for c in path.name)[:80]


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _samples(path: Path) -> str:
    """A hash of pieces spread evenly over the file."""
    digest = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(max(0, (size - SAMPLE_BYTES) * i // (SAMPLES - 1)))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@functools.cache
def fingerprint() -> str:
    """Of the code that reads and analyses: another version of it trusts nothing kept by this."""
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parents[2]
    for folder in ("trace", "cost/formulas", "records"):
        for file in sorted((package / folder).rglob("*.[pc]*")):
            if file.suffix in (".py", ".c"):
                status = file.stat()
                digest.update(f"{file.name}{status.st_size}{status.st_mtime_ns}".encode())
    return digest.hexdigest()
