"""The beginning and the end of a run: run.json is written first, the summary last.

The program waits while its run begins. Modules that only the end needs are therefore imported
inside the functions of the end.
"""

import contextlib
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ridgeline.harness.capture.environment import environment
from ridgeline.records.facts import because
from ridgeline.records.run import RunFile, Settings, Target
from ridgeline.records.run_directory import RunDirectory, started
from ridgeline.records.run_summary import Efficiency, MissingCode, RunSummary
from ridgeline.version import __version__

MIN_FREE_DISK_BYTES = 64 * 1024
"""With less than this free on the disk, a program may have been unable to write how it ended."""
MIN_STEPS_FOR_CEILINGS = 10
"""Ceilings are measured only after a run of at least this many steps."""
MAX_BUSY_PERCENT = 15.0
"""Doubtful ceilings are measured again only if the machine's processors are used up to this
percentage: above it the new measurement would be disturbed as well."""
Say = Callable[[str], None]


def begin_run(directory: RunDirectory, target: Target, settings: Settings, ranks: int = 1) -> None:
    """Write run.json, the first file of a run."""
    run = RunFile(
        name=directory.name,
        target=target,
        settings=settings,
        environment=environment(Path.cwd()),
        pid=os.getpid(),
        pid_started=started(os.getpid()),
        began_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        began_ns=time.perf_counter_ns(),
        ranks=ranks,
        ridgeline=__version__,
    )
    directory.write_whole(directory.run_file.name, msgspec.json.encode(run))


def finish_run(
    directory: RunDirectory,
    ended_ns: int,
    exit_code: int | None = None,
    missing: str = "",
    say: Say = lambda text: None,
    oom_kills: int = 0,
) -> RunSummary:
    """Pack the traces of a run that is over, and write its summary beside what was recorded."""
    from ridgeline.diagnosis.conclusion import concluded_case
    from ridgeline.diagnosis.stored_case import store_case
    from ridgeline.harness.capture.tracing import pack
    from ridgeline.records.runs import remove_unfinished

    if not directory.open_ranks():
        remove_unfinished(directory)
    pack(directory)
    _measure_missing_ceilings(directory, say)
    run = replace(directory.run(), exit_code=exit_code, oom_kills=oom_kills)
    with contextlib.suppress(OSError):  # the summary is also drawn from run.json
        directory.write_whole(directory.run_file.name, msgspec.json.encode(run))
    summary, case = concluded_case(directory)
    if summary.status == "killed" and _ended_unrecorded(directory, exit_code):
        lost = because(MissingCode.LAST_WORDS)
        summary = replace(summary, status="finished", missing=(*summary.missing, lost))
    _mark_exceeded_ceiling(directory, summary.efficiency)
    if missing:
        summary = replace(summary, missing=(*summary.missing, missing))
    ended = replace(
        run,
        status=summary.status,
        why=summary.why,
        ended_ns=ended_ns,
        bytes_on_disk=directory.size(),
    )
    if case is not None:
        store_case(directory, summary, case)
    with contextlib.suppress(OSError):
        directory.write_whole(directory.summary_file.name, msgspec.json.encode(summary))
        directory.write_whole(directory.findings_file.name, msgspec.json.encode(summary.findings))
        directory.write_whole(directory.run_file.name, msgspec.json.encode(ended))
    return summary


def _ended_unrecorded(directory: RunDirectory, exit_code: int | None) -> bool:
    """Return whether the program ended by itself but could not write so: no signal ended it, and
    the disk is full."""
    if exit_code is None or exit_code < 0:
        return False
    try:
        disk = os.statvfs(directory.path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < MIN_FREE_DISK_BYTES


def _measure_missing_ceilings(directory: RunDirectory, say: Say) -> None:
    """Measure the processor's ceilings, without which there is no MFU, if a run on the CPU has a
    trace to compare with them and no usable ones are stored. Ceilings that were disturbed when
    measured, or exceeded since, are measured again when the machine is quiet.

    A run that was killed or interrupted is not kept waiting for it."""
    from ridgeline.machine.ceiling_cache import measure_in_child_process
    from ridgeline.machine.datasheet import DTYPES
    from ridgeline.machine.telemetry import busy_percent_now
    from ridgeline.trace.ceilings import host_entry

    capture = directory.capture()
    if (
        capture is None
        or capture.device.kind != "cpu"
        or capture.ended not in ("finished", "stopped")
        or capture.steps < MIN_STEPS_FOR_CEILINGS
        or not capture.trace_file
    ):
        return
    stored = host_entry(capture.flags.threads, capture.flags.torch)
    if stored is not None and not stored.doubtful:
        return
    if stored is not None:
        busy_percent = busy_percent_now()
        if busy_percent is None or busy_percent > MAX_BUSY_PERCENT:
            return
    used = {dtype for module in capture.modules for dtype in module.dtypes}
    used |= {autocast.partition(" ")[2] for autocast in capture.flags.autocast}
    dtypes = [dtype for dtype in DTYPES if dtype in used]
    if dtypes:
        say("ridgeline: measuring what this processor can do, once: a few seconds")
        measure_in_child_process(dtypes)


def _mark_exceeded_ceiling(directory: RunDirectory, efficiency: Efficiency) -> None:
    """Mark the processor's stored ceiling as exceeded, if this run was faster than it."""
    from ridgeline.machine.ceiling_cache import mark_exceeded
    from ridgeline.trace.ceilings import host_entry

    capture = directory.capture() if efficiency.ceiling_state == "exceeded" else None
    if capture is None or capture.device.kind != "cpu":
        return
    stored = host_entry(capture.flags.threads, capture.flags.torch)
    if stored is not None:
        mark_exceeded(stored.key, "matmul", efficiency.ceiling_dtype)
