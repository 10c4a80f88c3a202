"""The memory of a program together with the processes it starts, looked at from outside now and
then: eight workers of a loader with a buffer each are memory of the program.

Pages that a fork shares are counted once, because each process tells its part of them. Code and
data mapped from files are shared with other programs as well. So each kind of memory is counted by
itself, and what other programs hold of one kind does not hide another.
"""

import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LOOK_EVERY_S = 0.2
MAX_CORE_SHARE = 0.01
"""If a look takes longer than this share of a core, the next one comes later. It takes 3 ms for a
program of 0.6 GB with two workers, and 0.3 ms without workers."""
KINDS = {"Pss_Anon": "Anonymous", "Pss_File": "RssFile", "Pss_Shmem": "RssShmem"}
"""For each kind of memory, the names of a process's part of what it shares, and of all of it."""
ON_DEVICE = "on_device"
"""Name of a file that a program which works on a device leaves where its timed steps begin. Its
memory is the device's, and looks would take a part of those steps for nothing."""
_PROC = Path("/proc")


class FamilyMemory:
    """The memory of one program and its descendants. Only Linux can tell; elsewhere nothing is
    added for descendants."""

    def __init__(
        self,
        proc: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
        until: Sequence[Path] = (),
        fork_mark: Path | None = None,
    ) -> None:
        """Looks end once one of the files `until` exists. While `fork_mark` exists, one of the
        program's processes is our own fork, and nothing is counted."""
        self._proc = proc
        self._clock = clock
        self._spent = spent
        """Time of this thread alone: on a busy machine a look waits longer than it takes."""
        self._until = until
        self._fork_mark = fork_mark
        self._due = 0.0
        self.others_bytes = 0
        """What the descendants had besides the program at the latest look."""
        self._peak_bytes = 0
        self.looks = 0

    def look(self, pid: int) -> None:
        """Look if a look is due. This may be called as often as the caller likes."""
        now = self._clock()
        if now < self._due or self._fork_exists():
            return
        if any(path.exists() for path in self._until):
            self._due = math.inf
            return
        began = self._spent()
        self.looks += 1
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has just ended
            self._look(pid)
        self._due = now + max(LOOK_EVERY_S, (self._spent() - began) / MAX_CORE_SHARE)

    def peak_bytes(self, own_bytes: int, others_bytes: int) -> int:
        """Return the peak of the whole family; 0 if it is not known. `own_bytes` is the peak of the
        program's own process, which it knows exactly at its end (0: not known), and `others_bytes`
        what the others have then."""
        others = max(self.others_bytes, others_bytes)
        return max(self._peak_bytes, own_bytes + others if own_bytes else 0)

    def _look(self, pid: int) -> None:
        others = list(self._descendants(pid))
        known = _status_bytes(self._proc / str(pid) / "status")
        highest = known["VmHWM"]  # gone once the program ends, and then the others are orphans
        if not others:
            self.others_bytes = 0
            return
        first = _status_bytes(self._proc / str(pid) / "smaps_rollup")
        known.update(first)
        shared = [first, *(_status_bytes(self._proc / str(one) / "smaps_rollup") for one in others)]
        if self._fork_exists() or list(self._descendants(pid)) != others:
            return  # a process that ended meanwhile left its part to the rest: it would count twice
        self.others_bytes = sum(
            max(sum(one.get(part, 0) for one in shared) - known[whole], 0)
            for part, whole in KINDS.items()
        )
        self._peak_bytes = max(self._peak_bytes, highest + self.others_bytes)

    def _fork_exists(self) -> bool:
        return self._fork_mark is not None and self._fork_mark.exists()

    def _descendants(self, pid: int) -> Iterator[int]:
        """Return the processes below this one. Any of its threads may have started them."""
        for task in (self._proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    yield int(child)
                    with contextlib.suppress(OSError):
                        yield from self._descendants(int(child))


def others_bytes() -> int:
    """Return the memory of the processes that this one has started, besides what they share."""
    family = FamilyMemory()
    family.look(os.getpid())
    return family.others_bytes


def own_peak_bytes(proc: Path = _PROC) -> int:
    """Return the peak of this process. The figure that the system reports after its end would also
    hold the process that started it, and the largest one that it started."""
    with contextlib.suppress(OSError, KeyError):
        return _status_bytes(proc / "self" / "status")["VmHWM"]
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def forget_own_peak(proc: Path = _PROC) -> None:
    """Make the memory that this process has now its peak, where the system can do that."""
    with contextlib.suppress(OSError):
        (proc / "self" / "clear_refs").write_text("5")


def _status_bytes(path: Path) -> dict[str, int]:
    """Return the sizes in such a file, whose lines are `RssAnon:     148 kB`."""
    sizes = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            sizes[words[0].rstrip(":")] = int(words[1]) * 1024
    return sizes
