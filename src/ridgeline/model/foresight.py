"""The weight a target will have, asked before it is built.

A copy of this process builds it on meta, where weights take no memory, and tells. What the user's
code does while building (registering, initialising a process group) dies with the copy.
"""

import os
import select
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.model.meta_build import build_on_meta

PATIENCE_S = 6.0
"""A 70 B model builds on meta in 2 s; whoever takes longer is built without this look."""


def weight_bytes(make: Callable[[], Any]) -> int | None:
    """Bytes of parameters and buffers, or None where it could not be told."""
    if not hasattr(os, "fork") or torch.cuda.is_initialized():
        return None  # a forked process cannot use a CUDA context
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(read_end)
        _tell(make, write_end)
    os.close(write_end)
    answer = b""
    try:
        ready, _, _ = select.select([read_end], [], [], PATIENCE_S)
        answer = os.read(read_end, 8) if ready else b""
    finally:
        os.close(read_end)
        if not answer:
            _kill(child)
        os.waitpid(child, 0)
    return struct.unpack("q", answer)[0] if len(answer) == 8 else None


def _kill(child: int) -> None:
    """The copy and whatever it started; the copy alone if it had no group of its own yet."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)


def _tell(make: Callable[[], Any], write_end: int) -> None:
    """In the copy: build, write eight bytes, and never return."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.stdin.close()
        built = build_on_meta(make)
        model = built[0] if isinstance(built, tuple) else built
        tensors = (*model.parameters(), *model.buffers())
        os.write(write_end, struct.pack("q", sum(t.numel() * t.itemsize for t in tensors)))
    finally:
        os._exit(0)
