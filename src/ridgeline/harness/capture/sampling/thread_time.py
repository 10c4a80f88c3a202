"""What was seen of one thread, and the time it stands for: work and waiting kept apart.

The sampling thread gets its turn most easily when the program lets go of the interpreter's lock or
of the processor: where it sleeps or waits. Samples alone would blame those lines: of 8 ms work and
2 ms sleep in turn, 70 % was seen asleep. So the system's own account of the thread says how much of
a second it worked or stood in line for a processor, and that is laid on the lines at which it was
seen working; the rest on those at which it was seen to wait.
"""

import os
import time
from time import monotonic_ns, sleep

from ridgeline.harness.capture.sampling.stacks import Key

_HEAVIEST_NS = 10 * 1_000_000_000
"""One sample stands for this much at most: a stopped process (Ctrl-Z) is nobody's line."""
_SECOND_LOOK_S = 0.0001
_LOOKS = 3
"""Second looks at a place before it is taken to be one that works, or one that waits: each costs
the program about as much as a sample."""
_MOST_PLACES = 5_000


class ThreadTime:
    def __init__(self, thread: int, native: int | None, began_ns: int) -> None:
        """A thread of this process that is alive: its `ident` and its `native_id`."""
        self.thread = thread
        self._account = f"/proc/self/task/{native}/schedstat"
        try:
            self._clock: int | None = time.pthread_getcpuclockid(thread)
        except (AttributeError, OSError):  # no such clock here: all time weighs the same
            self._clock = None
        self._looked = self._settled = began_ns
        self._processor = self._processor_at_settling = self._processor_ns()
        self._in_line = self._in_line_ns()
        self._places: dict[Key, tuple[int, int]] = {}
        """Of an instruction: second looks at it, and in how many it worked."""
        self._working: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}

    def add(self, key: Key | None) -> None:
        """A sample weighs the time since the one before: a call that keeps the interpreter's lock
        for a second is seen once, and weighs a second. None: that time is not to count."""
        now, processor = monotonic_ns(), self._processor_ns()
        passed = min(max(now - self._looked, 1), _HEAVIEST_NS)
        worked = processor - self._processor
        self._looked, self._processor = now, processor
        if key is None:
            return
        waits = worked < 0.05 * passed or not self._is_working(key[:2])
        seen = self._waiting if waits and self._clock is not None else self._working
        seen[key] = seen.get(key, 0) + passed

    def settle(self) -> dict[Key, float]:
        """Nanoseconds by stack, since this was last asked."""
        working, waiting = self._working, self._waiting
        self._working, self._waiting = {}, {}
        passed = sum(working.values()) + sum(waiting.values())
        worked = self._worked_ns(passed)
        if not working or not waiting or self._clock is None:
            return {**working, **waiting}
        scale = worked / sum(working.values())
        found = {key: weight * scale for key, weight in working.items()}
        scale = (passed - worked) / sum(waiting.values())
        for key, weight in waiting.items():
            found[key] = found.get(key, 0.0) + weight * scale
        return found

    def _worked_ns(self, passed: int) -> float:
        """Of `passed`, in the proportion that the system saw."""
        now, in_line, processor = monotonic_ns(), self._in_line_ns(), self._processor_ns()
        worked = processor - self._processor_at_settling + max(in_line - self._in_line, 0)
        share = worked / max(now - self._settled, 1)
        self._settled, self._in_line, self._processor_at_settling = now, in_line, processor
        return passed * min(max(share, 0.0), 1.0)

    def _is_working(self, place: Key) -> bool:
        """A second look tells: the clock of a thread that waits stands still."""
        looks, working = self._places.get(place, (0, 0))
        if looks < _LOOKS and self._clock is not None:
            sleep(_SECOND_LOOK_S)
            gone = monotonic_ns() - self._looked
            looks, working = (
                looks + 1,
                working + (self._processor_ns() - self._processor > 0.3 * gone),
            )
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[place] = (looks, working)
        return 2 * working > looks

    def _processor_ns(self) -> int:
        if self._clock is None:
            return 0
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has ended
            self._clock = None
            return 0

    def _in_line_ns(self) -> int:
        """Ready to run, and no processor free; 0 where the system does not tell."""
        try:
            file = os.open(self._account, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(file, 100).split()[1])
            finally:
                os.close(file)
        except (OSError, ValueError, IndexError):
            return 0
