"""Pauses Python's garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Switch garbage collection off for a while, such as inside one sample. Over a whole run,
    reference cycles that hold tensors would pile up until memory ran out."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
