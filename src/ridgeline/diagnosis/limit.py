"""What limits a program: one of eight bounds, with the two numbers that decided.

The largest share of the step wins, with one weight: a wait can be taken away whole, work only be
made faster, so a wait wins from 0.7 of the larger kind of work on, unless the device works two
thirds of the time. A GPU 55 % busy and 45 % waiting for copies is transfer-bound; one 60 % busy
with a tenth each of four waits is not.

Two waits need less, because what feeds a device beside it limits it long before half the step is
waiting: a loader that delivers every 100 ms to a GPU that needs 80 makes it wait 20 %, and nothing
done to those 80 would make it faster. So it is with launches that find an empty queue.
"""

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.hand_fed import HandFed
from ridgeline.diagnosis.shares import (
    STREAMING,
    Kind,
    Shares,
    cpu_shares,
    gpu_shares,
    heavily_preempted,
    overhead_causes,
    own_times,
    own_work,
    phase_shares,
    preemption,
    unexplained,
)
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.run import Capture, OutOfMemory, Phase, feeding
from ridgeline.records.run_summary import (
    Bound,
    Deciding,
    Efficiency,
    MemoryUse,
    StepTimes,
    Telemetered,
    Verdict,
)
from ridgeline.records.sites import LateRank
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Cause, IdleCause, TraceStudy
from ridgeline.records.trust import Confidence, Trust

BOUNDS: dict[Kind, Bound] = {
    "input": "input-bound",
    "transfer": "transfer-bound",
    "overhead": "launch/overhead-bound",
    "communication": "communication-bound",
    "compute": "compute-bound",
    "memory": "memory-bandwidth-bound",
}
_WAITS: tuple[Kind, ...] = ("input", "transfer", "overhead", "communication")

OF_ONE_KIND = 0.7
OF_ALL_WORK = 0.5
"""How large a wait must be to be the limit: against the larger kind of work, and against all."""
SATURATED = 0.2
"""Share of the step from which a wait for something that works beside the device is the limit."""
EMPTY_QUEUE = 0.6
"""Of launches that found nothing queued: the host is behind throughout. Five traces: 1.0 and 1.0
where it was, 0.17, 0.20 and 0.02 where it ran ahead."""
MAX_ONE_THREAD_CORES = 1.2
"""A program that keeps more than this many processors busy works in several threads."""
RETRIES_A_STEP = 0.5
FULL = 0.95
"""Share of the device's memory the allocator holds from which a few retries already mean that the
program runs at the limit of what fits."""
STRETCHED = 2.0
"""Traced step against an untraced one, either way, from which it may not speak for it."""
MIN_NAMED_PREEMPTION_SHARE = 0.1
"""The verdict names the time that other processes took from this share of the step on."""
MIN_SAMPLES = 5
"""Fewer samples of the telemetry do not tell how many processors the program used."""
MAX_OPERATOR_TO_PROCESSOR_TIME = 1.1
"""How many times the processor time the operators' time may be: different clocks measure the two.
"""
MIN_LATE_SHARE = 0.2
"""Waiting for one rank is the limit from this share of the step on, if no other wait is larger. The
late rank works beside the others, so that shortening the rest of their step gains nothing."""
EXCHANGE_WEIGHT = 0.7
"""Weight of the exchange that would remain without the late rank, when waits are compared. It is
below 1 because an exchange can be made shorter, but not be left out."""
CLOSE = 0.8
"""A runner-up from this part of the winner on is too close to be sure."""


class Seen(Struct, frozen=True, kw_only=True):
    """All that a verdict is drawn from."""

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
    def loader(self) -> bool:
        return self.capture is not None and any(ld.batches for ld in self.capture.loaders)


