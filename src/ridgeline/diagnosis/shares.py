"""A step's time by what holds it up: six shares that add up to 1.

Lengths come from untraced steps, reasons from traced ones. Tracing slows the host (17 % of a step
was measured on an H200, far more in small operators) but not the device: how long a step is and how
long it waits for data is taken from the light window, how long the device works from the trace, and
the idle rest is divided in the proportions of the trace's causes.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.run import Capture, Phase, ThreadTime, feeding
from ridgeline.records.run_summary import PhaseTime, StepTimes, Telemetered
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


MAX_OWN_CORES_SHARE = 0.75
"""A program that uses less than this share of the machine's processors does not compete with
itself."""
MIN_SHARE = 0.05
"""Preemption below this share of the step is ignored: housekeeping takes as much on any machine."""


class Preemption(Struct, frozen=True, kw_only=True):
    """How much time the training thread lost to other processes."""

    light: float = 0.0
    """Share of the light windows in which the training thread was ready to run while other
    processes ran."""
    traced: float = 0.0
    """The same share of the traced window."""
    traced_running: float = 0.0
    """The same time in the traced window, as a share of the time in which the training thread was
    running or ready to run."""
    runnable: float = 1.0
    """Share of the light windows in which the training thread was running or ready to run."""


def preemption(capture: Capture | None, seen: Telemetered) -> Preemption | None:
    """Return what the training thread lost to other processes. Return None if the kernel kept no
    account, or if it is not known which processes held the processors."""
    light = capture.light_time if capture is not None else None
    if capture is None or light is None or not light.wall_ns:
        return None
    part = _taken_by_others(light, seen)
    if part is None:
        return None
    traced = capture.traced_time or light
    ready = traced.processor_ns + traced.queued_ns
    return Preemption(
        light=part * light.queued_share,
        traced=part * traced.queued_share,
        traced_running=part * traced.queued_ns / ready if ready else 0.0,
        runnable=min(light.processor_share + light.queued_share, 1.0),
    )


def own_times(times: StepTimes, taken: Preemption, capture: Capture | None) -> StepTimes:
    """Return the step times without the time that other processes took. Each phase is shortened in
    proportion to the time it was running or ready to run: a sleep does not take longer on a crowded
    machine."""
    if taken.light < MIN_SHARE or not times.mean_ms:
        return times
    left = times.mean_ms * (1 - taken.light)
    ready = _ready_ms(times, taken, capture)
    lost = times.mean_ms * taken.light / max(sum(ready.values()), 1e-9)
    own = [max(phase.ms - lost * ready[phase.phase], 0.0) for phase in times.phases]
    # The account covers whole windows, the phases cover steady steps: scale them to add up.
    fits = left / max(sum(own), 1e-9)
    return replace(
        times,
        mean_ms=left,
        median_ms=min(times.median_ms or left, left),
        phases=tuple(
            replace(phase, ms=ms * fits, share=ms * fits / left)
            for phase, ms in zip(times.phases, own, strict=True)
        ),
    )


def own_work(work: StepWork, taken: Preemption) -> StepWork:
    """Return the work of the traced step without the time that other processes took."""
    if taken.traced < MIN_SHARE:
        return work
    whole, running = 1 - min(taken.traced, 0.99), 1 - min(taken.traced_running, 0.99)
    return replace(
        work,
        step_ms=work.step_ms * whole,
        operator_ms=work.operator_ms * running,
        op_share=min(work.op_share * running / whole, 1.0),
        input_share=min(work.input_share / whole, 1.0),
        communication_share=min(work.communication_share / whole, 1.0),
        memory_attained=_faster(work.memory_attained, running),
        compute_attained=_faster(work.compute_attained, running),
    )


def _taken_by_others(light: ThreadTime, seen: Telemetered) -> float | None:
    """Return the share of the time in the run queue for which other processes are to blame, and not
    the program's own threads and workers. Return None if it is not known."""
    if seen.other_cores is None:
        own = (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)
        # The program was too short for a sample of the whole machine. If it left processors free
        # and still waited for one, other processes held them.
        return (
            1.0
            if seen.program_cores is not None and own < MAX_OWN_CORES_SHARE * seen.cores
            else None
        )
    beside = max((seen.program_cores or 0.0) - light.processor_share, 0.0)
    rivals = seen.other_cores + beside + (seen.worker_cores or 0.0)
    return seen.other_cores / rivals if rivals else 0.0


def _ready_ms(times: StepTimes, taken: Preemption, capture: Capture | None) -> dict[str, float]:
    """Return for each phase the milliseconds in which the thread was running or ready to run. For
    the input, the loader's own account tells. The training phases are taken to work all the time.
    The phase "other" gets the time that these leave of the thread's account."""
    loaders = capture.loaders if capture is not None else ()
    worked = feeding(loaders).worked
    light = capture.light_time if capture is not None else None
    if worked is not None and light is not None and light.processor_ns:
        worked = min(worked * (1 + light.queued_ns / light.processor_ns), 1.0)
    ready = {one.phase: one.ms * _ready_part(one, worked) for one in times.phases}
    if "other" in ready:
        told = sum(ms for phase, ms in ready.items() if phase != "other")
        left = taken.runnable * (times.mean_ms or 0.0) - told
        ready["other"] = min(max(left, 0.0), ready["other"])
    return {str(phase): ms for phase, ms in ready.items()}


def _ready_part(phase: PhaseTime, worked: float | None) -> float:
    return worked if phase.phase == "input" and worked is not None else 1.0


def _faster(attained: float | None, running: float) -> float | None:
    return None if attained is None else min(attained / running, 1.0)
