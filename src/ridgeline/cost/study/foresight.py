"""The weight a target will have, asked before it is built.

A copy of this process builds it on meta, where weights take no memory, and tells. What the user's
code does while building (registering, initialising a process group) dies with the copy.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.cost.study.meta_build import build_on_meta
from ridgeline.harness.usercode.child_process import Raised, in_a_copy

PATIENCE_S = 6.0
"""A 70 B model builds on meta in 2 s; whoever takes longer is built without this look."""


def weight_bytes(make: Callable[[], Any]) -> int | None:
    """Bytes of parameters and buffers, or None where it could not be told."""
    if not hasattr(os, "fork") or torch.cuda.is_initialized():
        return None  # a forked process cannot use a CUDA context
    try:
        return int(in_a_copy(lambda: _weighed(make), PATIENCE_S, apart=True))
    except (OSError, Raised):
        return None


def _weighed(make: Callable[[], Any]) -> int:
    built = build_on_meta(make)
    model = built[0] if isinstance(built, tuple) else built
    tensors = (*model.parameters(), *model.buffers())
    return sum(t.numel() * t.itemsize for t in tensors)
