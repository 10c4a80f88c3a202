"""Decides what limits a program: one of eight bounds, with the two numbers that decided.

The largest share of the step wins, with one weight: a wait can be taken away whole, work can only
be made faster. So a wait wins from 0.7 of the larger kind of work on, unless the device works two
thirds of the time. A GPU 55 % busy and 45 % waiting for copies is transfer-bound; one 60 % busy
with a tenth each of four waits is not.

Two waits need less, because what feeds a device beside it limits it long before half the step is
waiting: a loader that delivers every 100 ms to a GPU that needs 80 makes it wait 20 %, and nothing
done to those 80 would make it faster. So it is with launches that find an empty queue.
"""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from ridgeline.diagnosis.shares import (
    MIN_STREAMING_SHARE,
    WAITS,
    Kind,
    Observed,
    Shares,
    Wait,
    is_slow_without_reason,
    largest_cause,
    overhead_causes,
    preemption,
    shares_of_work,
)
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.facts import Fact, Reason, Trust, because
from ridgeline.records.run import OutOfMemory, Phase, training_loader
from ridgeline.records.sites import LateRank
from ridgeline.records.trace import IdleCause
from ridgeline.records.verdict import Bound, Deciding, DecidingCode, DoubtCode, LimitCode, Verdict

BOUNDS: dict[Kind, Bound] = {
    "input": "input-bound",
    "transfer": "transfer-bound",
    "overhead": "launch/overhead-bound",
    "communication": "communication-bound",
    "compute": "compute-bound",
    "memory": "memory-bandwidth-bound",
}
MIN_WAIT_TO_LARGER_WORK = 0.7
MIN_WAIT_TO_ALL_WORK = 0.5
"""How large a wait must be to be the limit: against the larger kind of work, and against all."""
MIN_SATURATED_SHARE = 0.2
"""A wait for something that works beside the device is the limit from this share of the step on."""
MIN_EMPTY_QUEUE_SHARE = 0.6
"""Share of the launches that found nothing queued, from which on the host is behind throughout. In
five traces it was 1.0 and 1.0 where the host was behind, and 0.17, 0.20 and 0.02 where it ran
ahead."""
MAX_ONE_THREAD_CORES = 1.2
"""A program that keeps more than this many processors busy works in several threads."""
MIN_RETRIES_PER_STEP = 0.5
FULL_DEVICE_SHARE = 0.95
"""If the allocator holds this share of the device's memory, a few retries already mean that the
program runs at the limit of what fits."""
MAX_STRETCH = 2.0
"""If a traced step is this many times as long as an untraced one, or as short, it may not speak for
it."""
MIN_NAMED_PREEMPTION_SHARE = 0.1
"""The verdict names the time that other processes took from this share of the step on."""
MIN_LATE_SHARE = 0.2
"""Waiting for one rank is the limit from this share of the step on, if no other wait is larger. The
late rank works beside the others, so that shortening the rest of their step gains nothing."""
EXCHANGE_WEIGHT = 0.7
"""Weight of the exchange that would remain without the late rank, when waits are compared. It is
below 1 because an exchange can be made shorter, but not be left out."""
MIN_CLOSE_PART = 0.8
"""A runner-up with this part of the winner's share is too close to be sure."""
MIN_NAMED_GROWTH_BYTES = 64 * 1024
"""Slower growth, in bytes a step, is not named in the verdict: it does not fill memory within a
run."""
MAX_WAITING_CORES = 0.5
"""A program that does not wait for data and uses less than this many processors waits all the same:
Python alone keeps one busy."""
MIN_NAMED_PHASE_SHARE = 0.5
_NAMED_PHASES: tuple[Phase, ...] = ("optimizer", "evaluation")
"""Phases that are named if they are most of a step, because nobody looks for the time there."""
_TRAINING: tuple[Phase, ...] = ("forward", "backward", *_NAMED_PHASES)


