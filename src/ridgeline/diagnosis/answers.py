"""Five questions in the order a performance engineer asks them, answered with numbers.

Is the device busy? Which kernels? Which intensity? Which gaps? Where is the peak? What cannot be
answered says what was not recorded, or why it cannot be believed.
"""

import re
from collections.abc import Mapping

from ridgeline import units
from ridgeline.diagnosis.case import Case, not_recorded
from ridgeline.diagnosis.shares import MIN_ROOFLINE_COVERAGE
from ridgeline.records.finding import Answer
from ridgeline.records.machine import Ceiling
from ridgeline.records.run import NoTrace
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import IdleCause, KernelRow, MemoryCurve, OpRow, Place

MIN_BUSY_SHARE = 0.8
"""A device that works a smaller share of the step is called idle."""
MAX_NAMED = 3
"""How many kernels, causes and operators are named."""
MIN_COMPUTING_SHARE = 0.5
"""A device that computes a smaller share of its busy time mostly copies, or exchanges with other
ranks."""
MIN_NAMED_SHARE = 0.01
"""A smaller share is not named."""
_IDLE = {"input": "data", "overhead": "the host (Python, launches)"}
_EXPOSED = {"transfer": "copies", "communication": "communication"}
"""Kinds of time that are partly idle and partly the device's own work."""
_ON_CPU = {
    "input": "waiting for data",
    "communication": "other ranks",
    "overhead": "Python and starts of operators",
}
"""On a CPU only the program itself waits."""
MIN_IDLE_SHARE = 0.02
"""Gaps that are a smaller share of the window in all are not looked into."""
_WRAPPERS = ("Kernel", "Kernel2", "kernel")
"""Names of CUTLASS's wrappers: their template names what runs."""
_NO_TRACE: dict[NoTrace, str] = {
    "": "no step was traced",
    "profiles-itself": "no trace: the program profiles itself",
    "disk-full": "no trace: less than 512 MB are free on the disk",
    "too-large": "the trace was larger than 2 GB and was not kept: --trace-steps 1",
}


def answers(case: Case) -> tuple[Answer, ...]:
    return (
        Answer(question="Is the device busy?", text=_busy(case)),
        Answer(
            question="Which kernels?" if case.on_gpu else "Which operators?", text=_kernels(case)
        ),
        Answer(question="Which intensity?", text=_intensity(case)),
        Answer(question="Which gaps?", text=_gaps(case)),
        Answer(question="Where is the peak?", text=_peak(case)),
    )


def _busy(case: Case) -> str:
    if (why := _unbelievable(case)) or case.busy is None:
        return f"Not known: {why or _no_trace(case)}.{_counter(case)}"
    # the length printed above every run is the median
    step = units.seconds((case.times.median_ms or case.step_ms) / 1e3)
    if not case.on_gpu:
        # operators of a loader in the same process are its wait, not the model's work
        worked = case.shares.busy if case.shares is not None else case.busy
        if why := not_recorded(case):
            return f"Not known: {why}."
        return f"The CPU works {_percent(worked)} of a step of {step} on the model{_waiting(case)}."
    part = _percent(case.busy)
    if case.shares is not None and case.shares.busy < MIN_COMPUTING_SHARE * case.busy:
        most = max(_EXPOSED, key=case.share_of)
        own = f"it computes {_percent(case.shares.busy)} of a step of {step}"
        return f"Only with {_EXPOSED[most]}: {own}{_waiting(case)}."
    yes = "Yes" if case.busy >= MIN_BUSY_SHARE else "No"
    return f"{yes}: the GPU works {part} of a step of {step}{_waiting(case)}."


def _counter(case: Case) -> str:
    """Return what the driver tells without a trace, which is less than it seems."""
    used = case.telemetered.gpu_utilisation if case.on_gpu else None
    if used is None:
        return ""
    return f" The driver saw a kernel run {_percent(used)} of the time, however small."


def _waiting(case: Case) -> str:
    """Return what the rest of the step is, by the six shares."""
    if not case.on_gpu:
        taken = case.shares.preempted if case.shares is not None else 0.0
        others = f"other processes {_percent(taken)}" if taken else ""
        rest = ", ".join(text for text in (_named(case, _ON_CPU), others) if text)
        return f"; the rest is {rest}" if rest else ""
    waits, exposed = _named(case, _IDLE), _named(case, _EXPOSED)
    said = f"; it waits for {waits}" if waits else ""
    return f"{said}; exposed: {exposed}" if exposed else said


