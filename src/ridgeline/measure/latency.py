"""One call under one clock: its block sized, warmed up to steady state, and sampled."""

from collections.abc import Callable, Sequence
from statistics import median

from ridgeline.measure.clock import Clock, Reading, clock_for
from ridgeline.records.latency import Latency
from ridgeline.statistics.samples import lag1_correlation, steady_start, summarize

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


WIDE_SPREAD = 0.25
"""IQR over median from which torch.utils.benchmark, too, warns hardest."""
IDLE_SHARE = 0.7
"""A single busy thread reads 0.97 or more on a quiet host; each further thread adds to it."""
HIDDEN_SHARE = 0.5
RESEMBLANCE = 0.3
"""Lag 1 at which the interval of the median is a quarter too narrow ((1 + r) / (1 - r))."""
_ENOUGH = 30  # a correlation of fewer samples is luck


def doubts(
    samples: Sequence[float], readings: Sequence[Reading], *, steady: bool, least: int
) -> tuple[str, ...]:
    """The sentences that belong beside a median."""
    found = (
        _few(samples, least),
        _unsteady(steady, len(samples)),
        _spread(samples),
        _resemblance(samples),
        _busy_host(readings),
        _hidden_work(readings),
    )
    return tuple(sentence for sentence in found if sentence)


def _few(samples: Sequence[float], least: int) -> str:
    if len(samples) >= least:
        return ""
    slow = median(samples) / 1e9
    return f"one call takes {slow:.0f} s, so only {len(samples)} samples were taken"


def _unsteady(steady: bool, count: int) -> str:
    if steady:
        return ""
    return f"no steady state in {count} samples: the timings still change; allow more time"


def _spread(samples: Sequence[float]) -> str:
    summary = summarize(samples)
    share = summary.iqr_ns / summary.median_ns if summary.median_ns else 0.0
    if share <= WIDE_SPREAD:
        return ""
    return f"the middle half of the samples spreads over {share:.0%} of the median"


def _resemblance(samples: Sequence[float]) -> str:
    correlation = lag1_correlation(samples) if len(samples) >= _ENOUGH else 0.0
    if correlation <= RESEMBLANCE:
        return ""
    return (
        f"neighbouring samples resemble each other (correlation {correlation:.2f}): "
        "the interval of the median is too narrow"
    )


def _busy_host(readings: Sequence[Reading]) -> str:
    if any(reading.issue_ns is not None for reading in readings):
        return ""  # a host that waits for its device is no busy host
    wall = sum(reading.wall_ns for reading in readings)
    share = sum(reading.cpu_ns for reading in readings) / wall if wall else 1.0
    if share >= IDLE_SHARE:
        return ""
    return (
        f"the process had a processor for {share:.0%} of the time: the host is busy, "
        "or the call waits for something"
    )


def _hidden_work(readings: Sequence[Reading]) -> str:
    if any(reading.issue_ns is None for reading in readings):
        return ""
    events = median(reading.total_ns for reading in readings)
    wall = median(reading.wall_ns for reading in readings)
    if events >= HIDDEN_SHARE * wall:
        return ""
    return (
        f"device events saw {events / wall:.0%} of the wall time: work ran on another stream, "
        "or the host is the limit; the wall median is the one to believe"
    )


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
    session = Session(clock, call)
    session.size_block()
    most = max(min_samples, max_samples)
    warm = session.warm_up(warmup_ns, most, report)
    session.sample(warm, 1e9 * budget_s, min_samples, most, report)
    return _latency(session, warm, min_samples)


def _latency(session: Session, warm: int, least: int) -> Latency:
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