def limit(seen: Observed, late: LateRank | None = None) -> Verdict:
    """Return what limits the program. `late` is the rank that the others wait for, if any."""
    out_of_memory = _out_of_memory(seen)
    if out_of_memory is not None:
        return out_of_memory
    if not seen.times.phases:
        return unknown(_no_steps(seen), no_phase_recorded=seen.times.median_ms is not None)
    shares = seen.shares
    if late is not None and _waits_for_a_rank(seen, shares, late):
        return _late_rank(late, _trust_in_late(seen, late))
    kind = winner(shares, _saturated(seen))
    verdict = _of_kind(kind, shares, seen.undisturbed)
    if shares.preempted >= MIN_NAMED_PREEMPTION_SHARE:
        taken = because(LimitCode.OTHER_PROCESSES_TOOK, share=shares.preempted)
        verdict = replace(verdict, also=(*verdict.also, taken))
    return replace(verdict, trust=_trust(seen.undisturbed, shares, kind))


def unknown(reason: Reason, *, no_phase_recorded: bool = False) -> Verdict:
    """Return the verdict of a program whose limit is not known."""
    doubt = DoubtCode.NO_PHASE_RECORDED if no_phase_recorded else DoubtCode.NOTHING_TIMED
    trust = Trust(confidence="unreliable", doubts=(because(doubt),))
    return Verdict(bound="unknown", reason=reason, trust=trust)


def winner(shares: Shares, saturated: Collection[Kind] = ()) -> Kind:
    """Return the kind that limits the step. `saturated` are waits for what works beside the device
    and cannot keep up."""
    of = shares.undisturbed
    work: Kind = "compute" if of["compute"] >= of["memory"] else "memory"
    needed = max(
        MIN_WAIT_TO_LARGER_WORK * of[work], MIN_WAIT_TO_ALL_WORK * (of["compute"] + of["memory"])
    )
    waits: list[Kind] = [
        kind
        for kind in WAITS
        if of[kind] > 0 and of[kind] >= (MIN_SATURATED_SHARE if kind in saturated else needed)
    ]
    return max(waits, key=lambda kind: of[kind], default=work)


def _saturated(seen: Observed) -> list[Kind]:
    found: list[Kind] = []
    loaders = seen.capture.loaders if seen.capture is not None else ()
    if seen.on_gpu or any(loader.workers and loader.batches for loader in loaders):
        found.append("input")
    queue = seen.study.launch.empty_queue if seen.study is not None else None
    if seen.on_gpu and queue is not None and queue >= MIN_EMPTY_QUEUE_SHARE:
        found.append("overhead")
    return found


# ---------------------------------------------------------------------------- out of memory


def _out_of_memory(seen: Observed) -> Verdict | None:
    """Return the verdict if memory ran out, or if the allocator keeps freeing its cache to try
    again."""
    full = seen.capture.out_of_memory if seen.capture is not None else None
    if full is not None:
        return _host_full(full, seen) if full.on == "host" else _device_full(full)
    memory, steps = seen.memory, max(seen.times.counted, 1)
    held = (memory.device_reserved_bytes or 0) / (memory.device_total_bytes or 1)
    crowded = bool(memory.device_total_bytes) and held >= FULL_DEVICE_SHARE
    often = memory.retries and memory.retries >= MIN_RETRIES_PER_STEP * steps
    if not often and not (crowded and memory.retries > 1):
        return None
    rate = memory.retries / steps
    return Verdict(
        bound="memory-capacity-bound",
        reason=because(LimitCode.ALLOCATOR_RETRIES, retries_per_step=rate, share=held),
        numbers=(
            Deciding(code=DecidingCode.RETRIES, value=rate),
            Deciding(code=DecidingCode.RESERVED, value=held),
        ),
    )


def _device_full(full: OutOfMemory) -> Verdict:
    reason = because(
        LimitCode.GPU_OUT_OF_MEMORY, step=full.step, phase=full.phase,
        asked_bytes=full.asked_bytes, free_bytes=full.free_bytes,
    )  # fmt: skip
    total: dict[str, Fact] = {"total_bytes": full.total_bytes}
    return Verdict(
        bound="memory-capacity-bound",
        reason=reason,
        numbers=(
            Deciding(code=DecidingCode.ASKED_BYTES, value=float(full.asked_bytes)),
            Deciding(code=DecidingCode.FREE_BYTES, value=float(full.free_bytes), facts=total),
        ),
        place=full.place,
    )