def limit(
    times: StepTimes,
    *,
    work: StepWork | None = None,
    study: TraceStudy | None = None,
    memory: MemoryUse | None = None,
    telemetered: Telemetered | None = None,
    capture: Capture | None = None,
    efficiency: Efficiency | None = None,
    fed: HandFed | None = None,
    late: LateRank | None = None,
) -> Verdict:
    seen = Seen(
        times=times,
        work=work,
        study=study,
        memory=memory or MemoryUse(),
        telemetered=telemetered or Telemetered(),
        capture=capture,
        efficiency=efficiency or Efficiency(),
        fed=fed or HandFed(),
    )
    if (full := _capacity(seen)) is not None:
        return full
    if not times.phases:
        return no_steps(times, capture)
    shares, own = shares_in(seen), undisturbed(seen)
    if late is not None and _waits_for_a_rank(seen, shares, late):
        return late_rank(late, _trust_in_late(seen, late))
    kind = winner(shares, _saturated(seen))
    said = worded(
        kind, shares, seen.on_gpu, own.times, capture, own.work, study, seen.efficiency, seen.fed,
        seen.telemetered.program_cores,
    )  # fmt: skip
    return Verdict(
        bound=BOUNDS[kind],
        sentence=f"{BOUNDS[kind]}: {said.sentence}{_others(shares)}",
        numbers=said.numbers,
        place=said.place,
        trust=_trust(own, shares, kind),
    )


def undisturbed(seen: Seen) -> Seen:
    """Return `seen` without the time that other processes took from the training thread. It is
    unchanged on a GPU, where that time is hidden behind the device's work or part of its waits."""
    taken = None if seen.on_gpu else preemption(seen.capture, seen.telemetered)
    if taken is None:
        return seen
    work = own_work(seen.work, taken) if seen.work is not None else None
    return replace(seen, times=own_times(seen.times, taken, seen.capture), work=work)


def shares_in(seen: Seen) -> Shares:
    """Return the step divided into six shares by what it spends time on, and the share that other
    processes took."""
    own = undisturbed(seen)
    shares = _within_processor_time(own, _by_hand(own, _shares(own)))
    if own.times.mean_ms == seen.times.mean_ms or not seen.times.mean_ms or not own.times.mean_ms:
        return shares
    left = own.times.mean_ms / seen.times.mean_ms
    of = {kind: share * left for kind, share in shares.of.items()}
    return replace(shares, of=of, preempted=1 - left)


def _within_processor_time(seen: Seen, shares: Shares) -> Shares:
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


def _others(shares: Shares) -> str:
    if shares.preempted < MIN_NAMED_PREEMPTION_SHARE:
        return ""
    return f"; other processes took {_percent(shares.preempted)} of it"


def winner(shares: Shares, saturated: Collection[Kind] = ()) -> Kind:
    """`saturated`: waits for what works beside the device and cannot keep up."""
    of = shares.undisturbed
    work: Kind = "compute" if of["compute"] >= of["memory"] else "memory"
    needed = max(OF_ONE_KIND * of[work], OF_ALL_WORK * (of["compute"] + of["memory"]))
    waits = [
        kind
        for kind in _WAITS
        if of[kind] > 0 and of[kind] >= (SATURATED if kind in saturated else needed)
    ]
    return max(waits, key=lambda kind: of[kind], default=work)


def _waits_for_a_rank(seen: Seen, shares: Shares, late: LateRank) -> bool:
    """Return whether the wait for a late rank limits the job: it is long, and no other wait of the
    shown rank is much longer.

    Before the waits are compared, lateness is taken out of the share that contains it. If another
    rank is late, the shown rank waits for it in its communication. If the shown rank is itself
    late, its lateness is in the share of its late phase (input or overhead), and its communication
    is no longer than its own work leaves."""
    waits = {kind: shares.of[kind] for kind in _WAITS}
    if seen.capture is None or seen.capture.rank != late.rank:
        waits["communication"] = max(waits["communication"] - late.share, 0.0)
    else:
        holds: Kind = "input" if late.phase == "input" else "overhead"
        waits[holds] = max(waits[holds] - late.share, 0.0)
        waits["communication"] = min(waits["communication"], late.waiting_share - late.share)
    waits["communication"] *= EXCHANGE_WEIGHT
    return late.share >= max(MIN_LATE_SHARE, OF_ONE_KIND * max(waits.values()))


def _trust_in_late(seen: Seen, late: LateRank) -> Trust:
    doubts = []
    if late.basis != "steps":
        doubts.append("from the traced steps alone")
    if seen.times.trust.confidence != "good":
        doubts.append("few or unsteady steps")
    return Trust(confidence="doubtful" if doubts else "good", why="; ".join(doubts))


