"""A verdict in words: the sentence, the two numbers that decided, the line of the user's code."""

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.hand_fed import HandFed
from ridgeline.diagnosis.shares import (
    Kind,
    Shares,
    heavily_preempted,
    overhead_causes,
    unexplained,
)
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.run import Capture, OutOfMemory, Phase, feeding
from ridgeline.records.run_summary import Deciding, Efficiency, MemoryUse, StepTimes, Verdict
from ridgeline.records.sites import LateRank
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Cause, IdleCause, TraceStudy
from ridgeline.records.trust import Trust

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
