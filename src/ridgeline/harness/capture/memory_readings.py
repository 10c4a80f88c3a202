"""Memory in use at the end of a step, as the allocators themselves count it.

The C library knows to the byte what the program has asked for and not given back. The resident
size, which the watcher sees from outside, follows that number only roughly and late. One reading
takes 1 to 5 microseconds on a host. Where there is no such counter (another C library, or another
allocator loaded in front of it) the host's bytes are 0, which means not known.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from ridgeline.records.run import StepMemory

PAUSE_FACTOR = 500
"""A reading is followed by a pause of this many times its own cost: at most 0.2 % of the time."""
MIN_PLAUSIBLE_BYTES = 8 * 2**20
"""Importing torch alone takes 80 MiB from malloc. Less means that another allocator is in use."""


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library (2.33 and later)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def malloc_bytes() -> Callable[[], int] | None:
    """Return a function that returns how many bytes malloc has handed out; None if the C library
    does not tell."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    ask.restype = _MallocInfo

    def in_use() -> int:
        info = ask()
        return int(info.uordblks) + int(info.hblkhd)

    return in_use if in_use() >= MIN_PLAUSIBLE_BYTES else None


class MemoryReadings:
    """Reads the memory in use, with a pause after each reading that keeps the cost small."""

    def __init__(self, torch: Any, clock: Callable[[], int]) -> None:
        self._torch = torch
        self._clock = clock
        self._host = malloc_bytes()
        self._due_ns = 0
        self._cost_ns: dict[int | None, int] = {}
        """The lowest cost of a reading so far, by device. A reading that was interrupted costs
        more, which says nothing about the next one."""

    def read_if_due(self, cuda: int | None, now_ns: int) -> StepMemory | None:
        """Return the memory in use on the host and on the CUDA device `cuda`, if there is one.
        Return None if the pause after the last reading is not over, or if nothing can be read."""
        if now_ns < self._due_ns:
            return None
        try:
            reading = self.read(cuda)
        except Exception:  # an allocator of the program's own that counts nothing
            self._due_ns = sys.maxsize
            return None
        done = self._clock()
        cost = min(done - now_ns, self._cost_ns.get(cuda, done - now_ns))
        self._cost_ns[cuda] = cost
        self._due_ns = done + PAUSE_FACTOR * cost
        return reading

    def last(self, cuda: int | None) -> StepMemory | None:
        """Return a last reading, whatever it costs: the program is over."""
        self._due_ns = min(self._due_ns, self._clock())
        return self.read_if_due(cuda, self._clock())

    def read(self, cuda: int | None) -> StepMemory | None:
        host = self._host() if self._host is not None else 0
        if cuda is None or not self._torch.cuda.is_initialized():
            return StepMemory(host_bytes=host) if host else None
        # torch.cuda.memory_stats sorts and flattens this, which takes ten times as long.
        told = self._torch.cuda.memory_stats_as_nested_dict(cuda)
        allocated = told.get("allocated_bytes", {}).get("all", {})
        reserved = told.get("reserved_bytes", {}).get("all", {})
        return StepMemory(
            allocated_bytes=int(allocated.get("current", 0)),
            peak_bytes=int(allocated.get("peak", 0)),
            reserved_bytes=int(reserved.get("peak", 0)),
            retries=int(told.get("num_alloc_retries", 0)),
            host_bytes=host,
        )