def _saturated(seen: Seen) -> list[Kind]:
    found: list[Kind] = []
    loaders = seen.capture.loaders if seen.capture is not None else ()
    if seen.on_gpu or any(loader.workers and loader.batches for loader in loaders):
        found.append("input")
    queue = seen.study.launch.empty_queue if seen.study is not None else None
    if seen.on_gpu and queue is not None and queue >= EMPTY_QUEUE:
        found.append("overhead")
    return found


def _shares(seen: Seen) -> Shares:
    if seen.work is None or not seen.work.operator_ms:
        return phase_shares(seen.times, seen.telemetered.gpu_utilisation if seen.on_gpu else None)
    if seen.on_gpu and seen.study is not None and seen.study.idle.total_ns is not None:
        return gpu_shares(seen.times, seen.work, seen.study, seen.loader)
    if seen.on_gpu:
        return phase_shares(seen.times, seen.telemetered.gpu_utilisation)
    return cpu_shares(seen.times, seen.work, seen.study)


def _by_hand(seen: Seen, shares: Shares) -> Shares:
    """Batches made by a function of the user's own, where no DataLoader is: the waits of such a
    function are input. On a GPU only what it makes the device wait counts, hence the bound."""
    if seen.loader or not seen.fed.share:
        return shares
    # Its share of a traced step is taken for that of a timed one: Python slows with the rest.
    moved = min(seen.fed.share, shares.of["overhead"])
    return Shares(
        of={
            **shares.of,
            "input": shares.of["input"] + moved,
            "overhead": shares.of["overhead"] - moved,
        },
        basis=shares.basis,
        split=shares.split,
    )


def _capacity(seen: Seen) -> Verdict | None:
    memory, counted = seen.memory, max(seen.times.counted, 1)
    full = seen.capture.out_of_memory if seen.capture is not None else None
    crowded = bool(
        memory.device_total_bytes
        and (memory.device_reserved_bytes or 0) >= FULL * memory.device_total_bytes
    )
    if full is None and not (
        memory.retries >= RETRIES_A_STEP * counted or (crowded and memory.retries > 1)
    ):
        return None
    if full is None and not memory.retries:
        return None
    return capacity(full, memory, counted)


def _trust(seen: Seen, shares: Shares, kind: Kind) -> Trust:
    doubts = []
    if shares.basis == "phases":
        why = "without a traced step" if seen.work is None else "the trace holds no device work"
        doubts.append(f"{why}: from the phases alone")
    elif shares.split != "roofline" and kind in ("compute", "memory"):
        doubts.append(
            "compute and memory are told apart by the kind of operator: too few operators have "
            "a known ceiling"
        )
    if kind == "input" and not seen.loader and seen.fed.share:
        doubts.append(f"no DataLoader: {seen.fed.function}() is taken for the input by its name")
    if seen.capture is not None and seen.capture.children and seen.capture.stepping == "call":
        count = sum(one.processes for one in seen.capture.children)
        doubts.append(
            f"only the process that started {count} others was recorded, and those may be the ones "
            "that train"
        )
    doubts += _near(shares, kind)
    if shares.basis == "trace" and seen.work is not None and not heavily_preempted(shares):
        doubts += _slow(seen.work, kind, seen.on_gpu)
    if not seen.on_gpu:
        doubts += _of_the_processor(seen, shares)
    if seen.times.trust.confidence != "good":
        doubts.append("few or unsteady steps")
    if seen.study is not None and shares.basis == "trace" and seen.on_gpu:
        idle = seen.study.idle.trust
        doubts += [idle.why] if idle.confidence != "good" and idle.why else []
    level: Confidence = "doubtful" if doubts else "good"
    return Trust(confidence=level, why="; ".join(doubts))


def _slow(work: StepWork, kind: Kind, on_gpu: bool) -> list[str]:
    """Operators below the ridge that are far from the memory's rate: it is not what they wait for,
    or not all of it."""
    attained = work.memory_attained
    if attained is None or attained >= STREAMING or not work.memory_share:
        return []
    if kind == "memory":
        return [f"these operators reach only {_percent(attained)} of the memory's bandwidth"]
    if kind == "overhead" and not on_gpu and unexplained(work):
        return [
            f"operators are large and reach only {_percent(attained)} of the memory's bandwidth: "
            "what slows them is not known"
        ]
    return []


