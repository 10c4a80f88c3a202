"""Tells from outside whether a killed program died because memory ran out: it left no error."""

import signal

from msgspec.structs import replace

from ridgeline.diagnosis.run_read import RunRead
from ridgeline.records.run import OutOfMemory
from ridgeline.records.run_summary import MemoryUse

MIN_FULL_SHARE = 0.8
"""A program that was killed with at least this share of the memory resident in its last second was
killed for memory. The share is below 1 because a program that grows fast outruns the samples."""
MIN_FREE_SHARE = 0.03
"""A program was killed for memory if less than this share of the host's memory was free, whichever
program used it."""
MIN_GROWN_SHARE = 0.5
"""A killed program that grew step by step by at least this share of its highest resident size
probably died of it, at a limit that cannot be seen from here (a job manager's)."""
LAST_SAMPLES = 10
"""One second of the watcher's samples."""


def with_death_for_memory(read: RunRead, memory: MemoryUse) -> RunRead:
    """Return `read` with the shortage that the program was killed for; unchanged if it was not
    killed for memory."""
    capture = read.capture
    if capture is None or capture.out_of_memory is not None or not _was_killed(read):
        return read
    room, samples = read.run.environment.memory_bytes, read.telemetry
    sizes = [sum(process.rss_bytes for process in sample.processes) for sample in samples]
    used = max(sizes[-LAST_SAMPLES:], default=0)
    left = [s.host_memory_available_bytes for s in samples[-LAST_SAMPLES:]]
    short = any(one is not None and one < MIN_FREE_SHARE * room for one in left)
    sure = bool(read.run.oom_kills) or bool(room and used >= MIN_FULL_SHARE * room) or short
    grows = (memory.host_growth_bytes_per_step or 0.0) > 0
    if not sure and not (grows and used - _before(read) >= MIN_GROWN_SHARE * used):
        return read
    full = OutOfMemory(
        asked_bytes=0,
        free_bytes=max(room - used, 0),
        total_bytes=room,
        on="host",
        killed=True,
        sure=sure,
        allocated_bytes=used,
        step=max((step.index for step in read.steps), default=0),
    )
    return replace(read, capture=replace(capture, out_of_memory=full))


def _was_killed(read: RunRead) -> bool:
    """Return whether the program ended by SIGKILL, which the kernel, job managers and containers
    use. Where the exit code was not seen, the kernel's own count of kills decides."""
    if read.capture is not None and read.capture.ended != "running":
        return False
    code = read.run.exit_code
    return code == -signal.SIGKILL or (code is None and read.run.oom_kills > 0)


def _before(read: RunRead) -> int:
    """Return the resident size in bytes when the steps began."""
    began = min((step.start_ns for step in read.steps), default=0)
    since = [t for t in read.telemetry if t.at_ns >= began and t.processes]
    return sum(process.rss_bytes for process in since[0].processes) if since else 0
