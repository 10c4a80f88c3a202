"""A step divided by what holds it up: six shares that add up to 1.

Lengths come from untraced steps, causes from traced ones. Tracing slows the host (by 17 % of a step
on an H200, and by far more in small operators) but not the device. So the light window tells how
long a step is and how long it waits for data, the trace tells how long the device works, and the
idle rest is divided in the proportions of the trace's causes.

On a crowded machine a thread that is ready to run waits for a processor. In a sandbox of two cores
with seven busy processes, 79 % of a step was such waiting, which looks like slow operators or like
waiting for data. The kernel's account of the training thread tells how long it was, so that the
shares are drawn from the rest of the step.
"""

import re
from functools import cached_property
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.run import Capture, Phase, ThreadTime, training_loader
from ridgeline.records.run_summary import (
    Efficiency,
    MemoryUse,
    StepTimes,
    Telemetered,
)
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Cause, IdleCause, TraceStudy, Window
from ridgeline.trace.intervals import clip, union
from ridgeline.trace.links import Links
from ridgeline.trace.places import is_own, place_of
from ridgeline.trace.trace import Trace

Wait = Literal["input", "transfer", "overhead", "communication"]
Kind = Literal["input", "transfer", "overhead", "communication", "compute", "memory"]
WAITS: tuple[Wait, ...] = ("input", "transfer", "overhead", "communication")
KINDS: tuple[Kind, ...] = (*WAITS, "compute", "memory")

_KIND_OF_CAUSE: dict[Cause, Kind] = {
    "input": "input",
    "transfer": "transfer",
    "collective wait": "communication",
}
"""Every other cause of idling is overhead: the device waits for the host."""
SMALL_OPERATOR_MS = 0.1
"""If the mean operator is shorter, a low bandwidth means that starting operators takes the time."""
MIN_STREAMING_SHARE = 0.25
"""An operator that waits for memory reaches at least this share of the bandwidth's ceiling."""
MIN_MULTIPLYING_SHARE = 0.1
"""A matrix product reaches at least this share of the arithmetic's peak."""
MIN_INPUT_SHARE = 0.1
"""With a smaller share of the step, the input cannot be what makes steps uneven."""
MIN_ROOFLINE_COVERAGE = 0.5
"""A roofline of a smaller share of operator time (3 % in a replayed graph) does not speak for the
rest."""
BACKWARD_PER_FORWARD = 2.0
"""A backward computes this many times as long as its forward: the gradient of a product is two
products."""
MIN_DOUBTED_PREEMPTION_SHARE = 0.25
"""If other processes took this share of the step or more, the rest may not be what an idle machine
would show, and slow operators need no other explanation."""
MIN_PREEMPTION_SHARE = 0.05
"""Preemption below this share of the step is ignored: housekeeping takes as much on any machine."""
MAX_OWN_CORES_SHARE = 0.75
"""A program that uses less than this share of the machine's processors does not compete with
itself."""
MIN_SAMPLES = 5
"""Fewer samples of the telemetry do not tell how many processors the program used."""
MAX_OPERATOR_TO_PROCESSOR_TIME = 1.1
"""How many times the processor time the operators' time may be: different clocks measure the two.
"""
_PRODUCTS = ("matmul", "convolution", "attention")
_TRAINING: tuple[Phase, ...] = ("forward", "backward", "optimizer", "evaluation")


class HandFed(Struct, frozen=True, kw_only=True):
    share: float = 0.0
    """The share of the traced window, on the main thread."""
    function: str = ""
    place: str = ""


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

    @property
    def is_heavily_preempted(self) -> bool:
        return self.preempted >= MIN_DOUBTED_PREEMPTION_SHARE


class Observed(Struct, frozen=True, kw_only=True, dict=True):
    """Says what the shares and the verdict of a run are drawn from."""

    times: StepTimes
    memory: MemoryUse = MemoryUse()
    telemetered: Telemetered = Telemetered()
    capture: Capture | None = None
    work: StepWork | None = None
    study: TraceStudy | None = None
    efficiency: Efficiency = Efficiency()
    fed: HandFed = HandFed()

    @property
    def on_gpu(self) -> bool:
        if self.capture is not None and self.capture.stepping:
            return self.capture.device.kind == "cuda"
        return self.times.clock == "device" or (self.work is not None and self.work.device != "cpu")

    @property
    def has_loader(self) -> bool:
        return self.capture is not None and any(one.batches for one in self.capture.loaders)

    @cached_property
    def undisturbed(self) -> "Observed":
        """The same without the time that other processes took from the training thread. On a GPU
        nothing changes: there that time is hidden behind the device's work or part of its waits."""
        taken = None if self.on_gpu else preemption(self.capture, self.telemetered)
        if taken is None:
            return self
        work = own_work(self.work, taken) if self.work is not None else None
        return replace(self, times=own_times(self.times, taken, self.capture), work=work)

    @cached_property
    def shares(self) -> Shares:
        """The step divided into six shares, and the share that other processes took."""
        own = self.undisturbed
        shares = _within_processor_time(own, shares_of_work(own))
        if own.times.mean_ms == self.times.mean_ms or not self.times.mean_ms:
            return shares
        left = (own.times.mean_ms or self.times.mean_ms) / self.times.mean_ms
        return replace(
            shares, of={kind: share * left for kind, share in shares.of.items()}, preempted=1 - left
        )


