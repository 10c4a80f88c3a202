"""Measures the processor's ceilings once for a machine: without them there is no MFU. Ceilings that
may not be used (disturbed when measured, or exceeded since) are measured again when the machine is
quiet.
"""

from collections.abc import Callable

from ridgeline.machine.ceiling_cache import mark_exceeded, measure_in_child_process
from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.telemetry import busy_percent_now
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import Efficiency
from ridgeline.trace.ceilings import host_entry

LEAST_STEPS = 10
MAX_BUSY_PERCENT = 15.0
"""Doubtful ceilings are measured again only if the machine's processors are used up to this
percentage: above it the new measurement would be disturbed as well."""
Say = Callable[[str], None]


def know_ceilings(directory: RunDirectory, say: Say) -> None:
    """Measure the ceilings if a run on the CPU has a trace to compare with them and no usable ones
    are stored.

    A run that was killed or interrupted is not kept waiting for it."""
    capture = directory.capture()
    if (
        capture is None
        or capture.device.kind != "cpu"
        or capture.ended not in ("finished", "stopped")
        or capture.steps < LEAST_STEPS
        or not capture.trace_file
    ):
        return
    kept = host_entry(capture.flags.threads, capture.flags.torch)
    if kept is not None and (not kept.doubtful or not _is_quiet()):
        return
    used = {dtype for module in capture.modules for dtype in module.dtypes}
    used |= {autocast.partition(" ")[2] for autocast in capture.flags.autocast}
    dtypes = [dtype for dtype in DTYPES if dtype in used]
    if dtypes:
        say("ridgeline: measuring what this processor can do, once: a few seconds")
        measure_in_child_process(dtypes)


def _is_quiet() -> bool:
    busy = busy_percent_now()
    return busy is not None and busy <= MAX_BUSY_PERCENT


def remember_exceeded(directory: RunDirectory, found: Efficiency) -> None:
    """Mark the processor's stored ceiling as exceeded, if this run was faster than it."""
    capture = directory.capture()
    if found.ceiling_state != "exceeded" or capture is None or capture.device.kind != "cpu":
        return
    kept = host_entry(capture.flags.threads, capture.flags.torch)
    if kept is not None:
        mark_exceeded(kept.key, "matmul", found.ceiling_dtype)
