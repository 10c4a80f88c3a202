"""A program that was killed for memory left no word about it: what was seen from outside tells."""

import signal

from msgspec.structs import replace

from ridgeline.diagnose.run_read import RunRead
from ridgeline.records.run import OutOfMemory
from ridgeline.records.run_summary import MemoryUse

FULL_SHARE = 0.8
"""Of the memory there is: resident in the last second, from here on it is what a program was killed
for. A program that grows fast outruns the samples by some of it."""
MIN_FREE_SHARE = 0.03
"""Of the memory there is: less was left on the whole host, whoever used it."""
MIN_GROWN_SHARE = 0.5
"""Of the highest resident size: a program that grew by so much, step by step, and was then killed
at a limit that nobody can see from here (a job manager's), probably died of it."""
LAST_SAMPLES = 10
"""One second of the watcher's samples."""


def with_death_for_memory(read: RunRead, memory: MemoryUse) -> RunRead:
    """Return `read` with the shortage that the program was killed for, where it was."""
    capture = read.capture
    if capture is None or capture.out_of_memory is not None or not _was_killed(read):
        return read
    room, samples = read.run.environment.memory_bytes, read.telemetry
    sizes = [sum(process.rss_bytes for process in sample.processes) for sample in samples]
    used = max(sizes[-LAST_SAMPLES:], default=0)
    left = [s.host_memory_available_bytes for s in samples[-LAST_SAMPLES:]]
    short = any(one is not None and one < MIN_FREE_SHARE * room for one in left)
    sure = bool(read.run.oom_kills) or bool(room and used >= FULL_SHARE * room) or short
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
    """By SIGKILL, which is how the kernel, a job manager or a container ends it; where nobody saw
    the exit code, by the kernel's own count."""
    if read.capture is not None and read.capture.ended != "running":
        return False
    code = read.run.exit_code
    return code == -signal.SIGKILL or (code is None and read.run.oom_kills > 0)


def _before(read: RunRead) -> int:
    """The resident size when the steps began."""
    began = min((step.start_ns for step in read.steps), default=0)
    since = [t for t in read.telemetry if t.at_ns >= began and t.processes]
    return sum(process.rss_bytes for process in since[0].processes) if since else 0