def _named(case: Case, names: Mapping[str, str]) -> str:
    shares = sorted(((case.share_of(kind), name) for kind, name in names.items()), reverse=True)
    return ", ".join(
        f"{name} {_percent(share)}" for share, name in shares if share >= MIN_NAMED_SHARE
    )


def _kernels(case: Case) -> str:
    study = case.study
    if study is None:
        return f"Not known: {_no_trace(case)}."
    if case.on_gpu and study.kernels:
        said = [_kernel(row) for row in study.kernels[:MAX_NAMED]]
        left = len(study.kernels) + study.kernels_left_out - len(said)
        share = "shares" if left == 1 else "share"
        more = f"; {units.plural(left, 'other kernel')} {share} the rest" if left > 0 else ""
        kinds = [f"{c.category} {_percent(c.share)}" for c in study.categories[:MAX_NAMED]
                 if c.share >= MIN_NAMED_SHARE]  # fmt: skip
        by_kind = f" By kind: {', '.join(kinds)}." if kinds else ""
        return f"Of device time: {', '.join(said)}{more}.{by_kind}"
    rows = [row for row in study.ops if row.share >= MIN_NAMED_SHARE][:MAX_NAMED]
    if not rows:
        return "Not known: the trace holds no operators."
    said = [_operator(row) for row in rows]
    where = "Of device time" if case.on_gpu else "Of operator time"
    return f"{where}: {', '.join(said)}."


def _kernel(row: KernelRow) -> str:
    by = f" ({row.op})" if row.op else ""
    return f"{short_name(row.name)}{by} {_percent(row.share)}"


def _operator(row: OpRow) -> str:
    return f"{row.name} {_percent(row.share)}"


