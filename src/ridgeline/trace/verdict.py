"""The verdict: what held the device back, or what it was busy with."""

import re
from collections.abc import Sequence

from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.trace import KernelRow, OpRow, TraceStudy, TraceVerdict

MIN_BUSY_SHARE = 0.95
"""From this share of busy time on, the verdict says what the device was busy with, and not why it
idled."""
MIN_COPY_SHARE = 0.5
"""From this share of copies between host and device on, a busy device does no useful work."""
_LINK = re.compile(r"Memcpy (?:HtoD|DtoH)|Copy(?:HostToDevice|DeviceToHost)")
_GPUS = re.compile(r"^nccl:|cudnn|cublas|^cuda|::_(?:flash|efficient)_attention")
"""Operators that only run on a GPU."""


def verdict(study: TraceStudy) -> Reason:
    """Return the verdict of a study that is complete but for it."""
    if not study.devices:
        return _host_only(study)
    idle = study.idle
    measured = [device for device in study.devices if device.busy_ns is not None]
    if not measured or idle.total_ns is None:
        doubt = study.devices[0].trust.why or idle.trust.why
        return because(TraceVerdict.UNKNOWN, doubt=doubt)
    total = sum(device.window.ns for device in measured)
    busy = sum(device.busy_ns or 0 for device in measured)
    share = busy / total if total else 0.0
    windows = sorted({device.window.ns for device in measured})
    longest = windows[-1] if len(windows) > 1 else None
    facts: dict[str, Fact] = {
        "share": share, "devices": len(measured), "window_ns": windows[0], "longest_ns": longest,
    }  # fmt: skip
    copied = copied_share(study.kernels)
    if copied >= MIN_COPY_SHARE and copied * share > 1 - share:
        return Reason(TraceVerdict.COPIES.value, facts | {"copied_share": copied})
    if share >= MIN_BUSY_SHARE or not idle.causes:
        if not study.categories:
            return Reason(TraceVerdict.BUSY.value, facts)
        top = study.categories[0]
        work: dict[str, Fact] = {"category": top.category, "category_share": top.share}
        return Reason(TraceVerdict.BUSY_WITH.value, facts | work)
    cause = idle.causes[0]
    idled: dict[str, Fact] = {
        "share": 1 - share, "idle_cause": cause.cause, "cause_share": cause.share,
        "place": f"{cause.places[0].file}:{cause.places[0].line}" if cause.places else "",
    }  # fmt: skip
    return Reason(TraceVerdict.IDLE.value, facts | idled)


def copied_share(kernels: Sequence[KernelRow]) -> float:
    """Return the share of device time that copies between host and device take."""
    return sum(row.share for row in kernels if _LINK.search(row.name))


def on_gpus(ops: Sequence[OpRow], backend: str) -> str:
    """Return the backend or operator that shows that the program uses a GPU, for a trace without
    device work; "" if there is none."""
    if backend == "nccl":
        return backend
    return next((row.name for row in ops if _GPUS.search(row.name)), "")


def _host_only(study: TraceStudy) -> Reason:
    errors = (c for c in study.validation if c.severity == "error" and "idle" in c.affects)
    error = next(errors, None)
    if error is not None:
        return because(TraceVerdict.UNKNOWN, doubt=error.claim)
    if not study.window.ns:
        return because(TraceVerdict.NO_TIMED_WORK)
    if not study.ops:
        return because(TraceVerdict.NO_OPERATORS, window_ns=study.window.ns)
    top = max(study.ops, key=lambda row: row.host_self_ns)
    if evidence := on_gpus(study.ops, study.backend):
        return because(
            TraceVerdict.GPU_NOT_RECORDED, evidence=evidence, op=top.name, ns=top.host_self_ns
        )
    return because(TraceVerdict.HOST_ONLY, op=top.name, ns=top.host_self_ns)