def _of_the_processor(seen: Seen, shares: Shares) -> list[str]:
    """Return doubts about the processor. `seen` is without the time that other processes took."""
    said = []
    others = seen.telemetered
    account = preemption(seen.capture, others)
    if heavily_preempted(shares):
        said.append(f"other processes took {_percent(shares.preempted)} of the step")
    elif others.crowded and (
        account is None or (others.program_cores or 0.0) > MAX_ONE_THREAD_CORES
    ):
        # If a program has several threads, the kernel's account of one thread says too little.
        said.append(f"other programs took {others.other_cores:.1f} of {others.cores} cores")
    if shares.basis == "trace" and (other := _if_all_slowed_alike(seen, shares)) is not None:
        times = units.significant(_stretch(seen), 2)
        said.append(
            f"traced steps took {times} × as long as untraced ones; if tracing slowed operators as "
            f"much as the rest, the verdict would be {BOUNDS[other]}"
        )
    return said


def _stretch(seen: Seen) -> float:
    """Return how many times as long as an untraced step a traced step is."""
    if seen.work is None or not seen.times.median_ms:
        return 1.0
    return seen.work.step_ms / seen.times.median_ms


def _if_all_slowed_alike(seen: Seen, shares: Shares) -> Kind | None:
    """Return the other verdict that a long traced step allows, or None if there is none.

    On a CPU, recording Python's calls makes a traced step of small operators two to four times as
    long in nearly every program. The shares assume that operators keep their length and only the
    rest is stretched. That assumption is a reason for doubt only if the opposite one (tracing
    stretches everything alike) leads to another verdict."""
    if seen.work is None or 1 / STRETCHED <= _stretch(seen) <= STRETCHED:
        return None
    alike = replace(seen, work=replace(seen.work, step_ms=seen.times.median_ms or 1.0))
    other = winner(_by_hand(alike, _shares(alike)), _saturated(seen))
    return other if other != winner(shares, _saturated(seen)) else None


def _near(shares: Shares, kind: Kind) -> list[str]:
    """The next bound, where it is as large: a wait that won by less than that is near it too."""
    share, second = max((share, other) for other, share in shares.of.items() if other != kind)
    if share < CLOSE * shares.of[kind]:
        return []
    if kind in _WAITS and second not in _WAITS and share > shares.of[kind]:
        return [f"without this wait it would be {BOUNDS[second]}, {_percent(share)} of the step"]
    return [f"close: {BOUNDS[second]} is as near, {_percent(share)} of the step"]


_WHY: dict[Cause, str] = {
    "synchronisation": "the host stops to wait for it",
    "launch-bound": "the host cannot launch work fast enough",
    "allocator": "the host allocates memory",
    "compile": "the host compiles",
    "garbage collection": "the host collects garbage",
    "other host": "the host is in the program's own code",
    "between kernels": "many small kernels, with a gap after each",
    "unknown": "the host is late, the trace does not say why",
}
_NAMES: dict[Kind, str] = {
    "input": "input wait",
    "transfer": "copies between host and device",
    "overhead": "overhead",
    "communication": "exposed communication",
    "compute": "compute-limited operators",
    "memory": "memory-limited operators",
}

_PHASES: dict[str, str] = {
    "optimizer": "optimizer step",
    "other": "code outside the model",
}
"""Phases whose name alone does not say what they are."""

_TRAINING: tuple[Phase, ...] = ("forward", "backward", "optimizer", "evaluation")
_BESIDE: dict[Phase, str] = {"optimizer": "the optimizer", "evaluation": "evaluation"}
"""Phases that are named where they are most of a step: nobody looks for the time there."""
_MIN_TOLD_GROWTH_BYTES = 64 * 1024
"""Slower growth, in bytes a step, is not named in the verdict: it does not fill memory within a
run."""
_WAITING_CORES = 0.5
"""Processors' worth of work below which a program that does not wait for data waits all the same:
Python alone keeps one busy."""


class Worded(Struct, frozen=True, kw_only=True):
    sentence: str
    numbers: tuple[Deciding, ...]
    place: str = ""


