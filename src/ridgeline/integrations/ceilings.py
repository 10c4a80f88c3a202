"""The processor's ceilings, once for a machine: without them there is no share of a peak. Ceilings
that decide nothing (disturbed when measured, exceeded since) are measured again when it is quiet.
"""

from collections.abc import Callable

from ridgeline.machine.cache import mark_exceeded
from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.quick import measure_beside
from ridgeline.machine.telemetry import busy_percent_now
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import Efficiency
from ridgeline.trace.host_ceilings import host_entry

LEAST_STEPS = 10
MAX_BUSY_PERCENT = 15.0
"""Use of the machine's processors up to which disturbed ceilings are measured again: above it they
would be disturbed once more."""
Say = Callable[[str], None]


def know_ceilings(directory: RunDirectory, say: Say) -> None:
    """Measures them where a run on the CPU has a trace to hold against them and no usable ones are
    kept.

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
        measure_beside(dtypes)


def _is_quiet() -> bool:
    busy = busy_percent_now()
    return busy is not None and busy <= MAX_BUSY_PERCENT


def remember_exceeded(directory: RunDirectory, found: Efficiency) -> None:
    """Marks the kept ceiling of a processor that this run was faster than."""
    capture = directory.capture()
    if found.ceiling_state != "exceeded" or capture is None or capture.device.kind != "cpu":
        return
    kept = host_entry(capture.flags.threads, capture.flags.torch)
    if kept is not None:
        mark_exceeded(kept.key, "matmul", found.ceiling_dtype)
