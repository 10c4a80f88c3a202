"""Which steps the figures are over: the light window's, after warm-up, without compilations.

Steps that stop for something that is not training (a checkpoint, an evaluation) are left out as
long as they are few, and counted: one checkpoint of 5 s among 40 steps of 0.1 s would else be 56 %
of the mean step. A step that waited long for data always stays: with 8 workers that cannot keep up
every eighth step carries the whole wait, and it is the finding, not the noise.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.intervals import FEWEST, Floats
from ridgeline.records.run import Phase, Step
from ridgeline.records.trust import Trust
from ridgeline.statistics.samples import fold, steady_start, trend

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