def shares_of_work(seen: Observed) -> Shares:
    """Return the six shares by the trace if it tells the device's work, else by the phases. Batches
    that a function of the user's own makes are input, where no DataLoader is."""
    utilisation = seen.telemetered.gpu_utilisation if seen.on_gpu else None
    if seen.work is None or not seen.work.operator_ms:
        shares = phase_shares(seen.times, utilisation)
    elif not seen.on_gpu:
        shares = cpu_shares(seen.times, seen.work, seen.study)
    elif seen.study is not None and seen.study.idle.total_ns is not None:
        shares = gpu_shares(seen.times, seen.work, seen.study, seen.has_loader)
    else:
        shares = phase_shares(seen.times, utilisation)
    if seen.has_loader or not seen.fed.share:
        return shares
    # The function's share of a traced step is taken for that of a timed one, because tracing slows
    # all Python alike. On a GPU only what the device waits for counts, hence the bound.
    moved = min(seen.fed.share, shares.of["overhead"])
    of = {**shares.of, "input": shares.of["input"] + moved}
    of["overhead"] -= moved
    return replace(shares, of=of)


def _within_processor_time(seen: Observed, shares: Shares) -> Shares:
    """Return the shares with operators limited to the program's processor time. On a CPU operators
    cannot work for longer than the program had a processor. The rest of their time was waiting (for
    a lock, a file, another process), which counts as overhead."""
    cores = seen.telemetered.program_cores
    if seen.on_gpu or cores is None or seen.telemetered.samples < MIN_SAMPLES:
        return shares
    account = seen.capture.light_time if seen.capture is not None else None
    most = max(cores, account.processor_share if account is not None else 0.0)
    taken = preemption(seen.capture, seen.telemetered)
    most /= 1 - min(taken.light, 0.99) if taken is not None else 1.0
    if shares.busy <= MAX_OPERATOR_TO_PROCESSOR_TIME * most:
        return shares
    kept = most / shares.busy
    of = {**shares.of, "compute": shares.of["compute"] * kept, "memory": shares.of["memory"] * kept}
    of["overhead"] += shares.busy * (1 - kept)
    return replace(shares, of=of)


def gpu_shares(times: StepTimes, work: StepWork, study: TraceStudy, loader: bool) -> Shares:
    """Return the shares on a GPU. With a `loader`, the light window knows its waits."""
    scale = work.step_ms / times.mean_ms if times.mean_ms else 1.0
    busy = min(work.op_share * scale, 1.0)
    copying, exchanging = work.copy_share * scale, work.communication_share * scale
    fits = min(busy / (copying + exchanging), 1.0) if copying + exchanging else 1.0
    copying, exchanging, idle = copying * fits, exchanging * fits, 1.0 - busy
    shares: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    causes = [c for c in study.idle.causes if c.ns > 0]
    if loader and times.clock == "device":
        shares["input"] = min(share_of(times, "input"), idle)
        causes = [c for c in causes if c.cause != "input"]
    rest, total = max(idle - shares["input"], 0.0), sum(c.ns for c in causes)
    for cause in causes:
        shares[kind_of(cause.cause)] += rest * cause.ns / total
    if not total:
        shares["overhead"] += rest
    if loader and times.clock == "host":  # tracing slows a loader in the main process
        most = share_of(times, "input")
        shares["overhead"] += max(shares["input"] - most, 0.0)
        shares["input"] = min(shares["input"], most)
    shares["transfer"] += copying
    shares["communication"] += exchanging
    part, split = _compute_part(work, study)
    working = max(busy - copying - exchanging, 0.0)
    shares["compute"], shares["memory"] = working * part, working * (1 - part)
    return Shares(of=shares, split=split)


