"""A step's time: its median with an interval, and its phases, which add up to the mean step."""

from collections.abc import Sequence

import numpy as np

from ridgeline.diagnosis.intervals import Floats, mean_interval, median_interval
from ridgeline.diagnosis.steady_steps import SteadySteps, duration, steady_steps
from ridgeline.records.run import Phase, Step
from ridgeline.records.run_summary import PhaseTime, StepTimes
from ridgeline.records.trust import Trust

ORDER: tuple[Phase, ...] = (
    "input",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "other",
)
UNEVEN = 1.25
"""Mean over median from which the median step is not what the program's rate comes from."""


def step_times(steps: Sequence[Step], stepping: str, on_gpu: bool | None = None) -> StepTimes:
    """`on_gpu`: whether the span before the first forward is a copy; None: told by the clock."""
    return times_of(steady_steps(steps), len(steps), stepping, on_gpu)


def times_of(
    steady: SteadySteps, counted: int, stepping: str, on_gpu: bool | None = None
) -> StepTimes:
    about = StepTimes(
        counted=counted,
        warmup_steps=steady.warmup_steps,
        compile_steps=steady.compile_steps,
        stepping=stepping,
        trust=steady.trust,
    )
    if not steady.steps:
        return about
    series = np.array(steady.ns()) / 1e6
    copies = steady.device_clock if on_gpu is None else on_gpu
    median, mean = float(np.median(series)), float(series.mean())
    return StepTimes(
        median_ms=median,
        ci=median_interval(series) if series.size > 1 else None,
        mean_ms=mean,
        phases=_phases(steady, series, copies),
        steps=len(steady.steps),
        counted=counted,
        warmup_steps=steady.warmup_steps,
        compile_steps=steady.compile_steps,
        clock="device" if steady.device_clock else "host",
        stepping=stepping,
        pause_share=steady.pause_share(),
        trust=_uneven(steady.trust, median, mean),
    )


def rate_ms(times: StepTimes) -> float | None:
    """The step that rates come from: the median, which stalls do not move; the mean where steps
    are uneven by nature (every eighth waits for a worker), as the median there skips the wait."""
    if times.median_ms is None or times.mean_ms is None:
        return None
    uneven = times.mean_ms > UNEVEN * times.median_ms
    return times.mean_ms if uneven else times.median_ms


def share_of(times: StepTimes, phase: Phase) -> float:
    return next((p.share for p in times.phases if p.phase == phase), 0.0)


def _phases(steady: SteadySteps, series: Floats, copies: bool) -> tuple[PhaseTime, ...]:
    """Return the phases of the mean steady step. If only some steps are detailed, they stand for
    all, and their phases are scaled to the mean step."""
    close = np.array([duration(step, steady.device_clock) for step in steady.phase_steps]) / 1e6
    if not close.any():
        return ()
    columns = _columns(steady, close, copies)
    whole = float(series.mean())
    scale = whole / float(close.mean())
    columns = {phase: column * scale for phase, column in columns.items()}
    return tuple(
        PhaseTime(
            phase=phase,
            ms=float(columns[phase].mean()),
            ci=mean_interval(columns[phase]),
            share=float(columns[phase].mean()) / whole if whole else 0.0,
            clock="device" if steady.device_clock else "host",
        )
        for phase in ORDER
        if phase in columns and columns[phase].any()
    )


def _columns(steady: SteadySteps, close: Floats, copies: bool) -> dict[Phase, Floats]:
    """Return the milliseconds of each phase in each detailed step. Time in no phase is "other"."""
    named = [s.device if steady.device_clock else s.host for s in steady.phase_steps]
    columns: dict[Phase, Floats] = {
        phase: np.array([max(phases.get(phase, 0), 0) for phases in named]) / 1e6
        for phase in ORDER
        if phase != "other" and (phase != "transfer" or copies)
    }
    held = np.sum(list(columns.values()), axis=0)
    # Clocks are read one after the other: phases can pass the step by a microsecond.
    over = np.where(held > close, close / np.maximum(held, 1e-12), 1.0)
    columns = {phase: column * over for phase, column in columns.items()}
    columns["other"] = np.maximum(close - held * over, 0.0)
    return columns


def _uneven(trust: Trust, median: float, mean: float) -> Trust:
    if mean <= UNEVEN * median:
        return trust
    said = f"steps are uneven: the mean is {mean / median:.1f} × the median; rates are by the mean"
    return Trust(confidence=trust.confidence, why="; ".join(x for x in (trust.why, said) if x))
