"""The kernel's account of the thread that trains: how long it ran, and how long it was ready to run
while other threads and processes held the processors.

The difference between a step's wall time and its processor time is not all waiting. On a crowded
machine most of it is preemption, and only the kernel can tell the two apart. Reading the account
takes 14 µs, so it is read where a window begins and ends, not in each step.
"""

import os
from collections.abc import Callable
from threading import get_ident
from typing import Literal

from ridgeline.records.run import ThreadTime

WindowKind = Literal["light", "traced"]
_ACCOUNT = "/proc/thread-self/schedstat"


class ThreadAccount:
    """Adds up the account over all windows of a kind. A window that ends on another thread than it
    began on does not count."""

    def __init__(
        self,
        clock: Callable[[], int],
        read: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._clock = clock
        self._read = read or read_account
        self._began: tuple[WindowKind, int, int, tuple[int, int]] | None = None
        self._sums: dict[WindowKind, ThreadTime] = {}

    def begin(self, kind: WindowKind) -> None:
        account = self._read()
        self._began = None if account is None else (kind, get_ident(), self._clock(), account)

    def end(self) -> None:
        """Add the window that has begun to the sums; do nothing if none has begun."""
        began, self._began = self._began, None
        if began is None or began[1] != get_ident() or (account := self._read()) is None:
            return
        kind, _, start, before = began
        sum_so_far = self._sums.get(kind, ThreadTime())
        self._sums[kind] = ThreadTime(
            wall_ns=sum_so_far.wall_ns + self._clock() - start,
            processor_ns=sum_so_far.processor_ns + account[0] - before[0],
            queued_ns=sum_so_far.queued_ns + account[1] - before[1],
        )

    def of(self, kind: WindowKind) -> ThreadTime | None:
        """Return the sums for a kind of window. Return None if no such window has ended, or if the
        kernel keeps no account."""
        return self._sums.get(kind)


def read_account() -> tuple[int, int] | None:
    """Return the calling thread's nanoseconds on a processor and in the run queue; None if the
    kernel keeps no account."""
    try:
        file = os.open(_ACCOUNT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        processor, queued = os.read(file, 100).split()[:2]
        return int(processor), int(queued)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
