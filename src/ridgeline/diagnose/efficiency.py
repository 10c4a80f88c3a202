"""How much of what the device can do a step does: FLOP/s, and their share of the ceiling (MFU).

FLOPs are counted in traced steps, time is of untraced ones. The ceiling is that of the arithmetic
the program uses: fp32 products are held against the fp32 peak, and the name of the dtype says that
another arithmetic may have a higher one.
"""

from ridgeline import units
from ridgeline.diagnose.step_times import rate_ms
from ridgeline.records.machine import Ceiling, Device
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
    ceiling = device.ceiling("matmul", work.dtype) if device is not None else None
    return Efficiency(
        flops_per_step=work.flops,
        flops_s=rate,
        mfu=rate / ceiling.value if rate and ceiling is not None and ceiling.value else None,
        ceiling_flops_s=ceiling.value if ceiling is not None else None,
        ceiling=_named(ceiling) if ceiling is not None else "",
        coverage=about.coverage,
        uncounted=about.uncounted,
    )


def _named(ceiling: Ceiling) -> str:
    if ceiling.source == "datasheet":
        return f"{ceiling.dtype}, datasheet"
    return f"{ceiling.dtype}, measured here{' while others used it' if ceiling.disturbed else ''}"


def _said(one: Uncounted) -> str:
    calls = units.significant(one.calls)
    return f"{one.op} ({calls} a step, {units.percent(one.share)} of operator time)"
