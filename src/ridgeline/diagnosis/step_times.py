"""How long a steady step takes, where its time goes, and the rates that follow from it."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline import units
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.run import Phase, Step
from ridgeline.records.run_summary import Efficiency, PhaseTime, RegionTime, StepTimes, Throughput
from ridgeline.records.step_work import StepWork, Uncounted
from ridgeline.records.trust import Trust
from ridgeline.statistics.samples import fold, lag1_correlation, median_ranks, steady_start, trend
from ridgeline.statistics.significance import critical_t

Floats = NDArray[np.float64]
Interval = tuple[float, float]

FEWEST = 6
"""Samples below which even their whole range holds the median in under 95 % of sets."""


def worth(series: Floats) -> float:
    """How many independent samples the series is worth, at least 1."""
    correlation = lag1_correlation(series)
    return max(series.size * (1 - correlation) / (1 + correlation), 1.0)


def median_interval(series: Floats) -> Interval:
    """Order statistics, so a stall of any size is one sample; the range where samples are few."""
    count = int(worth(series))
    ranks = median_ranks(count)
    if ranks is None:
        return float(series.min()), float(series.max())
    low, high = np.quantile(series, [ranks[0] / (count - 1), ranks[1] / (count - 1)])
    return float(low), float(high)


def mean_interval(series: Floats) -> Interval:
    """By Student's t; never below zero, as no time is. One sample says nothing but itself."""
    mean = float(series.mean())
    if series.size < 2:
        return mean, mean
    carried = max(worth(series), 2.0)
    reach = critical_t(0.05, carried - 1) * float(series.std(ddof=1)) / carried**0.5
    return max(mean - reach, 0.0), mean + reach


FAR = 2.0
"""Times the median step from which a step can be a pause."""
CREEP = 0.2
"""From the first to the last third of the steps: more is no steady state, whatever tests say."""
MOST_PAUSES = 0.1
"""Share of the steps that may be pauses; more of them are how the program runs."""


class SteadySteps(Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...] = ()
    phase_steps: tuple[Step, ...] = ()
    """Detailed steps, from which the phases are taken: those of `steps` that are detailed, else the
    last detailed ones before them. Most short steps are only timed."""
    device_clock: bool = False
    """Whether `device_ns` is known for all of them, and is what to use."""
    warmup_steps: int = 0
    """Those before the first steady one."""
    compile_steps: tuple[int, ...] = ()
    pauses: tuple[Step, ...] = ()
    trust: Trust = Trust()

    def ns(self) -> list[float]:
        return [duration(step, self.device_clock) for step in self.steps]

    def pause_share(self) -> float:
        """Of all time in the steps and the pauses between them."""
        paused = sum(duration(step, self.device_clock) for step in self.pauses)
        whole = sum(self.ns()) + paused
        return paused / whole if whole else 0.0


def duration(step: Step, device_clock: bool) -> float:
    return float(step.device_ns if device_clock and step.device_ns is not None else step.dur_ns)


def steady_steps(steps: Sequence[Step]) -> SteadySteps:
    ordered = sorted((s for s in steps if s.dur_ns > 0), key=lambda s: s.index)
    compiling = tuple(s.index for s in ordered if s.compile_ns > 0)
    candidates, doubts = _candidates([s for s in ordered if s.compile_ns <= 0])
    if not candidates:
        why = "no step was seen" if not ordered else _only(len(ordered), "all of them compiling")
        return SteadySteps(
            compile_steps=compiling,
            warmup_steps=len(ordered),
            trust=Trust(confidence="unreliable", why=why),
        )
    on_device = _on_device(candidates)
    if on_device:
        candidates = [s for s in candidates if s.device_ns]
    start, unsteady = _start([duration(s, on_device) for s in candidates])
    doubts += [unsteady] if unsteady else []
    kept, pauses = _without_pauses(candidates[start:], on_device)
    if len(kept) < FEWEST and not doubts:
        doubts.append(_only(len(kept), "too few for an interval", "steady step"))
    return SteadySteps(
        steps=tuple(kept),
        phase_steps=_phase_steps(kept, ordered, on_device),
        device_clock=on_device,
        warmup_steps=sum(1 for s in ordered if s.index < kept[0].index),
        compile_steps=compiling,
        pauses=tuple(pauses),
        trust=_trust(doubts, pauses, len(kept)),
    )