def _host_full(full: OutOfMemory, seen: Observed) -> Verdict:
    """Return the verdict for a program that ran out of host memory: an error said so, or the
    program was killed for it."""
    used = float(full.allocated_bytes)
    total: dict[str, Fact] = {"total_bytes": full.total_bytes}
    numbers = [Deciding(code=DecidingCode.USED_BYTES, value=used, facts=total)]
    growth = seen.memory.host_growth_bytes_per_step or 0.0
    if growth >= MIN_NAMED_GROWTH_BYTES:
        numbers.append(Deciding(code=DecidingCode.GROWTH_BYTES, value=growth))
    else:
        growth = 0.0
    killed = LimitCode.HOST_KILLED if full.sure else LimitCode.HOST_PERHAPS_KILLED
    if full.worker:
        killed = LimitCode.WORKER_KILLED
    reason = because(
        killed if full.killed else LimitCode.HOST_OUT_OF_MEMORY,
        step=full.step, phase=full.phase, used_bytes=full.allocated_bytes,
        total_bytes=full.total_bytes, growth_bytes=growth, asked_bytes=full.asked_bytes,
        unwatched=full.unwatched,
    )  # fmt: skip
    doubts = () if full.sure else (because(DoubtCode.KILL_NOT_EXPLAINED),)
    return Verdict(
        bound="memory-capacity-bound",
        reason=reason,
        numbers=tuple(numbers),
        place=full.place,
        trust=Trust(confidence="doubtful" if doubts else "good", doubts=doubts),
    )


# --------------------------------------------------------------------- no steps, a late rank


def _no_steps(seen: Observed) -> Reason:
    """Return why there are no timed phases to decide from."""
    capture, times = seen.capture, seen.times
    if capture is None:
        return because(LimitCode.NO_RECORD)
    if not capture.torch_imported:
        return because(LimitCode.NO_TORCH)
    if 2 * len(times.compile_steps) > times.counted:
        return because(
            LimitCode.KEEPS_COMPILING, compiled=len(times.compile_steps), steps=times.counted
        )
    if times.median_ms is not None:
        return because(LimitCode.NO_PHASES)
    if times.counted:
        return because(LimitCode.NO_TIMED_STEP, steps=times.counted)
    for child in capture.children:
        return because(
            LimitCode.STEPS_IN_CHILDREN, processes=child.processes, function=child.function
        )
    return because(LimitCode.NO_STEP)


def _waits_for_a_rank(seen: Observed, shares: Shares, late: LateRank) -> bool:
    """Return whether the wait for a late rank limits the job: it is long, and no other wait of the
    shown rank is much longer.

    Before the waits are compared, lateness is taken out of the share that contains it. If another
    rank is late, the shown rank waits for it in its communication. If the shown rank is itself
    late, its lateness is in the share of its late phase (input or overhead), and its communication
    is no longer than its own work leaves."""
    waits = {kind: shares.of[kind] for kind in WAITS}
    if seen.capture is None or seen.capture.rank != late.rank:
        waits["communication"] = max(waits["communication"] - late.share, 0.0)
    else:
        holds: Wait = "input" if late.phase == "input" else "overhead"
        waits[holds] = max(waits[holds] - late.share, 0.0)
        waits["communication"] = min(waits["communication"], late.waiting_share - late.share)
    waits["communication"] *= EXCHANGE_WEIGHT
    return late.share >= max(MIN_LATE_SHARE, MIN_WAIT_TO_LARGER_WORK * max(waits.values()))


def _late_rank(late: LateRank, trust: Trust) -> Verdict:
    """Return the verdict that all other ranks wait for one."""
    late_s = late.late_ns / 1e9
    reason = _lateness(late)
    if late.beside is not None:
        reason = replace(reason, cause=_lateness(late.beside))
    if late.steps:
        code, times, of = DecidingCode.SLOWEST_RANK, late.late_steps, late.steps
    else:
        code, times, of = DecidingCode.LAST_RANK, late.late_collectives, late.collectives
    return Verdict(
        bound="late-rank",
        reason=reason,
        numbers=(
            Deciding(
                code=DecidingCode.RANK_WAIT, value=late.share, source="derived",
                facts={"rank": late.rank, "late_s": late_s},
            ),
            Deciding(
                code=code, value=times / max(of, 1), facts={"times": times, "of": of}
            ),
        ),
        place=late.place,
        trust=trust,
    )  # fmt: skip