def worded(
    kind: Kind,
    shares: Shares,
    on_gpu: bool,
    times: StepTimes,
    capture: Capture | None,
    work: StepWork | None,
    study: TraceStudy | None,
    efficiency: Efficiency,
    fed: HandFed,
    program_cores: float | None = None,
) -> Worded:
    part = _percent(shares.of[kind])
    first = _share(kind, shares)
    second = _against(kind, shares, on_gpu)
    if kind == "input":
        said = f"the GPU waits {part} of each step for data" if on_gpu else (
            f"{part} of each step is spent waiting for data"
        )  # fmt: skip
        place = _loader(capture) or (fed.place if fed.share else "") or _place(study, "input")
        return Worded(sentence=said, numbers=(first, second), place=place)
    if kind == "transfer":
        said = f"copies between host and GPU hold up {part} of each step"
        return Worded(sentence=said, numbers=(first, second), place=_place(study, "transfer"))
    if kind == "communication":
        said = f"{part} of each step is spent exchanging data between ranks"
        place = _place(study, "collective wait")
        return Worded(sentence=said, numbers=(first, second), place=place)
    if kind == "overhead":
        if not on_gpu and (own := _own_code(shares, times, program_cores, first, second)):
            return own
        if not on_gpu and program_cores is not None and _waits(shares, program_cores):
            said = f"{part} of each step is spent waiting, and not for data"
            return _with_cores(said, program_cores, first)
        return _overhead(shares, on_gpu, study, work, first, second)
    said_of = _working(kind, shares, on_gpu, work, efficiency, first, second)
    return replace(said_of, sentence=said_of.sentence + _mostly_in(times))


def capacity(full: OutOfMemory | None, memory: MemoryUse, counted: int) -> Verdict:
    """Out of memory, or an allocator that has to free and try again."""
    if full is not None and full.on == "host":
        return _host_full(full, memory)
    if full is not None:
        asked, free = units.bytes_(full.asked_bytes), units.bytes_(full.free_bytes)
        # Once the windows are over nobody counts steps any more.
        when = (
            f"at step {full.step} in its {full.phase}" if full.phase else f"after step {full.step}"
        )
        return Verdict(
            bound="memory-capacity-bound",
            sentence=f"memory-capacity-bound: out of memory {when}: "
            f"{asked} asked, {free} free",
            numbers=(
                Deciding(what="asked for", value=float(full.asked_bytes), text=asked),
                Deciding(
                    what="free", value=float(full.free_bytes),
                    text=f"{free} of {units.bytes_(full.total_bytes)}",
                ),
            ),
            place=full.place,
        )  # fmt: skip
    rate = memory.retries / counted
    held = (memory.device_reserved_bytes or 0) / (memory.device_total_bytes or 1)
    often = f"{units.significant(rate, 2)} a step"
    return Verdict(
        bound="memory-capacity-bound",
        sentence="memory-capacity-bound: the allocator has to free its cache and try again "
        f"{often}, with {_percent(held)} of the device's memory held",
        numbers=(
            Deciding(what="allocator retries", value=rate, text=often),
            Deciding(what="memory reserved", value=held, text=f"{_percent(held)} of the device"),
        ),
    )


def _host_full(full: OutOfMemory, memory: MemoryUse) -> Verdict:
    """Return the verdict for a program that ran out of host memory: an error said so, or the
    program was killed for it."""
    used = units.bytes_(full.allocated_bytes)
    of = f" of {units.bytes_(full.total_bytes)}" if full.total_bytes else ""
    when = f"at step {full.step} in its {full.phase}" if full.phase else f"after step {full.step}"
    if full.killed:
        by = "the system killed the program for memory" if full.sure else (
            "the program was killed, perhaps for memory,"
        )  # fmt: skip
        said = f"{by} {when}, with {used}{of} resident"
    else:
        asked = f"{units.bytes_(full.asked_bytes)} asked, " if full.asked_bytes else ""
        said = f"the host's memory ran out {when}: {asked}{used}{of} in use"
    numbers = [
        Deciding(what="in use", value=float(full.allocated_bytes), text=f"{used}{of}"),
    ]
    grown = memory.host_growth_bytes_per_step
    if grown and grown >= _MIN_TOLD_GROWTH_BYTES:
        each = f"{units.bytes_(grown)} a step"
        said += f"; memory grew by {each}"
        numbers.append(Deciding(what="growth", value=grown, text=each))
    doubt = "" if full.sure else "it is not known why the program was killed"
    return Verdict(
        bound="memory-capacity-bound",
        sentence=f"memory-capacity-bound: {said}",
        numbers=tuple(numbers),
        place=full.place,
        trust=Trust(confidence="doubtful", why=doubt) if doubt else Trust(),
    )


