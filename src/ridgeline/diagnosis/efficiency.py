"""How much of what the device can do a step does: FLOP/s, and their share of the ceiling (MFU).

FLOPs are counted in traced steps, time is of untraced ones. The ceiling is that of the arithmetic
the program uses: fp32 products are held against the fp32 peak, and the name of the dtype says that
another arithmetic may have a higher one. A ceiling that was disturbed when measured, or that the
program exceeds, gives no share.
"""

from ridgeline import units
from ridgeline.diagnosis.step_times import rate_ms
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.run_summary import Efficiency, StepTimes
from ridgeline.records.step_work import StepWork, Uncounted

MOST_UNCOUNTED = 5


def efficiency(work: StepWork | None, times: StepTimes, device: Device | None) -> Efficiency:
    if work is None:
        return Efficiency()
    about = Efficiency(
        coverage=work.coverage,
        uncounted=tuple(_said(one) for one in work.uncounted[:MOST_UNCOUNTED]),
    )
    if work.flops <= 0 or work.trust.confidence == "unreliable":
        return about
    ms = rate_ms(times)
    rate = work.flops * 1e3 / ms if ms else None
    ceiling = _ceiling(device, work.dtype)
    share = rate / ceiling.value if rate and ceiling is not None and ceiling.value else None
    state = ceiling.state if ceiling is not None else ""
    if state == "usable" and share is not None and share > MAX_SHARE_OF_CEILING:
        state = "exceeded"
    return Efficiency(
        flops_per_step=work.flops,
        flops_s=rate,
        mfu=share if state == "usable" else None,
        ceiling_flops_s=ceiling.value if ceiling is not None else None,
        ceiling=_named(ceiling) if ceiling is not None else "",
        ceiling_state=state,
        ceiling_dtype=work.dtype if state else "",
        coverage=about.coverage,
        uncounted=about.uncounted,
    )


def _ceiling(device: Device | None, dtype: str) -> Ceiling | None:
    if device is None:
        return None
    return device.ceiling("matmul", dtype) or device.doubtful_ceiling("matmul", dtype)


def _named(ceiling: Ceiling) -> str:
    return f"{ceiling.dtype}, {'datasheet' if ceiling.source == 'datasheet' else 'measured here'}"


def _said(one: Uncounted) -> str:
    calls = units.significant(one.calls)
    return f"{one.op} ({calls} a step, {units.percent(one.share)} of operator time)"
