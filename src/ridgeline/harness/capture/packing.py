"""Packs the traces a program left as text, once it is over: packing them in the program would make
it wait ten times longer."""

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any

from ridgeline.records.run_directory import RunDirectory

_BLOCK = 1 << 20


def pack(directory: RunDirectory) -> None:
    """trace-rank<N>.json → trace-rank<N>.json.gz, by rename. What fails stays as it was."""
    for plain in sorted(directory.path.glob("trace-rank*.json")):
        with contextlib.suppress(OSError):
            _pack(plain, plain.with_name(plain.name + ".gz"))


def _pack(plain: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.part")
    packer = _packer()
    try:
        with open(plain, "rb") as text, open(partial, "wb") as packed:
            while block := text.read(_BLOCK):
                packed.write(packer.compress(block))
            packed.write(packer.flush())
        os.chmod(partial, 0o600)
        os.replace(partial, target)
        plain.unlink()
    finally:
        partial.unlink(missing_ok=True)


def _packer() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.compressobj(1, wbits=31)
    return isal_zlib.compressobj(2, wbits=31)
