"""The cores a process may use."""

import os


def usable() -> int:
    """Systems other than Linux do not say: all of them."""
    ask = getattr(os, "sched_getaffinity", None)
    return len(ask(0)) if ask is not None else os.cpu_count() or 1
