"""Timing: one call alone (`time_calls`), or several variants interleaved in rounds (`Rounds`).

One call: the block is sized to the clock, warmed up to steady state and sampled.

Rounds: every variant runs once a round, in an order shuffled anew for each round. Interleaving lets
drift and stalls of the machine hit all variants alike; shuffling keeps a variant from gaining by
its place. Timing one variant fully and then the other called identical code different in 41 % of
runs (Welch's test, a busy 2-core host); rounds did so in 5 %.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import numpy as np
from msgspec import Struct

from ridgeline.measure.clock import BudgetEnded, Clock, Reading, clock_for
from ridgeline.records.latency import Latency
from ridgeline.statistics.samples import lag1_correlation, steady_start, summarize

Progress = Callable[[str, float], None]
"""A function that is called with "warming up" or "sampling" and the share done, from 0 to 1."""

SLOW_CALL_NS = 30e9
SLOW_CALL_SAMPLES = 3
"""A call that takes longer than `SLOW_CALL_NS` (30 s) is sampled three times only. More samples
would take minutes and hardly change the median."""

_FIRST_CHECK_SAMPLES = 8  # the first check for steady state; the next ones at each doubling
_MAX_BLOCK_CALLS = 1 << 20  # an empty call takes 30 ns, so even that needs only 700 calls for 20 µs


class Session:
    """All readings of one call, in the order taken."""

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
        """Time one block and return its whole duration."""
        reading = self.clock.time(self.call, self.calls, self.before)
        self.readings.append(reading)
        self.per_call_ns.append(reading.total_ns / self.calls)
        return reading.total_ns

    def size_block(self) -> None:
        """Enlarge the block until the clock can time it. The very first call does not count: it may
        include a compilation."""
        self.read()
        self.read()
        while self.grow(1):
            self.read()

    def grow(self, last_readings: int) -> bool:
        """Enlarge the block if each of the last readings was too short for the clock. Return
        whether the block has grown."""
        longest = max(reading.total_ns for reading in self.readings[-last_readings:])
        if longest >= self.shortest_ns or self.calls >= _MAX_BLOCK_CALLS:
            return False
        wanted = self.shortest_ns / max(self.per_call_ns[-1], 1.0)
        self.calls = min(max(2 * self.calls, int(wanted) + 1), _MAX_BLOCK_CALLS)
        return True

    def warm_up(self, limit_ns: float, max_samples: int, report: Progress) -> int:
        """Take readings until the samples are steady, for at least a tenth of the limit (a device
        needs time to raise its clocks) and at most the limit. Return how many readings were
        warm-up."""
        if self.readings[-1].wall_ns > limit_ns:
            return len(self.readings) - 1  # a slow call has no time for more than one warm-up call
        start, first = self.clock.now_ns(), len(self.readings)
        next_check = _FIRST_CHECK_SAMPLES
        while (elapsed := self.clock.now_ns() - start) + self.readings[-1].wall_ns <= limit_ns:
            report("warming up", min(elapsed / limit_ns, 1.0))
            self.read()
            # The block may have been sized by calls that were still slow: on an H200 the second
            # x + 1 took 89 µs and the fourth 9 µs.
            if self.grow(3):
                first = len(self.readings)
                continue
            taken = len(self.readings) - first
            if taken >= max_samples:
                break
            if taken >= next_check and elapsed >= limit_ns / 10:
                next_check *= 2
                if steady_start(self.per_call_ns[first:]) is not None:
                    break
        return len(self.readings)

    def sample(
        self, first: int, limit_ns: float, min_samples: int, max_samples: int, report: Progress
    ) -> None:
        """Take samples until the limit or `max_samples`, counted from reading `first`. Once there
        are `min_samples`, a sample that would end beyond the limit is not begun."""
        start = self.clock.now_ns()
        while (taken := len(self.readings) - first) < max_samples:
            elapsed = self.clock.now_ns() - start
            if taken >= min_samples and elapsed + self.readings[-1].wall_ns > limit_ns:
                return
            if SLOW_CALL_SAMPLES <= taken < min_samples and self._is_slow(first):
                return
            done = taken / min_samples
            if taken >= min_samples:
                done = max(elapsed / limit_ns, taken / max_samples)
            report("sampling", min(done, 1.0))
            self.read()

    def _is_slow(self, first: int) -> bool:
        return median(self.per_call_ns[first:]) > SLOW_CALL_NS


MAX_IQR_SHARE = 0.25
"""A larger interquartile range, as a share of the median, is warned about. It is the threshold of
the strongest warning of torch.utils.benchmark."""
MIN_PROCESSOR_SHARE = 0.7
"""Less processor time than this share of wall time means that the process was waiting. One busy
thread uses 0.97 or more on a quiet host, and each further thread adds to that."""
MIN_EVENT_SHARE = 0.5
"""Device events that cover less than this share of wall time have missed work."""
MAX_CORRELATION = 0.3
"""Above this lag-1 correlation r the interval of the median is too narrow by a quarter or more (by
√((1 + r) / (1 - r)))."""
MIN_CORRELATED_SAMPLES = 30
"""The correlation of fewer samples is left to chance, and is not looked at."""


def doubts(
    samples: Sequence[float], readings: Sequence[Reading], *, steady: bool, min_samples: int
) -> tuple[str, ...]:
    """Return the warnings to be shown beside a median."""
    warnings = (
        _few(samples, min_samples),
        _unsteady(steady, len(samples)),
        _spread(samples),
        _correlated(samples),
        _busy_host(readings),
        _hidden_work(readings),
    )
    return tuple(warning for warning in warnings if warning)


def _few(samples: Sequence[float], min_samples: int) -> str:
    if len(samples) >= min_samples:
        return ""
    call_s = median(samples) / 1e9
    return f"one call takes {call_s:.0f} s, so only {len(samples)} samples were taken"


def _unsteady(steady: bool, count: int) -> str:
    if steady:
        return ""
    return f"no steady state in {count} samples: the timings still change; allow more time"


def _spread(samples: Sequence[float]) -> str:
    summary = summarize(samples)
    share = summary.iqr_ns / summary.median_ns if summary.median_ns else 0.0
    if share <= MAX_IQR_SHARE:
        return ""
    return f"the middle half of the samples spreads over {share:.0%} of the median"


def _correlated(samples: Sequence[float]) -> str:
    if len(samples) < MIN_CORRELATED_SAMPLES:
        return ""
    correlation = lag1_correlation(samples)
    if correlation <= MAX_CORRELATION:
        return ""
    return (
        f"neighbouring samples resemble each other (correlation {correlation:.2f}): "
        "the interval of the median is too narrow"
    )


def _busy_host(readings: Sequence[Reading]) -> str:
    if any(reading.issue_ns is not None for reading in readings):
        return ""  # the host waits for its device, which says nothing about other programs
    wall = sum(reading.wall_ns for reading in readings)
    share = sum(reading.cpu_ns for reading in readings) / wall if wall else 1.0
    if share >= MIN_PROCESSOR_SHARE:
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
    if events >= MIN_EVENT_SHARE * wall:
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

    Sampling ends after `budget_s` or `max_samples`, whichever comes first, but not before
    `min_samples`. Warming up takes at most `warmup_s` (the default is half the budget) and at least
    one call. An exception that `call` raises is passed on unchanged.
    """
    clock = clock or clock_for(device)
    warmup_ns = 1e9 * (budget_s / 2 if warmup_s is None else warmup_s)
    report = on_progress or (lambda phase, share: None)
    session = Session(clock, call)
    session.size_block()
    max_samples = max(min_samples, max_samples)
    warm = session.warm_up(warmup_ns, max_samples, report)
    session.sample(warm, 1e9 * budget_s, min_samples, max_samples, report)
    return _latency(session, warm, min_samples)


