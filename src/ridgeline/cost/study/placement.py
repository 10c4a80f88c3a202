"""The roofline class: compute-bound, memory-bound or overhead-bound, with the numbers that decided
it.

Each operator takes at least its FLOPs divided by the ceiling of its dtype, and at least its bytes
divided by the bandwidth. Operators for which the first is longer are limited by arithmetic, the
others by memory. The bounds of both groups are summed, and issuing all operators takes a third
time. The largest of the three is the class.
"""

from collections.abc import Iterable

from msgspec import Struct

from ridgeline.records.cost import Cost, OpCost, Phase
from ridgeline.records.latency import Latency
from ridgeline.records.machine import (
    MAX_SHARE_OF_CEILING,
    Ceiling,
    CeilingState,
    Device,
    Quantity,
)
from ridgeline.records.model import Bottleneck, Placement

MIN_HOST_LIMITED_SHARE = 0.9
"""If issuing takes this share of the whole call or more, the device waits for the host."""

_MATMUL_DTYPES = {
    "float8_e4m3fn": "float8", "float8_e5m2": "float8", "qint8": "int8", "quint8": "int8",
    "uint8": "int8", "complex64": "float32", "complex128": "float64",
}  # fmt: skip


def ceiling_dtype(dtype: str, tf32: bool) -> str:
    """Return the name of an arithmetic dtype in the ceilings of a machine."""
    if dtype == "float32" and tf32:
        return "tf32"
    return _MATMUL_DTYPES.get(dtype, dtype)


def place(
    cost: Cost, phases: tuple[Phase, ...], device: Device, latency: Latency | None, *, tf32: bool
) -> Placement:
    """Return the roofline class of these phases on a device, with the rates if they were timed."""
    ops = [o for o in cost.ops if o.phase in phases]
    dtype = ceiling_dtype(cost.dtype, tf32)
    matmul = _best(device, "matmul", dtype) or _best(device, "matmul", "float32")
    bandwidth = _best(device, "triad", "") or _best(device, "copy", "")
    launch = _best(device, "launch", "")
    peak = matmul.value if matmul else 0.0
    speed = bandwidth.value if bandwidth else 0.0
    floors = _floors(ops, device, peak, speed, tf32)
    roofline_s = floors.limited_by_compute_s + floors.limited_by_memory_s
    operators = sum(o.totals.calls for o in ops if o.totals.bytes)
    overhead_s = operators * launch.value if launch else 0.0
    host_limited = False
    if latency is not None and latency.issue_median_ns is not None:
        issue_s = latency.issue_median_ns / 1e9
        share = latency.issue_median_ns / max(latency.wall_median_ns, 1.0)
        host_limited = share >= MIN_HOST_LIMITED_SHARE and issue_s > roofline_s
        if host_limited:
            overhead_s = max(overhead_s, issue_s - roofline_s)
    bottleneck = _class(floors.limited_by_compute_s, floors.limited_by_memory_s, overhead_s)
    flops, moved = sum(o.totals.flops for o in ops), sum(o.totals.bytes for o in ops)
    seconds = latency.summary.median_ns / 1e9 if latency is not None else None
    share_of_peak = flops / seconds / peak if seconds and peak else None
    state = _state(matmul, bandwidth, launch)
    if state == "usable" and share_of_peak is not None and share_of_peak > MAX_SHARE_OF_CEILING:
        state = "exceeded"
    return Placement(
        bottleneck=bottleneck,
        measured_ms=seconds * 1e3 if seconds else None,
        host_limited=host_limited,
        dtype=dtype,
        flops_per_second=flops / seconds if seconds else None,
        bytes_per_second=moved / seconds if seconds else None,
        percent_of_ceiling=(
            100 * share_of_peak if share_of_peak is not None and state == "usable" else None
        ),
        ceiling_flops=peak,
        ceiling_bytes=speed,
        ceiling_source=matmul.source if matmul else "unknown",
        ceiling_state=state,
        ridge_intensity=peak / speed if speed else 0.0,
        intensity=flops / moved if moved else 0.0,
        compute_floor_ms=floors.compute_s * 1e3,
        memory_floor_ms=floors.memory_s * 1e3,
        compute_limited_ms=floors.limited_by_compute_s * 1e3,
        memory_limited_ms=floors.limited_by_memory_s * 1e3,
        overhead_ms=overhead_s * 1e3,
        operators=operators,
    )


def _best(device: Device, quantity: Quantity, dtype: str) -> Ceiling | None:
    """Return the ceiling of a kind. The roofline class needs one, so a doubtful ceiling is returned
    if there is no other, and the placement says so."""
    return device.ceiling(quantity, dtype) or device.doubtful_ceiling(quantity, dtype)


def _state(*ceilings: Ceiling | None) -> CeilingState:
    states = {ceiling.state for ceiling in ceilings if ceiling is not None}
    return (
        "exceeded" if "exceeded" in states else "disturbed" if "disturbed" in states else "usable"
    )


class Floors(Struct, frozen=True):
    """The least time that the work takes: of all arithmetic, of all memory traffic, of the
    operators limited by arithmetic, and of those limited by memory."""

    compute_s: float
    memory_s: float
    limited_by_compute_s: float
    limited_by_memory_s: float


def _floors(ops: Iterable[OpCost], device: Device, peak: float, speed: float, tf32: bool) -> Floors:
    compute_s = memory_s = limited_by_compute_s = limited_by_memory_s = 0.0
    for op in ops:
        own = _best(device, "matmul", ceiling_dtype(op.dtype, tf32))
        rate = own.value if own else peak
        arithmetic = op.totals.flops / rate if rate else 0.0
        traffic = op.totals.bytes / speed if speed else 0.0
        compute_s += arithmetic
        memory_s += traffic
        if arithmetic >= traffic:
            limited_by_compute_s += arithmetic
        else:
            limited_by_memory_s += traffic
    return Floors(compute_s, memory_s, limited_by_compute_s, limited_by_memory_s)


def _class(compute_s: float, memory_s: float, overhead_s: float) -> Bottleneck:
    times: dict[
        Bottleneck, float
    ] = {  # of equal times the first wins, so that no work at all is overhead
        "overhead-bound": overhead_s,
        "compute-bound": compute_s,
        "memory-bound": memory_s,
    }
    return max(times, key=lambda k: times[k])
