"""A step's time by what holds it up: six shares that add up to 1.

Lengths come from untraced steps, reasons from traced ones. Tracing slows the host (17 % of a step
was measured on an H200, far more in small operators) but not the device: how long a step is and how
long it waits for data is taken from the light window, how long the device works from the trace, and
the idle rest is divided in the proportions of the trace's causes.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.run import Phase
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Cause, IdleCause, TraceStudy

Wait = Literal["input", "transfer", "overhead", "communication"]
Kind = Literal["input", "transfer", "overhead", "communication", "compute", "memory"]

_TO: dict[Cause, Kind] = {
    "input": "input",
    "transfer": "transfer",
    "collective wait": "communication",
}
"""Every other cause of idling is overhead: the device waits for the host."""
SMALL_MS = 0.1
"""Mean operator below which a low bandwidth means that starting operators takes the time."""
STREAMING = 0.25
"""Of the ceiling: what an operator that does wait for memory reaches at least."""
MULTIPLYING = 0.1
"""Of the peak: likewise, for products."""
WAITING = 0.1
"""Share of the step in the input below which it cannot be what makes steps uneven."""
TOLD = 0.5
"""Of operator time: a roofline of less (3 % in a replayed graph) does not speak for the rest."""
BACKWARD = 2.0
"""Times the forward: a product's backward is two products."""
MIN_DOUBTED_PREEMPTION_SHARE = 0.25
"""If other processes took this share of the step or more, the rest may not be what an idle machine
would show, and slow operators need no other explanation."""
_PRODUCTS = ("matmul", "convolution", "attention")


class Shares(Struct, frozen=True, kw_only=True):
    of: dict[Kind, float]
    basis: Literal["trace", "phases"] = "trace"
    split: Literal["roofline", "category", "guess"] = "roofline"
    """How compute and memory were told apart: by ceilings, by the kind of operator, not at all."""
    preempted: float = 0.0
    """Share of the step in which other processes held the processors. The six shares add up to the
    rest."""

    @property
    def busy(self) -> float:
        return self.of["compute"] + self.of["memory"]

    @property
    def undisturbed(self) -> dict[Kind, float]:
        """The six shares, as shares of the step without the time that other processes took: they
        add up to 1. Bounds are computed from these, because work that goes also takes its part of
        the preemption with it."""
        left = max(1 - self.preempted, 1e-9)
        return {kind: share / left for kind, share in self.of.items()}


def gpu_shares(times: StepTimes, work: StepWork, study: TraceStudy, loader: bool) -> Shares:
    """`loader`: the program has a DataLoader, so the light window knows its waits."""
    scale = work.step_ms / times.mean_ms if times.mean_ms else 1.0
    busy = min(work.op_share * scale, 1.0)
    copying, exchanging = _within(busy, work.copy_share * scale, work.communication_share * scale)
    idle = 1.0 - busy
    shares: dict[Kind, float] = dict.fromkeys(_kinds(), 0.0)
    causes = [c for c in study.idle.causes if c.ns > 0]
    if loader and times.clock == "device":
        shares["input"] = min(share_of(times, "input"), idle)
        causes = [c for c in causes if c.cause != "input"]
    _divide(shares, idle - shares["input"], causes)
    if loader and times.clock == "host":  # tracing slows a loader in the main process
        most = share_of(times, "input")
        shares["overhead"] += max(shares["input"] - most, 0.0)
        shares["input"] = min(shares["input"], most)
    shares["transfer"] += copying
    shares["communication"] += exchanging
    part, how = _compute_part(work, study)
    rest = max(busy - copying - exchanging, 0.0)
    shares["compute"], shares["memory"] = rest * part, rest * (1 - part)
    return Shares(of=shares, split=how)


def cpu_shares(times: StepTimes, work: StepWork, study: TraceStudy | None) -> Shares:
    """On a CPU an operator shorter than 10 µs is mostly its own start: overhead, not work. So is
    most of one that moves its bytes at a fraction of the memory's rate (`_idling`)."""
    scale = work.step_ms / _undisturbed_ms(times) if times.mean_ms else 1.0
    shares: dict[Kind, float] = dict.fromkeys(_kinds(), 0.0)
    shares["input"] = share_of(times, "input") or min(work.input_share * scale, 1.0)
    left = max(1.0 - shares["input"], 0.0)
    # Tracing slows what a rank waits for too: no more than untraced steps leave, if traced ones
    # do not show more.
    room = max(exchange_room(times), work.communication_share)
    shares["communication"] = min(work.communication_share * scale, room, left)
    left -= shares["communication"]
    working = min(work.op_share * scale, left, _room(times, work)) * (1 - work.short_share)
    part, how = _compute_part(work, study)
    shares["compute"], shares["memory"] = working * part, working * (1 - part)
    # Arithmetic may be slow for its shapes, however large; what waits for memory keeps it busy.
    shares["memory"] *= 1 - _idling(work.memory_attained, STREAMING)
    if small(work):
        shares["compute"] *= 1 - _idling(work.compute_attained, MULTIPLYING)
    shares["overhead"] = left - shares["compute"] - shares["memory"]
    return Shares(of=shares, split=how)