def _lateness(late: LateRank) -> Reason:
    """Return how late a rank is, and in which phase if that is known."""
    if late.phase:
        return because(
            LimitCode.LATE_RANK_PHASE,
            rank=late.rank, phase=late.phase, longer_s=late.phase_ns / 1e9, place=late.place,
        )  # fmt: skip
    return because(LimitCode.LATE_RANK, rank=late.rank, late_s=late.late_ns / 1e9, place=late.place)


def _trust_in_late(seen: Observed, late: LateRank) -> Trust:
    doubts = []
    if late.basis != "steps":
        doubts.append(because(DoubtCode.ONLY_TRACED_STEPS))
    if seen.times.trust.confidence != "good":
        doubts.append(because(DoubtCode.FEW_STEPS))
    return Trust(confidence="doubtful" if doubts else "good", doubts=tuple(doubts))


# ------------------------------------------------------------------------- the largest share


def _of_kind(kind: Kind, shares: Shares, seen: Observed) -> Verdict:
    """Return the verdict on the kind of time that limits. `seen` is without the time that other
    processes took."""
    share, on_gpu = shares.of[kind], seen.on_gpu
    numbers = (_share(kind, shares), _against(kind, shares, on_gpu))
    if kind == "overhead":
        return _overhead(shares, seen, numbers)
    if kind in ("compute", "memory"):
        return _work(kind, shares, seen, numbers)
    cause = largest_cause(seen.study, kind)
    place = _place(cause)
    if kind == "input":
        code = LimitCode.GPU_WAITS_FOR_DATA if on_gpu else LimitCode.WAITS_FOR_DATA
        loaders = seen.capture.loaders if seen.capture is not None else ()
        loader = training_loader([one for one in loaders if one.place]).place
        place = loader or (seen.fed.place if seen.fed.share else "") or place
    else:
        code = LimitCode.COPIES if kind == "transfer" else LimitCode.EXCHANGES
    reason = because(code, share=share)
    return Verdict(bound=BOUNDS[kind], reason=reason, numbers=numbers, place=place)


def _overhead(shares: Shares, seen: Observed, numbers: tuple[Deciding, Deciding]) -> Verdict:
    share, cores = shares.of["overhead"], seen.telemetered.program_cores
    verdict = Verdict(
        bound=BOUNDS["overhead"],
        reason=because(LimitCode.GPU_WAITS_FOR_HOST, share=share),
        numbers=numbers,
    )
    if seen.on_gpu:
        causes = overhead_causes(seen.study) if seen.study is not None else ()
        if not causes or shares.basis != "trace":
            return verdict
        top = causes[0]
        part = share * top.ns / sum(cause.ns for cause in causes)
        second = Deciding(code=DecidingCode.IDLE_CAUSE, value=part, facts={"idle_cause": top.cause})
        return replace(
            verdict,
            reason=because(LimitCode.GPU_WAITS_BECAUSE, share=share, idle_cause=top.cause),
            numbers=(numbers[0], second),
            place=_place(top),
        )
    # Python alone keeps a processor busy: a program that uses less neither works nor is kept
    # waiting for a processor.
    waits = cores is not None and cores + shares.preempted < MAX_WAITING_CORES
    outside = _own_code_share(shares, seen)
    if waits and cores is not None:
        numbers = (numbers[0], Deciding(code=DecidingCode.CORES, value=cores))
    elif not outside and seen.work is not None and seen.work.operators:
        operators = Deciding(code=DecidingCode.OPERATORS, value=seen.work.operators)
        numbers = (numbers[0], operators)
    if outside and waits:
        reason = because(LimitCode.OWN_CODE_WAITS, share=outside, cores=cores)
    elif outside:
        reason = because(LimitCode.OWN_CODE, share=outside)
    elif waits:
        reason = because(LimitCode.WAITS_FOR_SOMETHING, share=share, cores=cores)
    else:
        slow = seen.work is not None and is_slow_without_reason(seen.work)
        slow = slow and not shares.is_heavily_preempted
        reason = because(
            LimitCode.SLOW_OPERATORS if slow else LimitCode.STARTS_OPERATORS, share=share
        )
    return replace(verdict, reason=reason, numbers=numbers)


