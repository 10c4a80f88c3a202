"""The shortest a call can take: its arithmetic at the device's peak, and the memory it must touch.

A time below that was not spent on the work.
"""

from collections.abc import Mapping

import torch
from msgspec import Struct

from ridgeline.cost.study.placement import ceiling_dtype
from ridgeline.equality.calls.observed import Evidence, Work
from ridgeline.errors import RidgelineError
from ridgeline.machine import cached, measure
from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.identity import describe
from ridgeline.records.comparison import Guard
from ridgeline.records.machine import Device, Quantity

NAME = "roofline floor"
ARITHMETIC_SHARE = 0.8
"""A peak is measured with one shape; another may do some per cent better."""
TRAFFIC_SHARE = 0.5
"""Reading alone is faster than the copying that bandwidth is measured with: on a CPU a copy moves
a third more than it counts, because a line is read before it is written."""
WINOGRAD = 4
"""Convolutions have algorithms that need as little as a quarter of the multiplications counted."""
CACHE_TIMES = 2
AGAIN_BUDGET_S = 2.0
"""Time limit for measuring a ceiling again that a variant has exceeded."""


class Floor(Struct, frozen=True, kw_only=True):
    arithmetic_ns: float = 0.0
    traffic_ns: float = 0.0
    missing: str = ""
    """Why there is none."""


def examine_floor(
    evidence: Evidence,
    measured_ns: float,
    device: str,
    ceilings: Device | None = None,
    *,
    may_measure: bool = True,
) -> Guard:
    """Whether a measured time is one that `device` could have taken. `ceilings` in place of those
    measured here earlier; `may_measure`: there is time to measure an exceeded one again."""
    work = _largest(evidence)
    if work is None:
        return _not_looked_for(evidence.work_why or "its work was not counted")
    if work.unseen:
        return _not_looked_for(f"part of its work is in {' and '.join(work.unseen)}, not counted")
    known = ceilings or _ceilings(device)
    if known is None:
        return _not_looked_for(f"no ceiling of {device} is known: `ridgeline hardware` measures it")
    guard = _held_against(work, measured_ns, known)
    if guard.outcome == "failed" and ceilings is None:
        # Either the work was not done, or the stored ceiling is too low. Measuring the ceiling
        # again tells which.
        if not may_measure:
            return _not_looked_for("ceiling exceeded, and no time was left to measure it again")
        guard = _held_against(work, measured_ns, _measured_again(device, work) or known)
    return guard


def _held_against(work: Work, measured_ns: float, device: Device) -> Guard:
    found = floor_ns(work, device)
    if found.missing:
        return _not_looked_for(found.missing)
    for floor, share, what in (
        (found.arithmetic_ns, ARITHMETIC_SHARE, "its arithmetic"),
        (found.traffic_ns, TRAFFIC_SHARE, "the memory it touches"),
    ):
        if measured_ns < share * floor:
            return Guard(
                name=NAME,
                outcome="failed",
                detail=f"{_time(measured_ns)} a call is less than {what} takes at this device's "
                f"peak: {_time(floor)}",
            )
    highest = max(found.arithmetic_ns, found.traffic_ns)
    return Guard(
        name=NAME,
        outcome="passed",
        detail=f"{_time(measured_ns)} a call, {_time(highest)} the least possible"
        if highest
        else "no work that a ceiling applies to",
    )


def floor_ns(work: Work, device: Device) -> Floor:
    """The least time for some work on a device, from the ceilings known of it."""
    arithmetic, missing = _arithmetic(work.flops, device)
    convolution, also = _arithmetic(work.convolution_flops, device)
    speed = max((_peak(device, q, "") for q in ("copy", "triad")), default=0.0)
    touched = work.read_bytes + work.written_bytes
    # What stayed in the cache since the last call need not come from memory.
    far = touched - device.cache_bytes
    traffic = 0.0
    if speed and device.cache_bytes and touched > CACHE_TIMES * device.cache_bytes:
        traffic = 1e9 * far / speed
    unknown = missing + also
    if unknown and not (arithmetic or convolution or traffic):
        busy = any(c.quantity == "matmul" and c.dtype in unknown for c in device.ceilings)
        why = "was measured on a quiet machine" if busy else "is known"
        return Floor(missing=f"no ceiling {why} for {', '.join(dict.fromkeys(unknown))}")
    return Floor(arithmetic_ns=arithmetic + convolution / WINOGRAD, traffic_ns=traffic)


def _arithmetic(flops: Mapping[str, int], device: Device) -> tuple[float, list[str]]:
    total, missing = 0.0, []
    for dtype, count in flops.items():
        # Which float32 products go through TF32 or bfloat16 is a switch that may have been turned
        # since: the fastest of them is the one that nothing can beat.
        names = ("float32", "tf32", "bfloat16") if dtype == "float32" and _fast() else (dtype,)
        peak = max(_peak(device, "matmul", ceiling_dtype(name, tf32=False)) for name in names)
        if peak:
            total += 1e9 * count / peak
        else:
            missing.append(dtype)
    return total, missing


def _fast() -> bool:
    try:
        precise = torch.get_float32_matmul_precision() == "highest"
        return not precise or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # both of torch's switches for it were used
        return True


def _peak(device: Device, quantity: Quantity, dtype: str) -> float:
    """Return the highest usable ceiling of a kind, whatever its source; 0 if there is none."""
    found = [
        c.value
        for c in device.ceilings
        if c.quantity == quantity and c.dtype == dtype and c.state == "usable"
    ]
    return max(found, default=0.0)


def _largest(evidence: Evidence) -> Work | None:
    """Of the two counts, the one where more was done: the other may have been remembered."""
    counts = [work for work in (evidence.work, evidence.work_fresh) if work is not None]
    return max(counts, key=lambda work: work.amount, default=None)


def _measured_again(device: str, work: Work) -> Device | None:
    names = {ceiling_dtype(name, tf32=False) for name in (*work.flops, *work.convolution_flops)}
    dtypes = [dtype for dtype in DTYPES if dtype in names]
    try:
        return measure(device, dtypes, budget_s=AGAIN_BUDGET_S)
    except (RidgelineError, RuntimeError):
        return None


def _ceilings(device: str) -> Device | None:
    try:
        known = cached(device) or describe(torch.device(device))
    except (RidgelineError, RuntimeError):
        return None
    return known if known.ceilings else None


def _not_looked_for(why: str) -> Guard:
    return Guard(name=NAME, outcome="not looked for", detail=why)


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"
