"""Works out how much memory the program took, of device and host, and whether it grows."""

import signal
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.diagnosis.recorded_run import RunRead
from ridgeline.records.run import Capture, OutOfMemory, ProcessSample, Step, Telemetry, Window
from ridgeline.records.run_summary import MemoryRole, MemoryUse, RoleMemory
from ridgeline.statistics.samples import fold, kendall_score, trend

MIN_READINGS = 3
MIN_SPAN_STEPS = 20
"""How many steps must lie between the first reading and the last: over fewer, an allocator's own
growth looks like the program's."""
MIN_RESIDENT_READINGS = 30
"""Three seconds of samples of a resident size: a third of a second of start-up reads as 59 MiB a
step."""
MIN_STEADY_READINGS = 15
"""Half as many samples are enough if each third of them rises at the pace of the whole. Start-up
does not rise so, and a program of two seconds leaks no less than a long one."""
_MIN_STEADY_PACE = 0.75
"""The least pace of each third, as a share of the whole's. It was 0.9 in a leak of 1.1 MiB a step
over 22 samples, and 0.3 when the host's allocator took 50 MiB in a second and then no more."""
MIN_EXACT_READINGS = 6
"""Fewest readings of an allocator's own count, which is exact: two in each third of the span."""
MIN_THIRD_PACE = 0.5
"""The second and the last third must each grow at this share of the overall pace or faster. A leak
that speeds up (one more hook registered every few steps) begins slowly, so the first third must
only rise."""
MIN_LATER_SHARE = 0.25
"""Later, while the program runs alone, the resident size must still grow at this share of the
earlier growth or faster. Steps are then estimated from the clock, which counts the pauses between
epochs as steps."""
MIN_LATER_STEPS = 8
MIN_LATER_BYTES = 8 * 2**20
"""The resident size counts as growing, however long it took, if it rose by what this many steps
leave behind and by this many bytes, more than it varies by itself. Time does not count here because
a busy machine makes later steps slower."""
MAX_LEFT_AT_END_SHARE = 0.25
"""Memory counts as given back if at most this share of what was collected is left at the end of the
program."""
SETTLING_SAMPLES = 3
"""How many samples after a trace are left out: what the trace freed is used up in them."""
MIN_KENDALL_SCORE = 2.1
"""The Mann-Kendall score of growth: a resident size wanders, and only what keeps rising is
growth."""


