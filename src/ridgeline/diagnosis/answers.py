"""Five questions in the order a performance engineer asks them, answered with numbers.

Is the device busy? Which kernels? Which intensity? Which gaps? Where is the peak? What cannot be
answered says what was not recorded, or why it cannot be believed. An answer is a tuple of clauses,
each a code with its facts; `ridgeline.report.reasons` has their English.
"""

import re
from collections.abc import Iterator, Mapping

from ridgeline.diagnosis.case import Case, not_recorded
from ridgeline.diagnosis.shares import MIN_ROOFLINE_COVERAGE
from ridgeline.records.facts import Reason, because
from ridgeline.records.finding import Answer, AnswerCode, Question
from ridgeline.records.machine import Ceiling
from ridgeline.records.run import NoTrace
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import IdleCause, MemoryCurve, Place

MIN_BUSY_SHARE = 0.8
"""A device that works a smaller share of the step is called idle."""
MAX_NAMED = 3
"""How many kernels, causes and operators are named."""
MIN_COMPUTING_SHARE = 0.5
"""A device that computes a smaller share of its busy time mostly copies, or exchanges with other
ranks."""
MIN_NAMED_SHARE = 0.01
"""A smaller share is not named."""
MIN_UNFORMULATED_SHARE = 0.05
"""Share of operator time without a formula that is mentioned."""
MIN_NAMED_GROWTH_BYTES = 1024
"""Growth of memory a step that is mentioned."""
_IDLE = {"input": "data", "overhead": "host"}
_EXPOSED = {"transfer": "copies", "communication": "communication"}
"""Kinds of time that are partly idle and partly the device's own work."""
_ON_CPU = {"input": "waiting", "communication": "other-ranks", "overhead": "python"}
"""On a CPU only the program itself waits."""
MIN_IDLE_SHARE = 0.02
"""Gaps that are a smaller share of the window in all are not looked into."""
_WRAPPERS = ("Kernel", "Kernel2", "kernel")
"""Names of CUTLASS's wrappers: their template names what runs."""
_NO_TRACE: dict[NoTrace, AnswerCode] = {
    "": AnswerCode.NOT_TRACED,
    "profiles-itself": AnswerCode.PROFILES_ITSELF,
    "disk-full": AnswerCode.DISK_FULL,
    "too-large": AnswerCode.TRACE_TOO_LARGE,
}
_END = because(AnswerCode.END)


def answers(case: Case) -> tuple[Answer, ...]:
    which = Question.KERNELS if case.on_gpu else Question.OPERATORS
    return (
        Answer(question=Question.BUSY, clauses=tuple(_busy(case))),
        Answer(question=which, clauses=tuple(_kernels(case))),
        Answer(question=Question.INTENSITY, clauses=tuple(_intensity(case))),
        Answer(question=Question.GAPS, clauses=tuple(_gaps(case))),
        Answer(question=Question.PEAK, clauses=tuple(_peak(case))),
    )


def _not_known(cause: Reason) -> Reason:
    return because(AnswerCode.NOT_KNOWN, cause=cause)


def _busy(case: Case) -> Iterator[Reason]:
    why = _unbelievable(case)
    if why is not None or case.busy is None:
        yield _not_known(why or _no_trace(case))
        # The driver tells less than it seems: a single small kernel counts as use.
        used = case.telemetered.gpu_utilisation if case.on_gpu else None
        if used is not None:
            yield because(AnswerCode.DRIVER_SAW, share=used)
        return
    # the length printed above every run is the median
    step_s = (case.times.median_ms or case.step_ms) / 1e3
    if not case.on_gpu:
        if text := not_recorded(case):
            yield _not_known(because(AnswerCode.IN_TEXT, text=text))
            return
        # operators of a loader in the same process are its wait, not the model's work
        worked = case.shares.busy if case.shares is not None else case.busy
        yield because(AnswerCode.CPU_WORKS, share=worked, step_s=step_s)
    elif case.shares is not None and case.shares.busy < MIN_COMPUTING_SHARE * case.busy:
        most = _EXPOSED[max(_EXPOSED, key=case.share_of)]
        share = case.shares.busy
        yield because(AnswerCode.BUSY_ONLY_WITH, part=most, share=share, step_s=step_s)
    else:
        busy = case.busy >= MIN_BUSY_SHARE
        yield because(AnswerCode.GPU_WORKS, busy=busy, share=case.busy, step_s=step_s)
    yield from _waiting(case)
    yield _END


def _waiting(case: Case) -> Iterator[Reason]:
    """Yield what the rest of the step is, by the six shares."""
    if not case.on_gpu:
        parts = _largest(case, _ON_CPU)
        taken = case.shares.preempted if case.shares is not None else 0.0
        if taken:
            parts.append(("other-processes", taken))
        yield from _listed(AnswerCode.REST_IS, parts)
        return
    yield from _listed(AnswerCode.WAITS_FOR, _largest(case, _IDLE))
    yield from _listed(AnswerCode.EXPOSED, _largest(case, _EXPOSED))


