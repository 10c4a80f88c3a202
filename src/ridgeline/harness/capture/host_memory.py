"""Describes, from inside the dying program, how the host ran out of memory.

torch's CPU allocator raises a plain RuntimeError: only its message tells it from other errors.
"""

import re
import resource
from contextlib import suppress
from types import TracebackType
from typing import Any

from ridgeline.harness.capture.environment import memory_bytes
from ridgeline.harness.capture.places import own
from ridgeline.harness.usercode.explain import is_out_of_memory
from ridgeline.records.run import OutOfMemory

_ASKED = re.compile(r"tried to allocate (\d+) bytes")


def died_of(error: Any, step: int, phase: str) -> OutOfMemory | None:
    """Return a description of the shortage that `error` reports. Return None if it reports none, or
    one of a GPU."""
    import torch

    if not isinstance(error, BaseException) or isinstance(error, torch.OutOfMemoryError):
        return None
    if not is_out_of_memory(error):
        return None
    asked = _ASKED.search(str(error))
    used, limit = _used_and_limit()
    return OutOfMemory(
        asked_bytes=int(asked.group(1)) if asked else 0,
        free_bytes=max(limit - used, 0),
        total_bytes=limit,
        on="host",
        allocated_bytes=used,
        step=step,
        phase=phase,
        place=_place(error.__traceback__),
    )


def _used_and_limit() -> tuple[int, int]:
    """Return the bytes in use and the tightest limit. All mapped memory counts against a limit of
    the address space, and resident memory against any other limit."""
    mapped, resident = _sizes()
    room = memory_bytes()
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and (not room or addresses < room):
        return mapped, addresses
    return resident, room


def _sizes() -> tuple[int, int]:
    """Return the mapped and the resident bytes of this process; zeros if they are not known."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        mapped, resident = file.read().split()[:2]
        return int(mapped) * resource.getpagesize(), int(resident) * resource.getpagesize()
    return 0, 0


def _place(trace: TracebackType | None) -> str:
    """Return file:line of the innermost frame in the user's own code, or ""."""
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if own(file):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