def _latency(session: Session, warm: int, min_samples: int) -> Latency:
    samples = session.per_call_ns[warm:]
    start = steady_start(samples)
    # A change of level in the first half was warm-up that outlasted its limit. After a later change
    # nobody can tell which level is the true one: all samples stay, and are called not steady.
    late = start is not None and start > len(samples) // 2
    if start and not late and len(samples) - start >= min_samples:
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
        warnings=doubts(samples, readings, steady=steady, min_samples=min_samples),
    )


Stopped = Literal["decided", "budget", "all rounds", "interrupted"]


class Block(Struct, frozen=True):
    """One variant in one round."""

    reading: Reading
    calls: int
    throttled: str = ""
    """Why the device lowered its clocks during the block; "" if it did not."""


class Round(Struct, frozen=True):
    blocks: tuple[Block, ...]
    """One for each variant."""
    positions: tuple[int, ...]
    """The place of each variant in the round, from 0."""
    process: int
    """The number of the set of processes that the round ran in."""

    @property
    def throttled(self) -> str:
        """Why the device lowered its clocks during the round; "" if it did not."""
        return next((block.throttled for block in self.blocks if block.throttled), "")


Shot = Callable[[], Block]
Decide = Callable[[Sequence[Round]], bool]


class Rounds:
    """The rounds so far. `run` may be called again, with another set of processes."""

    def __init__(self, seed: int, now_ns: Callable[[], int]) -> None:
        self.taken: list[Round] = []
        self.elapsed_ns = 0
        self._random = np.random.default_rng(seed)
        self._now_ns = now_ns

    def run(
        self,
        shots: Sequence[Shot],
        *,
        until: Sequence[int],
        limit_ns: float,
        decide: Decide,
        process: int = 0,
        on_round: Callable[[int], None] = lambda taken: None,
    ) -> Stopped:
        """Take rounds up to the last number in `until`, or until the time limit. At each number in
        `until`, `decide` is called and may end the run. A round that would end beyond the limit is
        not begun. Rounds taken before Ctrl-C are kept."""
        start, begun_with = self._now_ns(), len(self.taken)
        spent = self.elapsed_ns
        try:
            while len(self.taken) < until[-1]:
                elapsed = self._now_ns() - start
                # The next round is taken to last as long as the mean one. By the longest one, a
                # single stall would end the run far from its limit.
                if elapsed + elapsed / max(len(self.taken) - begun_with, 1) > limit_ns:
                    return "budget"
                self.taken.append(self._round(shots, process))
                self.elapsed_ns = spent + self._now_ns() - start
                on_round(len(self.taken))
                if len(self.taken) in until and decide(self.taken):
                    return "decided"
        except KeyboardInterrupt:
            return "interrupted"
        except BudgetEnded:  # the round that was under way is lost
            return "budget"
        return "all rounds"

    def _round(self, shots: Sequence[Shot], process: int) -> Round:
        order = self._random.permutation(len(shots))
        blocks: dict[int, Block] = {}
        for variant in order:
            blocks[int(variant)] = shots[int(variant)]()
        positions = np.argsort(order)
        return Round(
            tuple(blocks[variant] for variant in range(len(shots))),
            tuple(int(place) for place in positions),
            process,
        )
