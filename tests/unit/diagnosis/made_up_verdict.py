"""What a verdict is drawn from, made up: times, work, causes of idling, a capture."""

from collections.abc import Mapping
from typing import Any

from ridgeline.diagnosis import limit as limits
from ridgeline.diagnosis.shares import Observed
from ridgeline.records.facts import Trust
from ridgeline.records.run import Capture, DeviceSeen, LoaderSeen, Phase
from ridgeline.records.run_summary import PhaseTime, StepTimes
from ridgeline.records.sites import LateRank
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import (
    CategoryRow,
    Cause,
    DeviceTime,
    Idle,
    IdleCause,
    Launch,
    Place,
    TraceStudy,
    Window,
)
from ridgeline.records.verdict import Bound, Verdict

MS = 1_000_000


def limit(times: StepTimes, late: LateRank | None = None, **observed: Any) -> Verdict:
    return limits.limit(Observed(times=times, **observed), late)


def codes(verdict: Verdict) -> list[str]:
    """Return the codes of the doubts."""
    return [doubt.code for doubt in verdict.trust.doubts]


def times(shares: Mapping[Phase, float], *, gpu: bool = True, ms: float = 100.0) -> StepTimes:
    clock = "device" if gpu else "host"
    return StepTimes(
        median_ms=ms, ci=(ms * 0.98, ms * 1.02), mean_ms=ms, steps=40, counted=46, clock=clock,
        phases=tuple(
            PhaseTime(phase=p, ms=s * ms, ci=(s * ms, s * ms), share=s, clock=clock)
            for p, s in shares.items()
        ),
    )  # fmt: skip


def work(
    busy: float, *, gpu: bool = True, compute: float | None = 0.9, memory: float | None = 0.1,
    ms: float = 100.0, copy: float = 0.0, talk: float = 0.0, short: float = 0.0,
    attained: float | None = 0.6, operators: float = 100.0,
) -> StepWork:  # fmt: skip
    return StepWork(
        device="cuda" if gpu else "cpu", steps=3, step_ms=ms, flops=1e12, all_flops=1e12,
        skipped_flops=0, bytes=1e9, dtype="float32", coverage=0.95, operator_ms=busy * ms,
        op_share=busy, copy_share=copy, communication_share=talk, compute_share=compute,
        memory_share=memory, memory_attained=attained, operators=operators, short_share=short,
    )  # fmt: skip


def study(
    causes: Mapping[Cause, float], *, ms: float = 100.0, empty: float = 0.1,
    categories: tuple[CategoryRow, ...] = (), trust: Trust | None = None,
) -> TraceStudy:  # fmt: skip
    total = sum(causes.values())
    window = Window(start_ns=0, end_ns=round(3 * ms * MS), basis="steps 0-2", steps=3)
    idle = Idle(
        total_ns=round(3 * ms * MS * total), trust=trust or Trust(),
        causes=tuple(
            IdleCause(
                cause=cause, ns=round(3 * ms * MS * share), share=share / total, gaps=9,
                places=(Place(file="train.py", line=63, function="main"),),
            )
            for cause, share in sorted(causes.items(), key=lambda c: -c[1])
        ),
    )  # fmt: skip
    return TraceStudy(
        files=("t",), events=9, label="t", window=window, idle=idle, categories=categories,
        devices=(DeviceTime(device=0, window=window, busy_ns=1),), launch=Launch(empty_queue=empty),
    )  # fmt: skip


def capture(*, gpu: bool = True, workers: int = 0, loader: bool = True) -> Capture:
    return Capture(
        stepping="optimizer", steps=46, device=DeviceSeen(kind="cuda" if gpu else "cpu"),
        loaders=(LoaderSeen(batches=46, workers=workers, place="data.py:41"),) if loader else (),
    )  # fmt: skip


def bound(verdict: Verdict) -> Bound:
    assert len(verdict.numbers) == 2 or verdict.bound == "unknown"
    return verdict.bound