def _largest(case: Case, names: Mapping[str, str]) -> list[tuple[str, float]]:
    shares = sorted(((case.share_of(kind), name) for kind, name in names.items()), reverse=True)
    return [(name, share) for share, name in shares if share >= MIN_NAMED_SHARE]


def _listed(code: AnswerCode, parts: list[tuple[str, float]]) -> Iterator[Reason]:
    """Yield the clause `code` and the parts of the step behind it; nothing if there are none."""
    if parts:
        yield because(code)
    for number, (name, share) in enumerate(parts):
        yield because(AnswerCode.PART, first=number == 0, part=name, share=share)


def _kernels(case: Case) -> Iterator[Reason]:
    study = case.study
    if study is None:
        yield _not_known(_no_trace(case))
        return
    if not (case.on_gpu and study.kernels):
        rows = [row for row in study.ops if row.share >= MIN_NAMED_SHARE][:MAX_NAMED]
        if not rows:
            yield _not_known(because(AnswerCode.NO_OPERATORS))
            return
        on_device = AnswerCode.OF_DEVICE_TIME if case.on_gpu else AnswerCode.OF_OPERATOR_TIME
        yield because(on_device)
        for number, row in enumerate(rows):
            yield _work(number, row.name, row.share)
        yield _END
        return
    yield because(AnswerCode.OF_DEVICE_TIME)
    shown = study.kernels[:MAX_NAMED]
    for number, kernel in enumerate(shown):
        yield _work(number, short_name(kernel.name), kernel.share, kernel.op)
    left = len(study.kernels) + study.kernels_left_out - len(shown)
    if left > 0:
        yield because(AnswerCode.OTHER_KERNELS, kernels=left)
    yield _END
    kinds = [kind for kind in study.categories[:MAX_NAMED] if kind.share >= MIN_NAMED_SHARE]
    if kinds:
        yield because(AnswerCode.BY_KIND)
        for number, kind in enumerate(kinds):
            yield _work(number, kind.category, kind.share)
        yield _END


def _work(number: int, name: str, share: float, op: str = "") -> Reason:
    return because(AnswerCode.WORK, first=number == 0, name=name, op=op, share=share)