def phase_shares(times: StepTimes, utilisation: float | None) -> Shares:
    """Without a trace: the light window's phases, and on a GPU how much it was in use. What works
    is taken for arithmetic, but for the optimizer, which moves memory."""
    shares: dict[Kind, float] = dict.fromkeys(_kinds(), 0.0)
    shares["input"], shares["transfer"] = share_of(times, "input"), share_of(times, "transfer")
    shares["overhead"] = share_of(times, "other")
    shares["memory"] = share_of(times, "optimizer")
    phases: tuple[Phase, ...] = ("forward", "backward", "evaluation")
    shares["compute"] = sum(share_of(times, phase) for phase in phases)
    working = shares["compute"] + shares["memory"]
    if utilisation is not None and times.clock == "device" and working > utilisation:
        kept = utilisation / working
        shares["overhead"] += working - utilisation
        shares["compute"] *= kept
        shares["memory"] *= kept
    return Shares(of=shares, basis="phases", split="guess")


def exchange_room(times: StepTimes) -> float:
    """On a CPU, of the untraced step: what a model's own phases leave for collectives. Those run in
    the backward and between phases; a backward computes for about twice as long as the forward."""
    model: tuple[Phase, ...] = ("input", "forward", "optimizer", "evaluation")
    own = sum(share_of(times, phase) for phase in model)
    forward = share_of(times, "forward")
    return max(1.0 - own - min(share_of(times, "backward"), BACKWARD * forward), 0.0)


def kind_of(cause: Cause) -> Kind:
    """Which share the device's idle time of a cause is counted in."""
    return _TO.get(cause, "overhead")


def overhead_causes(study: TraceStudy) -> tuple[IdleCause, ...]:
    """The causes that count as overhead, the largest first."""
    return tuple(c for c in study.idle.causes if c.cause not in _TO and c.ns > 0)


def _undisturbed_ms(times: StepTimes) -> float:
    """The median where steps are uneven for another reason than their input: on a busy machine
    they stall for a scheduler's slice of 4 ms, and that is neither work nor overhead of theirs."""
    mean, median = times.mean_ms or 1.0, times.median_ms or 1.0
    return median if share_of(times, "input") < WAITING else mean


def heavily_preempted(shares: Shares) -> bool:
    return shares.preempted >= MIN_DOUBTED_PREEMPTION_SHARE


def small(work: StepWork) -> bool:
    return bool(work.operators) and work.operator_ms / work.operators < SMALL_MS


def unexplained(work: StepWork) -> bool:
    """Large operators below the ridge, yet far from the memory's rate: no start explains them."""
    slow = work.memory_attained is not None and work.memory_attained < STREAMING
    return slow and not small(work) and (work.memory_share or 0.0) >= TOLD


def _room(times: StepTimes, work: StepWork) -> float:
    """What untraced steps leave for operators: the model's phases, and the rest as far as
    operators filled the traced step. A step that sleeps nine tenths does so untraced too."""
    phases: tuple[Phase, ...] = ("forward", "backward", "optimizer", "evaluation")
    model = sum(share_of(times, phase) for phase in phases)
    # Without a model's phases the operators are all in the rest.
    return model + share_of(times, "other") * min(work.op_share, 1.0) if model else 1.0


def _idling(attained: float | None, least: float) -> float:
    """How much of operators' time is neither memory's nor arithmetic's: `_foreach_add_` over 40
    small tensors takes 60 µs at 6 % of the bandwidth, though all of it lies in the cache; a
    product of 16 × 64 by 64 × 64 takes 15 µs at 3 % of the peak."""
    return max(1 - attained / least, 0.0) if attained is not None else 0.0


def _kinds() -> tuple[Kind, ...]:
    return ("input", "transfer", "overhead", "communication", "compute", "memory")


def _within(whole: float, one: float, other: float) -> tuple[float, float]:
    fits = min(whole / (one + other), 1.0) if one + other else 1.0
    return one * fits, other * fits


def _divide(shares: dict[Kind, float], idle: float, causes: list[IdleCause]) -> None:
    total = sum(c.ns for c in causes)
    if not total:
        shares["overhead"] += max(idle, 0.0)
        return
    for cause in causes:
        shares[_TO.get(cause.cause, "overhead")] += max(idle, 0.0) * cause.ns / total


def _compute_part(
    work: StepWork, study: TraceStudy | None
) -> tuple[float, Literal["roofline", "category", "guess"]]:
    """How much of the working time is above the ridge."""
    if work.compute_share is not None and work.memory_share is not None:
        told = work.compute_share + work.memory_share
        if told >= TOLD:
            return work.compute_share / told, "roofline"
    if study is None:
        return 0.5, "guess"
    products, rest = _by_category(study)
    return (products / (products + rest), "category") if products + rest else (0.5, "guess")


def _by_category(study: TraceStudy) -> tuple[float, float]:
    """Time in matrix products, convolutions and attention, and in all else that computes."""
    if study.categories:
        kinds = [(c.category, c.device_ns) for c in study.categories]
    else:
        kinds = [(row.category, row.host_self_ns) for row in study.ops]
    products = sum(ns for kind, ns in kinds if kind in _PRODUCTS)
    return products, sum(ns for kind, ns in kinds if kind not in (*_PRODUCTS, "communication"))
