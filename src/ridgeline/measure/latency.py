"""How long a call takes, once it is warm.

First the block is sized (a call too short for the clock is timed many at once), then the call is
warmed up until its timings are steady, then it is sampled until the budget is spent. Nothing is
dropped: samples taken before steady state are kept apart, and what is doubtful about the rest is
said in `warnings`.
"""

from collections.abc import Callable
from statistics import median

from ridgeline.measure.clock import Clock, Reading, clock_for
from ridgeline.measure.doubts import doubts
from ridgeline.records.latency import Latency
from ridgeline.statistics.steady import steady_start
from ridgeline.statistics.summary import summarize

Progress = Callable[[str, float], None]
"""Called with "warming up" or "sampling" and the share done, 0 to 1."""

SLOW_CALL_NS = 30e9
SLOW_CALL_SAMPLES = 3
"""A call of over 30 s is accepted with three samples: five more minutes would not change it."""

_FIRST_LOOK = 8  # samples before the first question whether it is steady; then at each doubling
_BLOCK_LIMIT = 1 << 20  # an empty call takes 30 ns: 20 µs need 700 of them


def time_calls(
    call: Callable[[], object],
    device: str = "cpu",
    *,
    budget_s: float = 2.0,
    min_samples: int = 5,
    max_samples: int = 1000,
    warmup_s: float | None = None,
    clock: Clock | None = None,
    on_progress: Progress | None = None,
) -> Latency:
    """Time `call` to steady state on `device`.

    Sampling takes `budget_s`, or `max_samples`, whichever comes first, and `min_samples` in any
    case; warming up takes at most `warmup_s` (half the budget unless given) and one call at least.
    What `call` raises comes through unchanged.
    """
    clock = clock or clock_for(device)
    warmup_ns = 1e9 * (budget_s / 2 if warmup_s is None else warmup_s)
    report = on_progress or _silent
    session = _Session(clock, call)
    session.size_block()
    most = max(min_samples, max_samples)
    warm = session.warm_up(warmup_ns, most, report)
    session.sample(warm, 1e9 * budget_s, min_samples, most, report)
    return _latency(session, warm, min_samples)


class _Session:
    """One call under one clock, and every reading taken so far, in order."""

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self.clock = clock
        self.call = call
        self.calls = 1
        self.readings: list[Reading] = []
        self.per_call_ns: list[float] = []

    def read(self) -> float:
        """Time one block; returns what it took as a whole."""
        reading = self.clock.time(self.call, self.calls)
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
        if longest >= self.clock.shortest_ns or self.calls >= _BLOCK_LIMIT:
            return False
        wanted = self.clock.shortest_ns / max(self.per_call_ns[-1], 1.0)
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


def _latency(session: _Session, warm: int, least: int) -> Latency:
    samples = session.per_call_ns[warm:]
    start = steady_start(samples)
    # A change in the first half was warm-up that outlasted its limit. One later than that leaves
    # no telling which level is the true one: everything stays, and is called not steady.
    late = start is not None and start > len(samples) // 2
    if start and not late and len(samples) - start >= least:
        warm += start
    readings = session.readings[warm:]
    samples = session.per_call_ns[warm:]
    steady = start is not None and not late
    issues = [reading.issue_ns for reading in readings if reading.issue_ns is not None]
    return Latency(
        summary=summarize(samples),
        samples_ns=tuple(samples),
        block_calls=session.calls,
        warmup_ns=tuple(session.per_call_ns[:warm]),
        steady=steady,
        clock=session.clock.name,
        wall_median_ns=median(reading.wall_ns for reading in readings) / session.calls,
        issue_median_ns=median(issues) / session.calls if issues else None,
        warnings=doubts(samples, readings, steady=steady, least=least),
    )


def _silent(phase: str, share: float) -> None:
    pass
