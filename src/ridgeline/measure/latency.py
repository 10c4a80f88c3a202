"""How long a call takes, once it is warm.

First the block is sized (a call too short for the clock is timed many at once), then the call is
warmed up until its timings are steady, then it is sampled until the budget is spent. Nothing is
dropped: samples taken before steady state are kept apart, and what is doubtful about the rest is
said in `warnings`.
"""

from collections.abc import Callable
from statistics import median

from ridgeline.measure.clock import Clock, clock_for
from ridgeline.measure.doubts import doubts
from ridgeline.measure.session import Progress, Session
from ridgeline.records.latency import Latency
from ridgeline.statistics.steady import steady_start
from ridgeline.statistics.summary import summarize


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