def short_name(kernel: str) -> str:
    """Return a kernel's own name, without return type, namespaces, template and argument lists."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    own = re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip()
    inner = re.match(r"[^<]*<(?:\w+::)*(\w+)", plain)
    if own in _WRAPPERS and inner:
        own = inner[1]
    name = own or kernel
    return name if len(name) <= 60 else f"{name[:59]}…"


def _intensity(case: Case) -> str:
    work = case.work
    if work is None:
        return f"Not known: {_no_trace(case)}."
    if not work.bytes or not work.all_flops:
        why = "shapes were not recorded (record_shapes=True)" if not case.sites.shapes else (
            "no operator of it has a formula"
        )  # fmt: skip
        return f"Not known: {why}."
    if work.coverage < MIN_ROOFLINE_COVERAGE:
        known = f"shapes and formulas tell only {_percent(work.coverage)} of operator time"
        return f"The step's is not known: {known}. {_bounds(work)}"
    own = work.all_flops / work.bytes
    said = (
        f"A step does {units.flop(work.all_flops)} on {units.bytes_(work.bytes)} at least, "
        f"{units.significant(own)} FLOP/byte{_ridge(case, own)}."
    )
    return f"{said} {_bounds(work)}"


def _ridge(case: Case, own: float) -> str:
    work, device = case.work, case.device
    most = device.ceiling("matmul", work.dtype) if device is not None and work is not None else None
    memory = _bandwidth(case)
    if most is None or memory is None or not memory.value:
        return "; where the ridge of this device is, is not known"
    ridge = most.value / memory.value
    side = "above" if own >= ridge else "below"
    return f", {side} the ridge at {units.significant(ridge)} ({most.dtype})"


def _bandwidth(case: Case) -> Ceiling | None:
    if case.device is None:
        return None
    return case.device.ceiling("copy") or case.device.ceiling("triad")


def _bounds(work: StepWork) -> str:
    """Return what limits the operators, and how near they come to it."""
    found = [
        _reached(share, attained, what)
        for share, attained, what in (
            (work.compute_share, work.compute_attained, "arithmetic"),
            (work.memory_share, work.memory_attained, "memory"),
        )
        if share is not None and share >= MIN_NAMED_SHARE
    ]
    if not found:
        return "How near its operators come to their ceilings is not known."
    left = 1 - (work.compute_share or 0.0) - (work.memory_share or 0.0)
    rest = f"; {_percent(left)} has no formula" if left >= 0.05 else ""
    return f"Of operator time {'; '.join(found)}{rest}."


def _reached(share: float, attained: float | None, what: str) -> str:
    near = f" and reaches {_percent(attained)} of that ceiling" if attained is not None else ""
    return f"{_percent(share)} is limited by {what}{near}"


def _gaps(case: Case) -> str:
    study = case.study
    if study is None:
        return f"Not known: {_no_trace(case)}."
    if why := not_recorded(case):
        return f"Not known: {why}."
    if not case.on_gpu:
        return "None to look for: on a CPU the operators are the host's own work." + _hidden(case)
    if why := _unbelievable(case):
        return f"Not known: {why}."
    causes = [cause for cause in study.idle.causes if cause.share >= MIN_NAMED_SHARE][:MAX_NAMED]
    whole = sum(device.window.ns for device in study.devices) or study.window.ns
    idle = (study.idle.total_ns or 0) / max(whole, 1)
    if not causes or idle < MIN_IDLE_SHARE:
        return f"None worth a word: the device idles {_percent(idle)} of the time."
    per = max(study.window.steps, 1) * max(len(study.devices), 1)
    said = [_cause(cause, per) for cause in causes]
    unplaced = not any(cause.places for cause in study.idle.causes)
    lines = " Lines are not known: stacks were not recorded (with_stack=True)." if unplaced else ""
    return f"Of the idle time: {'; '.join(said)}.{lines}"


def _cause(cause: IdleCause, steps: int) -> str:
    at = f" at {_place(cause.places[0])}" if cause.places else ""
    often = cause.gaps / steps
    times = f", {units.significant(often, 2)} gaps a step" if often >= 2 else ""
    return f"{cause.cause} {_percent(cause.share)}{at}{times}"


def _hidden(case: Case) -> str:
    waits = case.share_of("input") + case.share_of("communication")
    return f" {_percent(waits)} of the step waits, for data or other ranks." * (
        waits >= MIN_NAMED_SHARE
    )


def _peak(case: Case) -> str:
    curve = next(iter(case.study.memory), None) if case.study is not None else None
    memory = case.memory
    most = memory.device_peak_bytes if case.on_gpu else memory.host_peak_bytes
    if most:
        total = memory.device_total_bytes
        whole = f" of {units.bytes_(total)}" if total else ""
        where = f"{units.bytes_(most)}{whole}" if case.on_gpu else (
            f"{units.bytes_(most)} resident, the program and its workers"
        )  # fmt: skip
        return f"{where}{_traced_peak(curve)}.{_grows(case)}"
    if curve is None or curve.peak_bytes <= 0:
        return "Not known: memory was not recorded (profile_memory=True)."
    noted = f" ({curve.note})" if curve.note else ""
    return f"{units.bytes_(curve.peak_bytes)} on {curve.device}{_when(curve)}{noted}."


def _traced_peak(curve: MemoryCurve | None) -> str:
    if curve is None or curve.peak_bytes <= 0:
        return "; when is not known: no allocation was traced"
    return f"; of the traced steps the highest is {units.bytes_(curve.peak_bytes)}{_when(curve)}"


def _when(curve: MemoryCurve) -> str:
    """Return step, phase, module or operator of the peak, as far as the trace tells them."""
    said = []
    if curve.peak_step:
        said.append(f"in step {curve.peak_step.removeprefix('ProfilerStep#')}")
    if curve.peak_phase:
        said.append(f"in the {curve.peak_phase}")
    if curve.peak_module:
        said.append(f"in {' / '.join(curve.peak_module.split(' / ')[-MAX_NAMED:])}")
    elif curve.peak_op:
        said.append(f"at {curve.peak_op}")
    return f", {', '.join(said)}" if said else ""


def _grows(case: Case) -> str:
    growth = case.memory.growth_bytes_per_step or 0.0
    return f" It grows {units.bytes_(growth)} a step." if growth >= 1024 else ""


def _no_trace(case: Case) -> str:
    return _NO_TRACE[case.capture.no_trace if case.capture is not None else ""]


def _unbelievable(case: Case) -> str:
    """Return why the device's time in the trace cannot be believed; empty if it can."""
    study = case.study
    if study is None or not case.on_gpu or study.idle.total_ns is not None:
        return ""
    return study.idle.trust.why or "the trace does not tell the device's time"


def _place(place: Place) -> str:
    file = "/".join(re.split(r"[\\/]", place.file)[-2:])
    own = place.function and not place.function.startswith("<")  # <module> is no function
    return f"{file}:{place.line}" + (f" {place.function}()" if own else "")


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
