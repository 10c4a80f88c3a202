"""The processor's ceilings, once for a machine: without them there is no share of a peak."""

from collections.abc import Callable

from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.quick import measure_beside
from ridgeline.records.run_directory import RunDirectory
from ridgeline.trace.host_ceilings import host_device

LEAST_STEPS = 10
Say = Callable[[str], None]


def know_ceilings(directory: RunDirectory, say: Say) -> None:
    """Measures them where a run on the CPU has a trace to hold against them and none are kept.

    A run that was killed or interrupted is not kept waiting for it."""
    capture = directory.capture()
    if (
        capture is None
        or capture.device.kind != "cpu"
        or capture.ended not in ("finished", "stopped")
        or capture.steps < LEAST_STEPS
        or not capture.trace_file
        or host_device(capture.flags.threads, capture.flags.torch) is not None
    ):
        return
    used = {dtype for module in capture.modules for dtype in module.dtypes}
    used |= {autocast.partition(" ")[2] for autocast in capture.flags.autocast}
    dtypes = [dtype for dtype in DTYPES if dtype in used]
    if dtypes:
        say("ridgeline: measuring what this processor can do, once: a few seconds")
        measure_beside(dtypes)
