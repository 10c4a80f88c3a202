"""How much memory a program has together with the processes it starts, looked at from outside now
and then: eight workers of a loader with a buffer each are memory of the program.

Pages that a fork shares are counted once: each process tells its part of them. Code and data mapped
from files are shared with strangers as well, and each kind of memory is taken by itself, so that
what strangers have of one does not hide another."""

import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

EVERY_S = 0.2
SHARE = 0.01
"""Of a core: where a look takes longer, the next comes later. 3 ms for a program of 0.6 GB with two
workers, 0.3 ms where there are none."""
KINDS = {"Pss_Anon": "Anonymous", "Pss_File": "RssFile", "Pss_Shmem": "RssShmem"}
"""A process's part of what it shares, and all of it."""
ON_DEVICE = "on_device"
"""A file that a program which works on a device leaves where its timed steps begin: its memory is
the device's, and a look would take a part of those steps for nothing."""
_PROC = Path("/proc")


class Family:
    """One for a program. Elsewhere than on Linux nothing can be read, and nothing is added."""

    def __init__(
        self,
        proc: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
        until: Sequence[Path] = (),
        beside: Path | None = None,
    ) -> None:
        """`until`: looks end where one of these files is there; `beside`: while this one is, a
        process of the program's is ours, and nothing is counted."""
        self._proc = proc
        self._clock = clock
        self._spent = spent
        """On a busy machine a look waits longer than it takes."""
        self._until = until
        self._beside = beside
        self._due = 0.0
        self.others_bytes = 0
        """What they had beside the program, when they were last looked at."""
        self._most_bytes = 0
        self.looks = 0

    def look(self, pid: int) -> None:
        """Called as often as one likes."""
        now = self._clock()
        if now < self._due or self._ours():
            return
        if any(path.exists() for path in self._until):
            self._due = math.inf
            return
        began = self._spent()
        self.looks += 1
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has just ended
            self._look(pid)
        self._due = now + max(EVERY_S, (self._spent() - began) / SHARE)

    def peak_bytes(self, own_bytes: int, others_bytes: int) -> int:
        """`own_bytes`: the peak of the program's own process, which it knows exactly at its end,
        and what the others have there. 0: not known; and where nothing is."""
        others = max(self.others_bytes, others_bytes)
        return max(self._most_bytes, own_bytes + others if own_bytes else 0)

    def _look(self, pid: int) -> None:
        others = list(self._below(pid))
        known = _numbers(self._proc / str(pid) / "status")
        highest = known["VmHWM"]  # not there any more once it ends, and the others are orphans
        if not others:
            self.others_bytes = 0
            return
        first = _numbers(self._proc / str(pid) / "smaps_rollup")
        known.update(first)
        shared = [first, *(_numbers(self._proc / str(one) / "smaps_rollup") for one in others)]
        if self._ours() or list(self._below(pid)) != others:
            return  # one that ended in between left its part to the rest, and would count twice
        self.others_bytes = sum(
            max(sum(one.get(part, 0) for one in shared) - known[whole], 0)
            for part, whole in KINDS.items()
        )
        self._most_bytes = max(self._most_bytes, highest + self.others_bytes)

    def _ours(self) -> bool:
        return self._beside is not None and self._beside.exists()

    def _below(self, pid: int) -> Iterator[int]:
        """A thread of it may have started them as well."""
        for task in (self._proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield int(child)
                    with contextlib.suppress(OSError):
                        yield from self._below(int(child))


def others_bytes() -> int:
    """Of those this process has started."""
    family = Family()
    family.look(os.getpid())
    return family.others_bytes


def own_peak_bytes(proc: Path = _PROC) -> int:
    """Of this process. What is told of it when it has ended has in it the process that started
    it, and the largest that it has started itself."""
    with contextlib.suppress(OSError, KeyError):
        return _numbers(proc / "self" / "status")["VmHWM"]
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def forget_own_peak(proc: Path = _PROC) -> None:
    """What this process has now is its peak from here on, where the system can do that."""
    with contextlib.suppress(OSError):
        (proc / "self" / "clear_refs").write_text("5")


def _numbers(path: Path) -> dict[str, int]:
    """In bytes: lines of both files are `RssAnon:     148 kB`."""
    found = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            found[words[0].rstrip(":")] = int(words[1]) * 1024
    return found