def _own_code_share(shares: Shares, seen: Observed) -> float:
    """Return the share of the step in the program's own code outside model, loss and optimizer, if
    it is most of the overhead; else 0. It is 0, too, if no phase is known and all of the step is
    the rest."""
    overhead = shares.of["overhead"]
    outside = min(share_of(seen.times, "other") * (1 - shares.preempted), overhead)
    known = any(share_of(seen.times, phase) for phase in _TRAINING)
    return outside if known and outside > overhead / 2 else 0.0


def _work(
    kind: Kind, shares: Shares, seen: Observed, numbers: tuple[Deciding, Deciding]
) -> Verdict:
    share, device = shares.of[kind], "GPU" if seen.on_gpu else "processor"
    second = numbers[1]
    if shares.split == "guess":
        reason = because(LimitCode.DEVICE_WORKS, device=device, share=shares.busy)
    elif kind == "memory":
        reason = because(LimitCode.MEMORY_OPERATORS, device=device, share=share)
        attained = seen.work.memory_attained if seen.work is not None else None
        if attained is not None:
            second = Deciding(code=DecidingCode.BANDWIDTH, value=attained, source="derived")
    else:
        dtype = seen.work.dtype if seen.work is not None else ""
        reason = because(LimitCode.ARITHMETIC, device=device, share=share, dtype=dtype)
        if seen.efficiency.mfu is not None:
            second = Deciding(
                code=DecidingCode.FLOP_RATE, value=seen.efficiency.mfu, source="derived",
                facts={
                    "dtype": seen.efficiency.ceiling_dtype,
                    "ceiling_source": seen.efficiency.ceiling_source,
                },
            )  # fmt: skip
    also = tuple(
        because(LimitCode.MOSTLY_IN_PHASE, phase=phase, share=share_of(seen.times, phase))
        for phase in _NAMED_PHASES
        if share_of(seen.times, phase) > MIN_NAMED_PHASE_SHARE
    )
    return Verdict(bound=BOUNDS[kind], reason=reason, also=also, numbers=(numbers[0], second))


def _share(kind: Kind, shares: Shares) -> Deciding:
    estimated = shares.basis == "phases" and kind not in ("input", "transfer")
    estimated |= kind in ("compute", "memory") and shares.split != "roofline"
    return Deciding(
        code=DecidingCode[kind.upper()],
        value=shares.of[kind],
        source="estimated" if estimated else "derived" if kind != "input" else "measured",
    )


def _against(kind: Kind, shares: Shares, on_gpu: bool) -> Deciding:
    """Return the number that stands against the limit: for a wait the work, for work the largest
    wait."""
    if kind in ("compute", "memory"):
        return _share(max(WAITS, key=lambda wait: shares.of[wait]), shares)
    return Deciding(
        code=DecidingCode.GPU_BUSY if on_gpu else DecidingCode.OPERATORS_BUSY,
        value=shares.busy,
        source="estimated" if shares.basis == "phases" else "derived",
    )


def _place(cause: IdleCause | None) -> str:
    places = cause.places if cause is not None else ()
    return f"{places[0].file}:{places[0].line}" if places else ""


# -------------------------------------------------------------------------------------- doubts


def _trust(seen: Observed, shares: Shares, kind: Kind) -> Trust:
    """Return how far the verdict can be believed. `seen` is without the time that other processes
    took."""
    doubts = list(_doubts(seen, shares, kind))
    return Trust(confidence="doubtful" if doubts else "good", doubts=tuple(doubts))


