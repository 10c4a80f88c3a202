"""Gives the text of a trace file in blocks, unpacked. A damaged end is noted and not raised.

The first bytes decide how a file is packed, not its name: plain traces that are called .gz are
common, and the other way round.
"""

import hashlib
import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError

BLOCK_BYTES = 1 << 20
MAX_BLOCKS_AHEAD = 8
"""Blocks that are unpacked ahead of the reader, so that a second core unpacks."""
MAX_PACKING_RATIO = 250
MIN_BOMB_BYTES = 1 << 28
"""A file is refused that unpacks to more than 256 MiB and more than 250 times its size. Real traces
pack 10 to 30 to 1, grown ones 60 to 1."""

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE = "a pickle (a memory snapshot?) and not a trace: ridgeline memory reads memory snapshots"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive: unpack it and name the trace inside",
    b"BZh": "packed with bzip2, which this does not read: unpack it first",
    b"\xfd7zXZ": "packed with xz, which this does not read: unpack it first",
    b"SQLite format 3": "an SQLite database (an Nsight Systems export?), not a PyTorch trace",
    **dict.fromkeys(_PICKLES, _PICKLE),
    b"PAR1": "a Parquet file; give the trace it was made from",
    b"%PDF": "a PDF, not a trace",
    b"\x7fELF": "a program, not a trace",
}


class Source:
    """The text of a file, block by block; afterwards, what was wrong with the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compression = ""
        self.text_bytes = 0
        self.truncated = ""
        self.unverified = ""
        self.checksum_differs = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._read_bytes = 0

    @property
    def digest(self) -> str:
        """The digest of the bytes on disk; complete once the last block was handed out."""
        return self._digest.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Yield the text. A large file is unpacked in a second thread."""
        try:
            large = self.path.stat().st_size > 4 * BLOCK_BYTES
            blocks = _gathered(self._unpacked())
            for block in _ahead(blocks) if large else blocks:
                if not self.text_bytes and block.startswith(_PICKLES):
                    raise RidgelineError(f"{self.path}: {_PICKLE}")
                self.text_bytes += len(block)
                yield block
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise RidgelineError(f"{self.path}: {what}") from error

    def _unpacked(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            head = file.read(BLOCK_BYTES)
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
            head = file.read(BLOCK_BYTES)
            self._count(head)

    def _count(self, block: bytes) -> None:
        self._read_bytes += len(block)
        self._digest.update(block)

    def _gzip(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        """Unpack member after member. The unpacker checks the checksum at the end of each."""
        fast_zlib = _fast_zlib()
        unpacker: Any = None
        made = 0
        try:
            for block in packed:
                rest = block
                while rest:
                    if unpacker is None:
                        rest = rest.lstrip(b"\0")  # padding, as tape and some writers leave
                        if not rest:
                            break
                        unpacker = fast_zlib.decompressobj(wbits=31)
                    text = unpacker.decompress(rest, BLOCK_BYTES)
                    made += len(text)
                    self._guard(made)
                    if text:
                        yield text
                    rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
                    unpacker = None if unpacker.eof else unpacker
            while unpacker is not None and (text := unpacker.decompress(b"", BLOCK_BYTES)):
                made += len(text)
                yield text
        except (zlib.error, fast_zlib.error):
            yield from self._gzip_again(made)
            return
        if unpacker is not None and not unpacker.eof:
            self.truncated = "the gzip stream ends before its end mark"
            self.unverified = "a truncated gzip stream has no checksum to test"

    def _gzip_again(self, skip: int) -> Iterator[bytes]:
        """Unpack again from the start, past the `skip` bytes that were handed out, up to the very
        byte that is damaged.

        An error loses all that its call had unpacked, up to a megabyte. So the unpacker of the
        standard library, which can be copied, repeats the failed call in ever smaller steps.
        """
        made = 0
        with self.path.open("rb") as file:
            unpacker = zlib.decompressobj(wbits=31)
            step = BLOCK_BYTES
            rest = b""
            while rest or (rest := file.read(BLOCK_BYTES)):
                before = unpacker.copy()
                try:
                    text = unpacker.decompress(rest, step)
                except zlib.error as error:
                    if step == 1:
                        self._stop("gzip", str(error))
                        return
                    unpacker, step = before, step >> 5 or 1
                    continue
                made += len(text)
                self._guard(made)
                if made > skip:
                    yield text[max(0, len(text) - (made - skip)) :]
                rest = unpacker.unconsumed_tail
                if unpacker.eof:
                    rest = unpacker.unused_data.lstrip(b"\0")
                    unpacker = zlib.decompressobj(wbits=31)
        self._stop("gzip", "it could not be unpacked twice alike")

    def _zstd(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        try:
            import zstandard
        except ImportError as error:
            raise RidgelineError(
                f"{self.path}: packed with zstd, which needs the zstandard package to be read",
                "install zstandard, or unpack the file first",
            ) from error
        made = 0
        unpacker: Any = None
        for block in packed:
            # In small pieces: one call unpacks all it is given, a bomb gives 30,000 to 1, and an
            # error loses what its call had unpacked.
            for start in range(0, len(block), 64):
                rest = block[start : start + 64]
                while rest:
                    if unpacker is None:
                        unpacker = zstandard.ZstdDecompressor(
                            max_window_size=1 << 27
                        ).decompressobj()
                    try:
                        text = unpacker.decompress(rest)
                    except zstandard.ZstdError as error:
                        self._stop("zstd", str(error))
                        return
                    made += len(text)
                    self._guard(made)
                    for at in range(0, len(text), BLOCK_BYTES):
                        yield text[at : at + BLOCK_BYTES]
                    rest = unpacker.unused_data if unpacker.eof else b""
                    unpacker = None if unpacker.eof else unpacker
        if unpacker is not None:
            self.truncated = "the zstd stream ends before its end mark"
            self.unverified = "a truncated zstd stream has no checksum to test"

    def _stop(self, packing: str, error: str) -> None:
        if "data check" in error or "length check" in error or "checksum" in error:
            self.checksum_differs = True
            self.unverified = (
                f"the {packing} checksum does not match: some bytes are not what was written"
            )
            return
        self.truncated = f"the {packing} stream is damaged ({error[:120]})"
        self.unverified = "what comes before the damage was not checked by its checksum"

    def _guard(self, made: int) -> None:
        if made > MIN_BOMB_BYTES and made > MAX_PACKING_RATIO * self._read_bytes:
            raise RidgelineError(
                f"{self.path}: unpacks to more than {MAX_PACKING_RATIO} times its size "
                f"({made >> 20} MiB and counting), which no trace does",
                "if it is one all the same, unpack it and give the plain file",
            )


def _fast_zlib() -> Any:
    """Return the isal module, or the standard library's if isal is not installed."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gathered(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same text in blocks of about one size, however small the pieces are."""
    pieces: list[bytes] = []
    size = 0
    for text in texts:
        pieces.append(text)
        size += len(text)
        if size >= BLOCK_BYTES // 2:
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same blocks, made by another thread a few ahead. Its error is raised here."""
    made: queue.Queue[bytes | BaseException | None] = queue.Queue(MAX_BLOCKS_AHEAD)
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
