"""One call under one clock: its block sized, warmed up to steady state, and sampled."""

from collections.abc import Callable
from statistics import median

from ridgeline.measure.clock import Clock, Reading
from ridgeline.statistics.steady import steady_start

Progress = Callable[[str, float], None]
"""Called with "warming up" or "sampling" and the share done, 0 to 1."""

SLOW_CALL_NS = 30e9
SLOW_CALL_SAMPLES = 3
"""A call of over 30 s is accepted with three samples: five more minutes would not change it."""

_FIRST_LOOK = 8  # samples before the first question whether it is steady; then at each doubling
_BLOCK_LIMIT = 1 << 20  # an empty call takes 30 ns: 20 µs need 700 of them


class Session:
    """Every reading of the call so far, in order."""

    def __init__(
        self,
        clock: Clock,
        call: Callable[[], object],
        *,
        shortest_ns: float | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        self.clock = clock
        self.call = call
        self.shortest_ns = clock.shortest_ns if shortest_ns is None else shortest_ns
        self.before = before
        self.calls = 1
        self.readings: list[Reading] = []
        self.per_call_ns: list[float] = []

    def read(self) -> float:
        """Time one block; returns what it took as a whole."""
        reading = self.clock.time(self.call, self.calls, self.before)
        self.readings.append(reading)
        self.per_call_ns.append(reading.total_ns / self.calls)
        return reading.total_ns

    def size_block(self) -> None:
        """Grow the block until the clock can time it. The very first call decides nothing: it may
        hold a compilation."""
        self.read()
        self.read()
        while self.grow(1):
            self.read()

    def grow(self, judged: int) -> bool:
        """Enlarge the block if each of the last `judged` readings was too short for the clock."""
        longest = max(reading.total_ns for reading in self.readings[-judged:])
        if longest >= self.shortest_ns or self.calls >= _BLOCK_LIMIT:
            return False
        wanted = self.shortest_ns / max(self.per_call_ns[-1], 1.0)
        self.calls = min(max(2 * self.calls, int(wanted) + 1), _BLOCK_LIMIT)
        return True

    def warm_up(self, limit_ns: float, most: int, report: Progress) -> int:
        """Read until the samples are steady, for a tenth of the limit at least (clocks take their
        time to rise), the limit at most. Returns how many readings were warm-up."""
        if self.readings[-1].wall_ns > limit_ns:
            return len(self.readings) - 1  # the second call: as warm as a slow call can be paid for
        start, first = self.clock.now_ns(), len(self.readings)
        look = _FIRST_LOOK
        while (elapsed := self.clock.now_ns() - start) + self.readings[-1].wall_ns <= limit_ns:
            report("warming up", min(elapsed / limit_ns, 1.0))
            self.read()
            # On an H200 the second x + 1 took 89 µs and the fourth 9: sized too early, once more.
            if self.grow(3):
                first = len(self.readings)
                continue
            taken = len(self.readings) - first
            if taken >= most:
                break
            if taken >= look and elapsed >= limit_ns / 10:
                look *= 2
                if steady_start(self.per_call_ns[first:]) is not None:
                    break
        return len(self.readings)

    def sample(self, first: int, limit_ns: float, least: int, most: int, report: Progress) -> None:
        """Read until the limit or `most`, counting from reading `first`; a sample that would end
        beyond the limit is not begun."""
        start = self.clock.now_ns()
        while (taken := len(self.readings) - first) < most:
            elapsed = self.clock.now_ns() - start
            if taken >= least and elapsed + self.readings[-1].wall_ns > limit_ns:
                return
            if SLOW_CALL_SAMPLES <= taken < least and self._slow(first):
                return
            done = max(elapsed / limit_ns, taken / most) if taken >= least else taken / least
            report("sampling", min(done, 1.0))
            self.read()

    def _slow(self, first: int) -> bool:
        return median(self.per_call_ns[first:]) > SLOW_CALL_NS