def memory_use(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> MemoryUse:
    on_gpu = capture is not None and capture.device.kind == "cuda"
    read = [(s.index, s.memory) for s in steps if s.memory is not None]
    peaks = [m.peak_bytes for _, m in read]
    reserved = [m.reserved_bytes for _, m in read]
    full = capture.out_of_memory if capture is not None else None
    if full is not None and full.on == "host":
        full = None
    if full is not None:
        peaks.append(full.allocated_bytes)
        reserved.append(full.reserved_bytes)
    total = capture.device.memory_bytes if capture is not None and on_gpu else 0
    total = total or (full.total_bytes if full is not None else 0)
    exact = _of_malloc(capture, steps, telemetry)
    on_host = _on_host(capture, steps, telemetry) if exact is None else exact
    on_device = _on_device(steps) if on_gpu else on_host
    return MemoryUse(
        device_peak_bytes=max(peaks, default=0) or None if on_gpu else None,
        device_reserved_bytes=max(reserved, default=0) or None if on_gpu else None,
        device_total_bytes=total or None,
        host_peak_bytes=_host_peak(capture, steps, telemetry) or None,
        roles=_by_role(telemetry),
        retries=max((m.retries for _, m in read), default=0),
        growth_bytes_per_step=on_device,
        host_growth_bytes_per_step=on_host,
        host_growth_exact=exact is not None,
        growth_released=_was_released(capture, steps, on_gpu),
    )


def _resident(sample: Telemetry) -> int:
    return sum(process.rss_bytes for process in sample.processes)


def _own(sample: Telemetry) -> int:
    return sum(process.rss_bytes for process in sample.processes if not process.worker)


def _by_role(telemetry: Sequence[Telemetry]) -> tuple[RoleMemory, ...]:
    """Return the memory of the program's processes by what they are for, at the moment at which all
    together had most; nothing for a program of one process."""
    crowded = [sample for sample in telemetry if len(sample.processes) > 1]
    if not crowded:
        return ()
    peak = max(crowded, key=_resident)
    roles = sorted(map(_role, peak.processes))
    divided = [
        sample
        for sample in crowded
        if all(p.pss_bytes for p in sample.processes)
        and sorted(map(_role, sample.processes)) == roles
    ]
    near = min(divided, key=lambda s: abs(s.at_ns - peak.at_ns), default=None)
    found = []
    for role in get_args(MemoryRole):
        mine = [p for p in peak.processes if _role(p) == role]
        shares = [p.pss_bytes for p in near.processes if _role(p) == role] if near else []
        if mine:
            found.append(
                RoleMemory(
                    role=role, processes=len(mine), rss_bytes=sum(p.rss_bytes for p in mine),
                    pss_bytes=sum(shares) if len(shares) == len(mine) else None,
                )
            )  # fmt: skip
    return tuple(found)


def _role(process: ProcessSample) -> MemoryRole:
    if not process.worker:
        return "program"
    return "loader workers" if process.loader else "other processes"


def _host_peak(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> int:
    """Return the peak of the whole run, less what our trace left in memory. Its events and
    libraries stay to the end: 593 MiB were seen of a program that takes 310. The trace added what
    the program itself (not its workers) holds more after the trace than before it. Without a sample
    from before the first trace, all samples count as they are."""
    marks = _traces(capture, steps)
    if not any(_resident(t) for t in telemetry if not marks or t.at_ns < marks[0][0]):
        marks = []
    most = added = last = 0
    for sample in sorted(telemetry, key=lambda t: t.at_ns):
        while marks and sample.at_ns >= marks[0][1]:
            marks.pop(0)
            added += max(level - last, 0) if (level := _own(sample)) else 0
        if marks and sample.at_ns >= marks[0][0]:
            continue
        last = _own(sample) - added
        most = max(most, _resident(sample) - added)
    return most


def _traces(capture: Capture | None, steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the begin and the end of each traced window, in order. A window ends when the next
    step begins, because writing the trace takes time."""
    windows = capture.windows if capture is not None else ()
    found = []
    for window in windows:
        if window.kind == "traced" and window.start_ns:
            end = max(window.end_ns, window.start_ns)
            found.append((window.start_ns, min((s.start_ns for s in steps if s.start_ns >= end),
                                               default=end)))  # fmt: skip
    return sorted(found)


def _on_device(steps: Sequence[Step]) -> float | None:
    """Return the growth, in bytes a step, of what the device's allocator has handed out at the end
    of each step; None if too little is known."""
    read = [(s.index, s.memory.allocated_bytes) for s in _later(steps) if s.memory is not None]
    return _low_water_growth([i for i, _ in read], [b for _, b in read])


def _of_malloc(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> float | None:
    """Return the growth, in bytes a step, of what malloc has handed out at the end of each step;
    None if too little is known. Only steps after the last trace count, because the events of a
    trace take memory, too. Return 0.0 if the resident size stands still later on: a buffer that was
    being filled during the readings is then full."""
    read = [
        (s.index, s.memory.host_bytes)
        for s in _after_trace(steps)
        if s.memory is not None and s.memory.host_bytes
    ]
    rate = _low_water_growth([i for i, _ in read], [b for _, b in read])
    if not rate or rate < 0:
        return rate
    return 0.0 if _stood_still(capture, steps, telemetry, rate) else rate


def _stood_still(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry], rate: float
) -> bool:
    """Return whether the program's resident size rose far more slowly than `rate` once the program
    ran alone."""
    windows = _alone(capture)
    light = [s.dur_ns for s in steps if s.window == "light"]
    if not windows or not light:
        return False
    begin, end = windows[0].start_ns, windows[-1].end_ns
    alone = _until_released([t for t in telemetry if begin <= t.at_ns <= end and t.processes])
    died = capture is not None and capture.out_of_memory is not None
    if died or len(alone) < MIN_RESIDENT_READINGS:
        return False
    first, last = alone[len(alone) // 2], alone[-1]
    passed = (last.at_ns - first.at_ns) / max(float(np.median(light)), 1.0)
    rise = _own(last) - _own(first)
    if rise >= max(MIN_LATER_STEPS * rate, MIN_LATER_BYTES):
        return False
    return rise < MIN_LATER_SHARE * rate * passed


def _until_released(samples: Sequence[Telemetry]) -> Sequence[Telemetry]:
    """Return the samples up to the moment when memory was given back: the steps are over then."""
    highest = max((_own(sample) for sample in samples), default=0)
    high = [i for i, s in enumerate(samples) if _own(s) >= highest - MIN_LATER_BYTES]
    return samples[: high[-1] + 1] if high else samples


def _low_water_growth(places: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Return the bytes by which each step raises the low-water mark, the level that memory never
    falls below again. Return 0.0 if that level does not keep rising, and None if too little is
    known.

    Memory that is given back later (a generation's key-value cache, the outputs of an evaluation)
    leaves the low-water mark where it was. A full buffer, or caches that have settled, stop raising
    it. So the mark's later thirds must rise about as fast as the whole."""
    at, size = _distinct(places, sizes)
    if size.size < MIN_EXACT_READINGS or at[-1] - at[0] < MIN_SPAN_STEPS:
        return None
    mark = np.minimum.accumulate(size[::-1])[::-1]
    whole = float(mark[-1] - mark[0]) / float(at[-1] - at[0])
    edges = np.searchsorted(at, np.linspace(at[0], at[-1], 4)).clip(0, at.size - 1)
    paces = [float(mark[b] - mark[a]) / max(float(at[b] - at[a]), 1.0) for a, b in pairwise(edges)]
    steady = paces[0] > 0 and min(paces[1:]) >= MIN_THIRD_PACE * whole
    return whole if whole > 0 and steady else 0.0


def _was_released(capture: Capture | None, steps: Sequence[Step], on_gpu: bool) -> bool:
    """Return whether most of the memory collected over the steps was given back before the program
    ended. It then belonged to a function that has returned."""
    end = capture.memory_at_end if capture is not None else None
    if capture is None or end is None or capture.ended not in ("finished", "stopped"):
        return False
    every = _later(steps) if on_gpu else _after_trace(steps)
    levels = [m.allocated_bytes if on_gpu else m.host_bytes for s in every if (m := s.memory)]
    if not levels or max(levels) <= levels[0]:
        return False
    left = (end.allocated_bytes if on_gpu else end.host_bytes) - levels[0]
    return left <= MAX_LEFT_AT_END_SHARE * (max(levels) - levels[0])


def _on_host(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> float | None:
    """Return the growth of the program's resident size, in bytes a step, after the last traced
    step, whose events take memory too. The samples are placed between the steps by the clock, and
    beyond the last counted step by the length of a step. Resident sizes jump and settle: only what
    still rises in the later half, at half the pace or more, is growth."""
    later = _after_trace(steps)
    if len(later) < 2:
        return None
    ends = np.array([s.start_ns + s.dur_ns for s in later], dtype=np.float64)
    indices = np.array([s.index for s in later], dtype=np.float64)
    until = max([ends[-1], *(w.end_ns for w in _alone(capture))])
    inside = [t for t in telemetry if ends[0] <= t.at_ns <= until and t.processes]
    if len(inside) < MIN_STEADY_READINGS + SETTLING_SAMPLES:
        return None
    clock = np.array([t.at_ns for t in inside], dtype=np.float64)
    length = max(float(np.median([s.dur_ns for s in later])), 1.0)
    beyond = np.maximum(clock - ends[-1], 0.0) / length
    at = np.interp(clock, ends, indices) + beyond
    own = [_own(t) for t in inside]
    if len(inside) < MIN_RESIDENT_READINGS:
        return _steady(at.tolist(), own)
    half = len(own) // 2
    whole, late = _growth(at.tolist(), own), _growth(at[half:].tolist(), own[half:])
    if whole is None or late is None:
        return None
    return whole if abs(late) >= abs(whole) / 2 and late * whole > 0 else 0.0


def _steady(at: Sequence[float], own: Sequence[int]) -> float | None:
    """Return the growth of a few samples if each third of them rises as the whole does; else
    None."""
    at, own = at[SETTLING_SAMPLES:], own[SETTLING_SAMPLES:]
    whole = _growth(at, own)
    if whole is None or whole <= 0:
        return None
    part = len(own) // 3
    ends = [0, part, len(own) - part, len(own) - 1]
    paces = [(own[b] - own[a]) / max(at[b] - at[a], 1e-9) for a, b in pairwise(ends)]
    return whole if min(paces) >= _MIN_STEADY_PACE * whole else None


def _alone(capture: Capture | None) -> list[Window]:
    """Return the windows after the timed steps, in which the program runs alone and its memory is
    still watched."""
    windows = capture.windows if capture is not None else ()
    return [window for window in windows if window.kind == "alone"]


def _after_trace(steps: Sequence[Step]) -> list[Step]:
    ordered = sorted(steps, key=lambda s: s.index)
    last = max((s.index for s in ordered if s.window not in ("light", "settle")), default=-1)
    return [s for s in ordered if s.index > last and s.window == "light"]


def _later(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without the settling ones, which make caches and optimizer state."""
    return [s for s in sorted(steps, key=lambda s: s.index) if s.window != "settle"]


def _growth(places: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Return the growth in bytes a step: 0.0 if the size does not keep rising or falling, None if
    too little is known. It is the median slope of all pairs, so that one reading in the middle of a
    step moves nothing."""
    at, size = _distinct(places, sizes)
    if size.size < MIN_READINGS or at[-1] - at[0] < MIN_SPAN_STEPS:
        return None
    at, size = fold(at), fold(size)
    slope, rises = trend(size, at)
    certain = rises in (m := size.size * (size.size - 1) / 2, -m)
    return slope if certain or kendall_score(rises, size.size) > MIN_KENDALL_SCORE else 0.0


def _distinct(
    places: Sequence[float], sizes: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at, first = np.unique(np.asarray(places, dtype=np.float64), return_index=True)
    return at, np.asarray(sizes, dtype=np.float64)[first]


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
    worker = _lost_worker(read)
    if capture is None or capture.out_of_memory is not None or not (worker or _was_killed(read)):
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
    taken = capture.steps_taken
    full = OutOfMemory(
        asked_bytes=0,
        free_bytes=max(room - used, 0),
        total_bytes=room,
        on="host",
        killed=True,
        worker=worker,
        sure=sure,
        allocated_bytes=min(used, room) if room else used,  # sizes count shared pages twice
        step=taken or max((step.index for step in read.steps), default=0),
        unwatched=taken is None and bool(_alone(capture)),
    )
    return replace(read, capture=replace(capture, out_of_memory=full))


def _was_killed(read: RunRead) -> bool:
    """Return whether the program ended by SIGKILL, which the kernel, job managers and containers
    use. Where the exit code was not seen, the kernel's own count of kills decides."""
    if read.capture is not None and read.capture.ended != "running":
        return False
    code = read.run.exit_code
    return code == -signal.SIGKILL or (code is None and read.run.oom_kills > 0)


def _lost_worker(read: RunRead) -> bool:
    """Return whether the kernel killed a worker for memory, and the program ended by the error that
    this raises in it."""
    had_workers = any(process.worker for sample in read.telemetry for process in sample.processes)
    raised = read.capture is not None and read.capture.ended == "raised"
    return raised and had_workers and read.run.oom_kills > 0


def _before(read: RunRead) -> int:
    """Return the resident size in bytes when the steps began."""
    began = min((step.start_ns for step in read.steps), default=0)
    since = [t for t in read.telemetry if t.at_ns >= began and t.processes]
    return sum(process.rss_bytes for process in since[0].processes) if since else 0
