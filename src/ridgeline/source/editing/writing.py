"""A patched copy written whole or not at all, and never over what we did not write."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.edit import Patched
from ridgeline.source.editing.decoding import encoded
from ridgeline.source.editing.tree import MARK


def write_copy(patched: Patched, to: Path, *, overwrite: bool = False) -> None:
    """Write the new source to `to`, with the original's permissions. `overwrite` allows a file that
    is not ours; the original is never written to."""
    target = Path(os.path.realpath(to))
    raw = encoded(patched.text, patched.encoding)
    try:
        _refuse(patched, target, overwrite)
        _replace(target, raw, _mode(Path(patched.file)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "Name another place for the copy."
        raise RidgelineError(f"{to} cannot be written: {reason}.", hint) from error


def write_text(text: str, to: Path) -> None:
    """Whole or not at all."""
    try:
        _replace(to, text.encode("utf-8", "surrogateescape"), _mode(to))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RidgelineError(f"{to} cannot be written: {reason}.", "") from error


def _refuse(patched: Patched, target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    original = Path(patched.file)
    if original.exists() and original.samefile(target):
        raise UsageError(
            f"{target} is the original, which is never changed.", "Name another file for the copy."
        )
    if target.is_dir():
        raise UsageError(f"{target} is a directory.", "Name a file for the copy.")
    if not overwrite and MARK.encode() not in target.read_bytes():
        raise UsageError(
            f"{target} exists and was not written by Ridgeline.",
            "Name another file, or allow it to be overwritten.",
        )


def _mode(original: Path) -> int:
    try:
        return stat.S_IMODE(original.stat().st_mode)
    except OSError:
        return 0o644


def _replace(target: Path, raw: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """The name is on the disk too; some file systems cannot be asked."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