def _phase_steps(kept: Sequence[Step], every: Sequence[Step], device: bool) -> tuple[Step, ...]:
    """Return detailed steps, which tell where the time of a steady step goes. If the steady steps
    were only timed, return the last detailed ones of the light window; if it has none, the last
    detailed ones of all windows."""
    close = [s for s in kept if s.detailed]
    if close:
        return tuple(close)
    for looked in ([s for s in every if s.window == "light"], every):
        close = [
            s for s in looked if s.detailed and not s.compile_ns and (s.device_ns or not device)
        ]
        if close:
            return tuple(close[-FEWEST:])
    return ()


def _candidates(steps: list[Step]) -> tuple[list[Step], list[str]]:
    """Light steps; where there are none the next best, and why it is only that."""
    light = [s for s in steps if s.window == "light"]
    if light:
        return light, []
    settling = [s for s in steps if s.window == "settle"]
    found = settling or steps
    if len(found) > 1:  # the first step pays for caches, autotuning and lazy start-up
        found = found[1:]
    if not found:
        return [], []
    what = "steps before the timed window" if settling else "steps that were traced or disturbed"
    return found, [f"the program was too short for a timed window: over {len(found)} of its {what}"]


def _on_device(steps: Sequence[Step]) -> bool:
    return 2 * sum(1 for s in steps if s.device_ns) > len(steps)


def _start(series: list[float]) -> tuple[int, str]:
    """The first steady sample, and what is wrong where there is none."""
    if len(series) < 3:
        return 0, ""
    start = steady_start(series)
    if start is not None and not _creeps(np.array(series[start:])):
        return start, ""
    half = len(series) // 2
    early, late = np.median(series[:half] or series), np.median(series[half:])
    moved = units.percent(abs(float(late / early) - 1))
    way = "slower" if late > early else "faster"
    why = f"steps never became steady ({moved} {way} in the second half of the window)"
    return half, why


def _creeps(series: Floats) -> bool:
    """Whether the last third is far from the first and nearly all pairs say so. A smooth curve
    (3 % slower each step) looks to `steady_start` like noise that remembers itself."""
    third = series.size // 3
    if third < 3:
        return False
    moved = abs(float(np.median(series[-third:]) / np.median(series[:third])) - 1)
    folded = fold(series)
    pairs = folded.size * (folded.size - 1) / 2
    return moved > CREEP and abs(trend(folded).rises) > 0.6 * pairs


def _without_pauses(steps: list[Step], device: bool) -> tuple[list[Step], list[Step]]:
    """Steps, and those few that stopped for something other than training or its data."""
    if len(steps) < FEWEST:
        return steps, []
    series = np.array([duration(s, device) for s in steps])
    median = float(np.median(series))
    q1, q3 = np.quantile(series, [0.25, 0.75])
    fence = max(float(q3 + 3 * (q3 - q1)), FAR * median)
    waits = float(np.median([_phase(s, "input", device) for s in steps if s.detailed] or [0.0]))
    far = [(s, float(ns)) for s, ns in zip(steps, series, strict=True) if ns > fence]
    starved = [s for s, ns in far if _phase(s, "input", device) - waits >= (ns - median) / 2]
    # A step that was only timed is taken for what those looked at closely were.
    pauses = [s for s, _ in far if s not in starved and (s.detailed or not starved)]
    if len(pauses) > max(MOST_PAUSES * len(steps), 1):
        return steps, []
    gone = {s.index for s in pauses}
    return [s for s in steps if s.index not in gone], pauses


def _phase(step: Step, phase: Phase, device: bool) -> float:
    return float((step.device if device else step.host).get(phase, 0))


def _trust(doubts: list[str], pauses: Sequence[Step], kept: int) -> Trust:
    said = list(doubts)
    if pauses:
        longest = units.seconds(max(s.dur_ns for s in pauses) / 1e9)
        what = "an evaluation" if _mostly_evaluation(pauses) else "a pause (a checkpoint, a stall)"
        said.append(
            f"{len(pauses)} of {len(pauses) + kept} steps held {what} of up to {longest}: left out"
        )
    return Trust(confidence="doubtful" if doubts else "good", why="; ".join(said))