def cpu_shares(times: StepTimes, work: StepWork, study: TraceStudy | None) -> Shares:
    """Return the shares on a CPU. An operator shorter than 10 µs is mostly its own start: overhead,
    not work. So is most of one that moves its bytes at a fraction of the memory's rate."""
    scale = work.step_ms / _undisturbed_ms(times) if times.mean_ms else 1.0
    shares: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    shares["input"] = share_of(times, "input") or min(work.input_share * scale, 1.0)
    left = max(1.0 - shares["input"], 0.0)
    # Tracing slows what a rank waits for too: no more than untraced steps leave, if traced ones
    # do not show more.
    room = max(exchange_room(times), work.communication_share)
    shares["communication"] = min(work.communication_share * scale, room, left)
    left -= shares["communication"]
    working = min(work.op_share * scale, left, _room(times, work)) * (1 - work.short_share)
    part, split = _compute_part(work, study)
    shares["compute"], shares["memory"] = working * part, working * (1 - part)
    # Arithmetic may be slow for its shapes, however large; what waits for memory keeps it busy.
    shares["memory"] *= 1 - _start_share(work.memory_attained, MIN_STREAMING_SHARE)
    if _has_small_operators(work):
        shares["compute"] *= 1 - _start_share(work.compute_attained, MIN_MULTIPLYING_SHARE)
    shares["overhead"] = left - shares["compute"] - shares["memory"]
    return Shares(of=shares, split=split)


def phase_shares(times: StepTimes, utilisation: float | None) -> Shares:
    """Return the shares without a trace: by the light window's phases, and on a GPU by how much it
    was in use. Work counts as arithmetic, except the optimizer's, which moves memory."""
    shares: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    shares["input"], shares["transfer"] = share_of(times, "input"), share_of(times, "transfer")
    shares["overhead"] = share_of(times, "other")
    shares["memory"] = share_of(times, "optimizer")
    shares["compute"] = _sum_of(times, "forward", "backward", "evaluation")
    working = shares["compute"] + shares["memory"]
    if utilisation is not None and times.clock == "device" and working > utilisation:
        kept = utilisation / working
        shares["overhead"] += working - utilisation
        shares["compute"] *= kept
        shares["memory"] *= kept
    return Shares(of=shares, basis="phases", split="guess")


def exchange_room(times: StepTimes) -> float:
    """Return the share of an untraced step on a CPU that a model's own phases leave for
    collectives. Collectives run in the backward and between phases."""
    own = _sum_of(times, "input", "forward", "optimizer", "evaluation")
    most = BACKWARD_PER_FORWARD * share_of(times, "forward")
    return max(1.0 - own - min(share_of(times, "backward"), most), 0.0)


def kind_of(cause: Cause) -> Kind:
    """Return the share that the device's idle time of a cause is counted in."""
    return _KIND_OF_CAUSE.get(cause, "overhead")


def overhead_causes(study: TraceStudy) -> tuple[IdleCause, ...]:
    """Return the causes that count as overhead, the largest first."""
    return tuple(c for c in study.idle.causes if kind_of(c.cause) == "overhead" and c.ns > 0)


def largest_cause(study: TraceStudy | None, kind: Kind) -> IdleCause | None:
    """Return the largest cause of the device's idle time that counts as this kind."""
    causes = study.idle.causes if study is not None else ()
    found = [c for c in causes if c.ns > 0 and kind_of(c.cause) == kind]
    return max(found, key=lambda cause: cause.ns, default=None)


def is_slow_without_reason(work: StepWork) -> bool:
    """Return whether large operators below the ridge are far from the memory's rate. Their starts
    do not explain that."""
    slow = work.memory_attained is not None and work.memory_attained < MIN_STREAMING_SHARE
    large = not _has_small_operators(work)
    return slow and large and (work.memory_share or 0.0) >= MIN_ROOFLINE_COVERAGE


def _has_small_operators(work: StepWork) -> bool:
    return bool(work.operators) and work.operator_ms / work.operators < SMALL_OPERATOR_MS


def _sum_of(times: StepTimes, *phases: Phase) -> float:
    return sum(share_of(times, phase) for phase in phases)


def _undisturbed_ms(times: StepTimes) -> float:
    """Return the median step if steps are uneven for another reason than their input, else the
    mean. On a busy machine steps stall for a scheduler's slice of 4 ms, which is neither their work
    nor their overhead."""
    mean, median = times.mean_ms or 1.0, times.median_ms or 1.0
    return median if share_of(times, "input") < MIN_INPUT_SHARE else mean


