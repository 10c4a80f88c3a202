"""A program that does nothing any more: it waits for what will not come, a lock or a worker, and
would wait for as long as it is let."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EVERY_S = 0.5
WORKS = 0.005
"""Of a core: a deadlocked loader looks after its workers every few seconds, and that is all."""
_PROC = Path("/proc")


class Idle:
    """One for a program. Elsewhere than on Linux nothing can be read, and nothing is idle."""

    def __init__(
        self,
        patience_s: float,
        end: Callable[[int], None],
        proc: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s = patience_s
        self._end = end
        self._proc = proc
        self._clock = clock
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._due = 0.0
        self._since: tuple[float, float] | None = None
        """When it was last seen to work, and how long it had worked by then."""
        self.for_s = 0.0
        """It was idle for so long, and was ended; 0: it was not."""

    def look(self, pid: int) -> None:
        """Called as often as one likes, while it runs."""
        now = self._clock()
        if now < self._due or self.for_s:
            return
        self._due = now + EVERY_S
        worked_s = sum(self._worked_s(one) for one in (pid, *descendants(pid, self._proc)))
        if not worked_s:
            return
        since_s, then_s = self._since or (now, worked_s)
        # Less than before: one of its processes has ended, and took what it had worked with it.
        works = not 0 <= worked_s - then_s <= WORKS * (now - since_s)
        if self._since is None or works:
            self._since = (now, worked_s)
        elif now - since_s > self._patience_s:
            self.for_s = now - since_s
            self._end(pid)

    def _worked_s(self, pid: int) -> float:
        """All its threads, and what it has waited for the end of."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            told = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return sum(map(int, told[11:15])) * self._tick_s
        return 0.0


def descendants(pid: int, proc: Path = _PROC) -> Iterator[int]:
    """A thread of it may have started them as well."""
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield int(child)
                    yield from descendants(int(child), proc)