def short_name(kernel: str) -> str:
    """Return a kernel's own name, without return type, namespaces, template and argument lists."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    own = re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip()
    inner = re.match(r"[^<]*<(?:\w+::)*(\w+)", plain)
    if own in _WRAPPERS and inner:
        own = inner[1]
    name = own or kernel
    return name if len(name) <= 60 else f"{name[:59]}…"


def _intensity(case: Case) -> Iterator[Reason]:
    work = case.work
    if work is None:
        yield _not_known(_no_trace(case))
        return
    if not work.bytes or not work.all_flops:
        lacks = AnswerCode.NO_FORMULAS if case.sites.shapes else AnswerCode.NO_SHAPES
        yield _not_known(because(lacks))
        return
    if work.coverage < MIN_ROOFLINE_COVERAGE:
        yield because(AnswerCode.INTENSITY_PARTLY_KNOWN, share=work.coverage)
    else:
        own = work.all_flops / work.bytes
        yield because(
            AnswerCode.STEP_WORK, flops=work.all_flops, bytes=work.bytes, flops_per_byte=own
        )
        yield _ridge(case, own)
        yield _END
    yield from _bounds(work)


def _ridge(case: Case, own: float) -> Reason:
    work, device = case.work, case.device
    most = device.ceiling("matmul", work.dtype) if device is not None and work is not None else None
    memory = _bandwidth(case)
    if most is None or memory is None or not memory.value:
        return because(AnswerCode.RIDGE_UNKNOWN)
    ridge = most.value / memory.value
    return because(AnswerCode.RIDGE, above=own >= ridge, ridge=ridge, dtype=most.dtype)


def _bandwidth(case: Case) -> Ceiling | None:
    if case.device is None:
        return None
    return case.device.ceiling("copy") or case.device.ceiling("triad")


def _bounds(work: StepWork) -> Iterator[Reason]:
    """Yield what limits the operators, and how near they come to it."""
    found = [
        (share, attained, limit)
        for share, attained, limit in (
            (work.compute_share, work.compute_attained, "arithmetic"),
            (work.memory_share, work.memory_attained, "memory"),
        )
        if share is not None and share >= MIN_NAMED_SHARE
    ]
    if not found:
        yield because(AnswerCode.LIMITS_UNKNOWN)
        return
    yield because(AnswerCode.LIMITS)
    for number, (share, attained, limit) in enumerate(found):
        yield because(
            AnswerCode.LIMITED, first=number == 0, share=share, limit=limit, attained=attained
        )
    left = 1 - (work.compute_share or 0.0) - (work.memory_share or 0.0)
    if left >= MIN_UNFORMULATED_SHARE:
        yield because(AnswerCode.REST_WITHOUT_FORMULA, share=left)
    yield _END


def _gaps(case: Case) -> Iterator[Reason]:
    study = case.study
    if study is None:
        yield _not_known(_no_trace(case))
        return
    if text := not_recorded(case):
        yield _not_known(because(AnswerCode.IN_TEXT, text=text))
        return
    if not case.on_gpu:
        yield because(AnswerCode.NO_GAPS_ON_CPU)
        waits = case.share_of("input") + case.share_of("communication")
        if waits >= MIN_NAMED_SHARE:
            yield because(AnswerCode.STEP_WAITS, share=waits)
        return
    if (why := _unbelievable(case)) is not None:
        yield _not_known(why)
        return
    causes = [cause for cause in study.idle.causes if cause.share >= MIN_NAMED_SHARE][:MAX_NAMED]
    whole = sum(device.window.ns for device in study.devices) or study.window.ns
    idle = (study.idle.total_ns or 0) / max(whole, 1)
    if not causes or idle < MIN_IDLE_SHARE:
        yield because(AnswerCode.NO_GAPS, share=idle)
        return
    devices_steps = max(study.window.steps, 1) * max(len(study.devices), 1)
    yield because(AnswerCode.OF_IDLE_TIME)
    for number, cause in enumerate(causes):
        yield _gap(number, cause, devices_steps)
    yield _END
    if not any(cause.places for cause in study.idle.causes):
        yield because(AnswerCode.LINES_UNKNOWN)


def _gap(number: int, cause: IdleCause, steps: int) -> Reason:
    return because(
        AnswerCode.GAP, first=number == 0, idle_cause=cause.cause, share=cause.share,
        place=_place(cause.places[0]) if cause.places else "", gaps=cause.gaps / steps,
    )  # fmt: skip


def _peak(case: Case) -> Iterator[Reason]:
    curve = next(iter(case.study.memory), None) if case.study is not None else None
    traced = curve if curve is not None and curve.peak_bytes > 0 else None
    memory = case.memory
    most = memory.device_peak_bytes if case.on_gpu else memory.host_peak_bytes
    if most:
        if case.on_gpu:
            total = memory.device_total_bytes
            yield because(AnswerCode.DEVICE_PEAK, bytes=most, total_bytes=total)
        else:
            yield because(AnswerCode.HOST_PEAK, bytes=most)
        if traced is None:
            yield because(AnswerCode.NO_ALLOCATIONS)
        else:
            code = AnswerCode.TRACED_PEAK if case.on_gpu else AnswerCode.TRACED_RISE
            yield because(code, bytes=traced.peak_bytes)
            yield from _when(traced)
        yield _END
        growth = case.memory.growth_bytes_per_step or 0.0
        if growth >= MIN_NAMED_GROWTH_BYTES:
            yield because(AnswerCode.GROWS, bytes=growth)
        return
    if traced is None:
        yield _not_known(because(AnswerCode.NO_MEMORY))
        return
    yield because(AnswerCode.PEAK_ON, bytes=traced.peak_bytes, device=traced.device)
    yield from _when(traced)
    if traced.note:
        yield because(AnswerCode.NOTE, text=traced.note)
    yield _END


def _when(curve: MemoryCurve) -> Iterator[Reason]:
    """Yield step, phase, module or operator of the peak, as far as the trace tells them."""
    if curve.peak_step:
        yield because(AnswerCode.IN_STEP, step=curve.peak_step.rpartition("#")[2])
    if curve.peak_phase:
        yield because(AnswerCode.IN_PHASE, phase=curve.peak_phase)
    if curve.peak_module:
        module = " / ".join(curve.peak_module.split(" / ")[-MAX_NAMED:])
        yield because(AnswerCode.IN_MODULE, module=module)
    elif curve.peak_op:
        yield because(AnswerCode.AT_OPERATOR, op=curve.peak_op)


def _no_trace(case: Case) -> Reason:
    return because(_NO_TRACE[case.capture.no_trace if case.capture is not None else ""])


def _unbelievable(case: Case) -> Reason | None:
    """Return why the device's time in the trace cannot be believed; None if it can."""
    study = case.study
    if study is None or not case.on_gpu or study.idle.total_ns is not None:
        return None
    if study.idle.trust.why:
        return because(AnswerCode.IN_TEXT, text=study.idle.trust.why)
    return because(AnswerCode.NO_DEVICE_TIME)


def _place(place: Place) -> str:
    """Return a line and its function as they are shown: `train.py:63 main()`."""
    file = "/".join(re.split(r"[\\/]", place.file)[-2:])
    own = place.function and not place.function.startswith("<")  # <module> is no function
    return f"{file}:{place.line}" + (f" {place.function}()" if own else "")
