"""The text of a trace file in blocks, whatever it is packed in; a damaged end is noted, not raised.

The packing is told by the first bytes, not by the name: traces called .gz that are plain, and the
other way round, are common.
"""

import hashlib
import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError

BLOCK = 1 << 20
AHEAD = 8
"""Blocks unpacked ahead of the reader, so that a second core gunzips."""
BOMB_RATIO = 250
BOMB_BYTES = 1 << 28
"""Real traces pack 10 to 30 to 1, grown ones 60; a file beyond 250 to 1 holds nothing worth it."""

_FOREIGN = {
    b"PK\x03\x04": "a zip archive: unpack it and name the trace inside",
    b"BZh": "packed with bzip2, which this does not read: unpack it first",
    b"\xfd7zXZ": "packed with xz, which this does not read: unpack it first",
    b"SQLite format 3": "an SQLite database (an Nsight Systems export?), not a PyTorch trace",
    b"\x80\x02": "a pickle, not a trace; a memory snapshot has no times in it",
    b"\x80\x04": "a pickle, not a trace; a memory snapshot has no times in it",
    b"PAR1": "a Parquet file; give the trace it was made from",
    b"%PDF": "a PDF, not a trace",
    b"\x7fELF": "a program, not a trace",
}


class Source:
    """A file's text, block by block, and what was wrong with it once it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compression = ""
        self.text_bytes = 0
        self.truncated = ""
        self.unverified = ""
        self._digest = hashlib.blake2b(digest_size=16)
        self._read_bytes = 0

    @property
    def digest(self) -> str:
        """Of the bytes on disk; whole once the last block was handed out."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """The text; unpacked in a second thread where there is enough of it to matter."""
        try:
            large = self.path.stat().st_size > 4 * BLOCK
            blocks = self._unpacked()
            for block in _ahead(blocks) if large else blocks:
                self.text_bytes += len(block)
                yield block
        except OSError as error:
            raise RidgelineError(f"{self.path}: {error.strerror or error}") from error

    def _unpacked(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            head = file.read(BLOCK)
            self._count(head)
            for magic, what in _FOREIGN.items():
                if head.startswith(magic):
                    raise RidgelineError(f"{self.path}: {what}")
            packed = self._packed(head, file)
            if head.startswith(b"\x1f\x8b"):
                self.compression = "gzip"
                yield from self._gzip(packed)
            elif head.startswith(b"\x28\xb5\x2f\xfd"):
                self.compression = "zstd"
                yield from self._zstd(packed)
            else:
                yield from packed

    def _packed(self, head: bytes, file: Any) -> Iterator[bytes]:
        while head:
            yield head
            head = file.read(BLOCK)
            self._count(head)

    def _count(self, block: bytes) -> None:
        self._read_bytes += len(block)
        self._digest.update(block)

    def _gzip(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        """Member after member; the checksum at each end is zlib's to check."""
        unpacker = _gzip_unpacker()
        made = 0
        finished = False
        for block in packed:
            rest = block
            while rest:
                if finished:
                    if not rest.startswith(b"\x1f\x8b"):
                        return  # padding after the last member, as tape and some writers leave
                    unpacker = _gzip_unpacker()
                    finished = False
                try:
                    text = unpacker.decompress(rest, BLOCK)
                except _errors() as error:
                    self._stop("gzip", str(error))
                    return
                made += len(text)
                self._guard(made)
                if text:
                    yield text
                finished = unpacker.eof
                rest = unpacker.unused_data if finished else unpacker.unconsumed_tail
        while not finished:  # what the unpacker still holds
            try:
                text = unpacker.decompress(unpacker.unconsumed_tail, BLOCK)
            except _errors() as error:
                self._stop("gzip", str(error))
                return
            if not text:
                break
            yield text
            finished = unpacker.eof
        if not finished:
            self.truncated = "the gzip stream ends before its end mark"
            self.unverified = "a truncated gzip stream has no checksum to test"

    def _zstd(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        import zstandard

        made = 0
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        finished = False
        for block in packed:
            # small pieces: one call unpacks all it is given, and a bomb gives 1000 to 1
            for start in range(0, len(block), 4096):
                rest = block[start : start + 4096]
                while rest:
                    if finished:
                        unpacker = zstandard.ZstdDecompressor(
                            max_window_size=1 << 27
                        ).decompressobj()
                        finished = False
                    try:
                        text = unpacker.decompress(rest)
                    except zstandard.ZstdError as error:
                        self._stop("zstd", str(error))
                        return
                    made += len(text)
                    self._guard(made)
                    for at in range(0, len(text), BLOCK):
                        yield text[at : at + BLOCK]
                    finished = unpacker.eof
                    rest = unpacker.unused_data if finished else b""
        if not finished:
            self.truncated = "the zstd stream ends before its end mark"
            self.unverified = "a truncated zstd stream has no checksum to test"

    def _stop(self, packing: str, error: str) -> None:
        if "data check" in error or "length check" in error or "ISIZE" in error or "CRC" in error:
            self.unverified = (
                f"the {packing} checksum does not match: some bytes are not what was written"
            )
            return
        self.truncated = f"the {packing} stream is damaged ({error[:120]})"
        self.unverified = "what comes before the damage was not checked by its checksum"

    def _guard(self, made: int) -> None:
        if made > BOMB_BYTES and made > BOMB_RATIO * self._read_bytes:
            raise RidgelineError(
                f"{self.path}: unpacks to more than {BOMB_RATIO} times its size "
                f"({made >> 20} MiB and counting), which no trace does",
                "if it is one all the same, unpack it and give the plain file",
            )


def _gzip_unpacker() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj(wbits=31)
    return isal_zlib.decompressobj(wbits=31)


def _errors() -> tuple[type[Exception], ...]:
    try:
        from isal import isal_zlib
    except ImportError:
        return (zlib.error,)
    return (zlib.error, isal_zlib.error)


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, made by another thread a few ahead; its error is raised here."""
    made: queue.Queue[bytes | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for block in blocks:
                if not put(block):
                    return
            put(None)
        except BaseException as error:  # handed over, whatever it is
            put(error)

    thread = threading.Thread(target=work, name="ridgeline-unpack", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