def _mostly_evaluation(pauses: Sequence[Step]) -> bool:
    return all(2 * s.host.get("evaluation", 0) > s.dur_ns for s in pauses)


def _only(count: int, why: str, noun: str = "step") -> str:
    return f"only {units.plural(count, noun)}, {why}"


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


MOST_REGIONS = 8


def region_times(steps: Sequence[Step]) -> tuple[RegionTime, ...]:
    """Means over all `steps`, also those a region was not entered in: they add up to the step."""
    spent: Counter[str] = Counter()
    for step in steps:
        spent.update(step.regions)
    whole = sum(step.dur_ns for step in steps)
    return tuple(
        RegionTime(name=name, ms=ns / len(steps) / 1e6, share=ns / whole if whole else 0.0)
        for name, ns in sorted(spent.items(), key=lambda held: (-held[1], held[0]))[:MOST_REGIONS]
    )


def throughput(
    times: StepTimes, steps: Sequence[Step], ranks: int = 1, pauses: int = 0
) -> Throughput:
    """`steps`: those the times are over; `pauses`: how many were left out of them. Ranks
    are taken to work on samples of their own, as in data parallelism."""
    ms = rate_ms(times)
    if not ms:
        return Throughput()
    close = [s for s in steps if s.detailed]
    samples, tokens = _known([s.samples for s in close]), _known([s.tokens for s in close])
    paused = None
    if samples and pauses and times.mean_ms and times.pause_share < 1:
        seconds = times.mean_ms * times.steps / 1e3 / (1 - times.pause_share)
        paused = samples * ranks * (times.steps + pauses) / seconds
    return Throughput(
        steps_s=1e3 / ms,
        samples_s=samples * ranks * 1e3 / ms if samples else None,
        tokens_s=tokens * ranks * 1e3 / ms if tokens else None,
        samples_s_with_pauses=paused,
        samples_per_step=samples * ranks if samples else None,
        tokens_per_step=tokens * ranks if tokens else None,
    )


def _known(amounts: Sequence[int]) -> float | None:
    """The mean where most steps tell it: a last, smaller batch counts for what it is."""
    told = [amount for amount in amounts if amount > 0]
    return sum(told) / len(told) if 2 * len(told) > len(amounts) else None


MOST_UNCOUNTED = 5


def efficiency(work: StepWork | None, times: StepTimes, device: Device | None) -> Efficiency:
    if work is None:
        return Efficiency()
    about = Efficiency(
        coverage=work.coverage,
        uncounted=tuple(_said(one) for one in work.uncounted[:MOST_UNCOUNTED]),
    )
    if work.flops <= 0 or work.trust.confidence == "unreliable":
        return about
    ms = rate_ms(times)
    rate = work.flops * 1e3 / ms if ms else None
    ceiling = _ceiling(device, work.dtype)
    share = rate / ceiling.value if rate and ceiling is not None and ceiling.value else None
    state = ceiling.state if ceiling is not None else ""
    if state == "usable" and share is not None and share > MAX_SHARE_OF_CEILING:
        state = "exceeded"
    return Efficiency(
        flops_per_step=work.flops,
        flops_s=rate,
        mfu=share if state == "usable" else None,
        ceiling_flops_s=ceiling.value if ceiling is not None else None,
        ceiling=_named(ceiling) if ceiling is not None else "",
        ceiling_state=state,
        ceiling_dtype=work.dtype if state else "",
        coverage=about.coverage,
        uncounted=about.uncounted,
    )


def _ceiling(device: Device | None, dtype: str) -> Ceiling | None:
    if device is None:
        return None
    return device.ceiling("matmul", dtype) or device.doubtful_ceiling("matmul", dtype)


def _named(ceiling: Ceiling) -> str:
    return f"{ceiling.dtype}, {'datasheet' if ceiling.source == 'datasheet' else 'measured here'}"


def _said(one: Uncounted) -> str:
    calls = units.significant(one.calls)
    return f"{one.op} ({calls} a step, {units.percent(one.share)} of operator time)"