def _room(times: StepTimes, work: StepWork) -> float:
    """Return the share of untraced steps that can be operators: the model's phases, and the rest as
    far as operators filled the traced step. A step that sleeps nine tenths does so untraced too."""
    model = _sum_of(times, *_TRAINING)
    # Without a model's phases the operators are all in the rest.
    return model + share_of(times, "other") * min(work.op_share, 1.0) if model else 1.0


def _start_share(attained: float | None, least: float) -> float:
    """Return the share of operators' time that is neither memory's nor arithmetic's.
    `_foreach_add_` over 40 small tensors takes 60 µs at 6 % of the bandwidth, though all of it lies
    in the cache; a product of 16 × 64 by 64 × 64 takes 15 µs at 3 % of the peak."""
    return max(1 - attained / least, 0.0) if attained is not None else 0.0


def _compute_part(
    work: StepWork, study: TraceStudy | None
) -> tuple[float, Literal["roofline", "category", "guess"]]:
    """Return the share of the working time that is above the ridge, and how it is known. Without a
    roofline, products, convolutions and attention count as arithmetic."""
    if work.compute_share is not None and work.memory_share is not None:
        covered = work.compute_share + work.memory_share
        if covered >= MIN_ROOFLINE_COVERAGE:
            return work.compute_share / covered, "roofline"
    if study is None:
        return 0.5, "guess"
    times = [(row.category, row.device_ns) for row in study.categories] or [
        (row.category, row.host_self_ns) for row in study.ops
    ]
    products = sum(ns for category, ns in times if category in _PRODUCTS)
    rest = sum(ns for category, ns in times if category not in (*_PRODUCTS, "communication"))
    return (products / (products + rest), "category") if products + rest else (0.5, "guess")


class Preemption(Struct, frozen=True, kw_only=True):
    """Says how much time the training thread lost to other processes."""

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
    if taken.light < MIN_PREEMPTION_SHARE or not times.mean_ms:
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
    if taken.traced < MIN_PREEMPTION_SHARE:
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
    worked = training_loader(loaders).worked
    light = capture.light_time if capture is not None else None
    if worked is not None and light is not None and light.processor_ns:
        worked = min(worked * (1 + light.queued_ns / light.processor_ns), 1.0)
    ready = {one.phase: one.ms for one in times.phases}
    if "input" in ready and worked is not None:
        ready["input"] *= worked
    if "other" in ready:
        others = sum(ms for phase, ms in ready.items() if phase != "other")
        left = taken.runnable * (times.mean_ms or 0.0) - others
        ready["other"] = min(max(left, 0.0), ready["other"])
    return {str(phase): ms for phase, ms in ready.items()}


def _faster(attained: float | None, running: float) -> float | None:
    return None if attained is None else min(attained / running, 1.0)


_VERB = (
    r"(?:get|next|load|read|fetch|make|build|prepare|create|sample|draw|generate|decode"
    r"|iter(?:ate)?)"
)
_NOUN = (
    r"(?:mini)?(?:batch(?:es)?|data|dataset|examples?|samples?|images?|inputs?|records?|shards?)"
)
_FEEDS = re.compile(
    rf"_*(?:{_VERB}_?(?:\w+_)?{_NOUN}(?:_\w+)?|(?:mini)?batch(?:es|_?iter\w*|_?gen\w*)"
    rf"|data_?(?:iter|gen|stream|feed)\w*|collate\w*|augment\w*|preprocess\w*|tokenize\w*|decode)",
    re.IGNORECASE,
)


def feeds(function: str) -> bool:
    """Return whether a function of that name makes batches."""
    return _FEEDS.fullmatch(function) is not None


def hand_fed(trace: Trace, links: Links, window: Window) -> HandFed:
    frames = trace.frames
    if not len(frames) or window.ns <= 0:
        return HandFed()
    rows = trace.names_where(frames.name, makes_input) & (frames.lane == links.main_lane)
    mine = frames.take(rows)
    inside = clip(union(mine.ts, mine.end), window.start_ns, window.end_ns)
    if not inside.total:
        return HandFed()
    longest = max(range(len(mine)), key=lambda row: int(mine.dur[row]))
    place = place_of(trace.text(int(mine.name[longest])))
    assert place is not None
    return HandFed(
        share=inside.total / window.ns,
        function=place.function,
        place=f"{place.file}:{place.line}",
    )


def makes_input(frame: str) -> bool:
    if not is_own(frame):
        return False
    place = place_of(frame)
    return place is not None and feeds(place.function)
