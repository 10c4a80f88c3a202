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
from ridgeline.diagnosis.limit_words import capacity, late_rank, no_steps, worded
from ridgeline.diagnosis.preemption import own_times, own_work, preemption
from ridgeline.diagnosis.shares import (
    STREAMING,
    Kind,
    Shares,
    cpu_shares,
    gpu_shares,
    heavily_preempted,
    phase_shares,
    unexplained,
)
from ridgeline.records.run import Capture
from ridgeline.records.run_summary import (
    Bound,
    Efficiency,
    MemoryUse,
    StepTimes,
    Telemetered,
    Verdict,
)
from ridgeline.records.sites import LateRank
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import TraceStudy
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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