def _doubts(seen: Observed, shares: Shares, kind: Kind) -> Iterator[Reason]:
    if shares.basis == "phases":
        known = seen.work is not None
        yield because(DoubtCode.NO_DEVICE_WORK if known else DoubtCode.NO_TRACED_STEP)
    elif shares.split != "roofline" and kind in ("compute", "memory"):
        yield because(DoubtCode.NO_CEILINGS)
    if kind == "input" and not seen.has_loader and seen.fed.share:
        yield because(DoubtCode.INPUT_BY_NAME, function=seen.fed.function)
    if seen.capture is not None and seen.capture.children and seen.capture.stepping == "call":
        processes = sum(one.processes for one in seen.capture.children)
        yield because(DoubtCode.OTHER_PROCESSES_TRAIN, processes=processes)
    yield from _doubts_about_next(shares, kind)
    if shares.basis == "trace" and seen.work is not None and not shares.is_heavily_preempted:
        attained = seen.work.memory_attained
        slow = attained is not None and attained < MIN_STREAMING_SHARE and seen.work.memory_share
        if slow and kind == "memory":
            yield because(DoubtCode.LOW_BANDWIDTH, share=attained)
        elif kind == "overhead" and not seen.on_gpu and is_slow_without_reason(seen.work):
            yield because(DoubtCode.UNEXPLAINED_SLOWNESS, share=attained)
    if not seen.on_gpu:
        yield from _doubts_about_processor(seen, shares)
    if seen.times.trust.confidence != "good":
        yield because(DoubtCode.FEW_STEPS)
    if seen.study is not None and shares.basis == "trace" and seen.on_gpu:
        idle = seen.study.idle.trust
        if idle.confidence != "good" and idle.why:
            yield because(DoubtCode.TRACE, text=idle.why)


def _doubts_about_next(shares: Shares, kind: Kind) -> Iterator[Reason]:
    """Return the next bound, if it is as near. Work may also be larger than the wait that won."""
    share, second = max((share, other) for other, share in shares.of.items() if other != kind)
    if share < MIN_CLOSE_PART * shares.of[kind]:
        return
    larger_work = kind in WAITS and second not in WAITS and share > shares.of[kind]
    code = DoubtCode.NEXT_BOUND if larger_work else DoubtCode.CLOSE_BOUND
    yield because(code, bound=BOUNDS[second], share=share)


def _doubts_about_processor(seen: Observed, shares: Shares) -> Iterator[Reason]:
    others = seen.telemetered
    account = preemption(seen.capture, others)
    if shares.is_heavily_preempted:
        yield because(DoubtCode.PREEMPTED, share=shares.preempted)
    elif others.crowded and (
        account is None or (others.program_cores or 0.0) > MAX_ONE_THREAD_CORES
    ):
        # If a program has several threads, the kernel's account of one thread says too little.
        yield because(
            DoubtCode.OTHER_PROGRAMS, cores=others.other_cores, machine_cores=others.cores
        )
    other = _if_all_slowed_alike(seen, shares) if shares.basis == "trace" else None
    if other is not None:
        yield because(DoubtCode.STRETCHED_BY_TRACING, factor=_stretch(seen), bound=BOUNDS[other])


def _stretch(seen: Observed) -> float:
    """Return how many times as long as an untraced step a traced step is."""
    if seen.work is None or not seen.times.median_ms:
        return 1.0
    return seen.work.step_ms / seen.times.median_ms


def _if_all_slowed_alike(seen: Observed, shares: Shares) -> Kind | None:
    """Return the other verdict that a long traced step allows, or None if there is none.

    On a CPU, recording Python's calls makes a traced step of small operators two to four times as
    long in nearly every program. The shares assume that operators keep their length and only the
    rest is stretched. That assumption is a reason for doubt only if the opposite one (tracing
    stretches everything alike) leads to another verdict."""
    if seen.work is None or 1 / MAX_STRETCH <= _stretch(seen) <= MAX_STRETCH:
        return None
    alike = replace(seen, work=replace(seen.work, step_ms=seen.times.median_ms or 1.0))
    other = winner(shares_of_work(alike), _saturated(seen))
    return other if other != winner(shares, _saturated(seen)) else None