def late_rank(late: LateRank, trust: Trust) -> Verdict:
    """Return the verdict that all other ranks wait for one."""
    longer, waited = units.seconds(late.phase_ns / 1e9), units.seconds(late.late_ns / 1e9)
    phase = _PHASES.get(late.phase, late.phase)
    said = f"its {phase} takes {longer} longer" if phase else f"it comes {waited} late in each step"
    where = f", at {late.place}" if late.place else ""
    return Verdict(
        bound="late-rank",
        sentence=f"waits for rank {late.rank}: {said}{where}",
        numbers=(
            Deciding(
                what=f"waiting for rank {late.rank}", value=late.share, source="derived",
                text=f"{_percent(late.share)} of the step, {waited}",
            ),
            Deciding(
                what="slowest rank", value=late.late_steps / max(late.steps, 1),
                text=f"in {late.late_steps} of {units.plural(late.steps, 'step')}",
            ) if late.steps else Deciding(
                what="last to come", value=late.late_collectives / max(late.collectives, 1),
                text=f"to {late.late_collectives} of "
                f"{units.plural(late.collectives, 'collective')}",
            ),
        ),
        place=late.place,
        trust=trust,
    )  # fmt: skip


def no_steps(times: StepTimes, capture: Capture | None) -> Verdict:
    """Nothing to decide from, and what to do about it."""
    if capture is None:
        why = "the program left no record: it ended before it could, or ran no Python"
    elif not capture.torch_imported:
        why = "the program did not import torch"
    elif 2 * len(times.compile_steps) > times.counted:
        why = (
            f"{len(times.compile_steps)} of {units.plural(times.counted, 'step')} compiled, and "
            "none is left that can be timed: see what makes it compile again"
        )
    elif times.median_ms is not None:
        why = "steps were timed, but their phases were not recorded"
    elif times.counted:
        why = f"{units.plural(times.counted, 'step')} seen, none that can be timed"
    elif capture.children:
        started = capture.children[0]
        why = (
            "no step was seen in this process: the program started "
            f"{units.plural(started.processes, 'process', 'processes')} of its own with "
            f"{started.function}(), and those are not recorded"
        )
    else:
        why = (
            "no step was seen: no optimizer step, backward or model call in this process; "
            "call ridgeline.step() at the end of each iteration"
        )
    timed = "no phase was recorded" if times.median_ms is not None else "nothing was timed"
    return Verdict(
        bound="unknown",
        sentence=f"unknown: {why}",
        trust=Trust(confidence="unreliable", why=timed),
    )


def _overhead(
    shares: Shares,
    on_gpu: bool,
    study: TraceStudy | None,
    work: StepWork | None,
    first: Deciding,
    second: Deciding,
) -> Worded:
    part = _percent(shares.of["overhead"])
    causes = overhead_causes(study) if study is not None else ()
    if on_gpu and causes and shares.basis == "trace":
        top = causes[0]
        told = sum(c.ns for c in causes)
        weight = shares.of["overhead"] * top.ns / told if told else 0.0
        number = Deciding(what=f"{top.cause}", value=weight, text=f"{_percent(weight)} of the step")
        said = f"the GPU waits {part} of each step for the host: {_WHY.get(top.cause, top.cause)}"
        return Worded(sentence=said, numbers=(first, number), place=_first(top))
    if on_gpu:
        said = f"the GPU waits {part} of each step for the host"
        return Worded(sentence=said, numbers=(first, second))
    said = f"{part} of each step goes to Python and to starting operators, not to their work"
    if work is not None and unexplained(work) and not heavily_preempted(shares):
        said = f"{part} of each step goes to Python and to operators far below the memory's rate"
    if work is not None and work.operators:
        number = Deciding(
            what="operators", value=work.operators, text=f"{work.operators:,.0f} a step"
        )
        return Worded(sentence=said, numbers=(first, number))
    return Worded(sentence=said, numbers=(first, second))


def _own_code(
    shares: Shares, times: StepTimes, cores: float | None, first: Deciding, second: Deciding
) -> Worded | None:
    """Where most of the overhead is in no phase of training; None where it is not, or where no
    phase is known and all of the step is the rest."""
    overhead = shares.of["overhead"]
    outside = min(share_of(times, "other") * (1 - shares.preempted), overhead)
    if outside <= overhead / 2 or not any(share_of(times, phase) for phase in _TRAINING):
        return None
    said = (
        "the program's own code outside model, loss and optimizer takes "
        f"{_percent(outside)} of each step"
    )
    if cores is None or not _waits(shares, cores):
        return Worded(sentence=said, numbers=(first, second))
    return _with_cores(f"{said}, most of it waiting", cores, first)


def _waits(shares: Shares, cores: float) -> bool:
    """Return whether the program neither worked nor waited for a processor most of the time."""
    return cores + shares.preempted < _WAITING_CORES


def _with_cores(said: str, cores: float, first: Deciding) -> Worded:
    busy = f"{cores:.1f} cores"
    number = Deciding(what="the program's processor use", value=cores, text=busy)
    return Worded(sentence=f"{said} ({busy} busy)", numbers=(first, number))


def _mostly_in(times: StepTimes) -> str:
    for phase, where in _BESIDE.items():
        if share_of(times, phase) > 0.5:
            return f", {_percent(share_of(times, phase))} of it in {where}"
    return ""


def _working(
    kind: Kind,
    shares: Shares,
    on_gpu: bool,
    work: StepWork | None,
    efficiency: Efficiency,
    first: Deciding,
    second: Deciding,
) -> Worded:
    where = "GPU" if on_gpu else "processor"
    part = _percent(shares.of[kind])
    if shares.split == "guess":
        said = f"the {where} works {_percent(shares.busy)} of each step"
        return Worded(sentence=said, numbers=(first, second))
    if kind == "memory":
        said = f"operators that wait for the {where}'s memory take {part} of each step"
        if work is not None and work.memory_attained is not None:
            number = Deciding(
                what="their bandwidth", value=work.memory_attained, source="derived",
                text=f"{_percent(work.memory_attained)} of the ceiling",
            )  # fmt: skip
            return Worded(sentence=said, numbers=(first, number))
        return Worded(sentence=said, numbers=(first, second))
    said = f"arithmetic on the {where} takes {part} of each step"
    if work is not None and work.dtype:
        said = f"{work.dtype} {said}"
    if efficiency.mfu is not None:
        number = Deciding(
            what="FLOP/s", value=efficiency.mfu, source="derived",
            text=f"{_percent(efficiency.mfu)} of the peak ({efficiency.ceiling})",
        )  # fmt: skip
        return Worded(sentence=said, numbers=(first, number))
    return Worded(sentence=said, numbers=(first, second))


def _share(kind: Kind, shares: Shares) -> Deciding:
    estimated = shares.basis == "phases" and kind not in ("input", "transfer")
    estimated |= kind in ("compute", "memory") and shares.split != "roofline"
    return Deciding(
        what=_NAMES[kind],
        value=shares.of[kind],
        text=f"{_percent(shares.of[kind])} of the step",
        source="estimated" if estimated else "derived" if kind != "input" else "measured",
    )


def _against(kind: Kind, shares: Shares, on_gpu: bool) -> Deciding:
    """What stands against it: for a wait the work, for work the largest wait."""
    if kind in ("compute", "memory"):
        waits: tuple[Kind, ...] = ("input", "transfer", "overhead", "communication")
        return _share(max(waits, key=lambda k: shares.of[k]), shares)
    return Deciding(
        what="GPU at work" if on_gpu else "operators at work",
        value=shares.busy,
        text=f"{_percent(shares.busy)} of the step",
        source="estimated" if shares.basis == "phases" else "derived",
    )


def _loader(capture: Capture | None) -> str:
    """Return the line that takes batches from the loader which feeds the steps, or ""."""
    loaders = capture.loaders if capture is not None else ()
    return feeding([loader for loader in loaders if loader.place]).place


def _place(study: TraceStudy | None, cause: Cause) -> str:
    found = [c for c in study.idle.causes if c.cause == cause] if study is not None else []
    return _first(found[0]) if found else ""


def _first(cause: IdleCause) -> str:
    return f"{cause.places[0].file}:{cause.places[0].line}" if cause.places else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
