"""How much memory the program took, of the device and of the host, and whether it grows."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.run import Capture, Window
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step import Step
from ridgeline.records.telemetry import Telemetry
from ridgeline.statistics.trend import fold, kendall_score, trend

FEWEST_READINGS = 3
SHORTEST_SPAN = 20
"""Steps between the first reading and the last: over fewer, an allocator's own growth looks like
the program's."""
RESIDENT_READINGS = 30
"""Three seconds of samples of a resident size; a third of a second of start-up reads as 59 MiB a
step."""
STEADY_READINGS = 15
"""Half of that is enough where each third of it rises at the pace of the whole: start-up does not,
and a program of two seconds leaks no less than a long one."""
_STEADY = 0.75
"""Of the pace of the whole, at least, in each third: 0.9 of a leak of 1.1 MiB a step over 22
samples; 0.3 where the host's allocator took 50 MiB in a second and then no more."""
_SETTLING = 3
"""Samples after a trace, in which what it freed is used up."""
_GROWS_Z = 2.1  # of Mann-Kendall: a resident size wanders, and only what keeps rising is growth


def memory_use(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> MemoryUse:
    on_gpu = capture is not None and capture.device.kind == "cuda"
    read = [(s.index, s.memory) for s in steps if s.memory is not None]
    peaks = [m.peak_bytes for _, m in read]
    reserved = [m.reserved_bytes for _, m in read]
    full = capture.out_of_memory if capture is not None else None
    if full is not None:
        peaks.append(full.allocated_bytes)
        reserved.append(full.reserved_bytes)
    total = capture.device.memory_bytes if capture is not None and on_gpu else 0
    total = total or (full.total_bytes if full is not None else 0)
    on_host = _on_host(capture, steps, telemetry)
    return MemoryUse(
        device_peak_bytes=max(peaks, default=0) or None if on_gpu else None,
        device_reserved_bytes=max(reserved, default=0) or None if on_gpu else None,
        device_total_bytes=total or None,
        host_peak_bytes=_host_peak(capture, steps, telemetry) or None,
        retries=max((m.retries for _, m in read), default=0),
        growth_bytes_per_step=_on_device(steps) if on_gpu else on_host,
        host_growth_bytes_per_step=on_host,
    )


def _resident(sample: Telemetry) -> int:
    return sum(process.rss_bytes for process in sample.processes)


def _own(sample: Telemetry) -> int:
    return sum(process.rss_bytes for process in sample.processes if not process.worker)


def _host_peak(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> int:
    """Most of the whole run, less what our trace left in memory: its events and libraries stay to
    the end, and 593 MiB were seen of a program that takes 310. What it added is what the program
    itself (not its workers) holds more when it goes on after the trace than before it. Where no
    sample is from before the first trace, all of them count as they are."""
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
    """(begin, end) of each traced window, in order, with the time it took to be written: until the
    next step begins."""
    windows = capture.windows if capture is not None else ()
    found = []
    for window in windows:
        if window.kind == "traced" and window.start_ns:
            end = max(window.end_ns, window.start_ns)
            found.append((window.start_ns, min((s.start_ns for s in steps if s.start_ns >= end),
                                               default=end)))  # fmt: skip
    return sorted(found)


def _on_device(steps: Sequence[Step]) -> float | None:
    """Of what is allocated at the end of a step, which a steady program leaves as it found it."""
    read = [(s.index, s.memory.allocated_bytes) for s in _later(steps) if s.memory is not None]
    return _growth([i for i, _ in read], [b for _, b in read])


def _on_host(
    capture: Capture | None, steps: Sequence[Step], telemetry: Sequence[Telemetry]
) -> float | None:
    """Of the program's resident size after the last traced step, whose events take memory too. The
    samples are placed between the steps by the clock, and beyond the last one that was counted by
    the length of a step. Resident sizes jump and settle: only what still rises in the later half,
    at half the pace or more, is growth."""
    later = _after_trace(steps)
    if len(later) < 2:
        return None
    ends = np.array([s.start_ns + s.dur_ns for s in later], dtype=np.float64)
    indices = np.array([s.index for s in later], dtype=np.float64)
    until = max([ends[-1], *(w.end_ns for w in _alone(capture))])
    inside = [t for t in telemetry if ends[0] <= t.at_ns <= until and t.processes]
    if len(inside) < STEADY_READINGS + _SETTLING:
        return None
    clock = np.array([t.at_ns for t in inside], dtype=np.float64)
    length = max(float(np.median([s.dur_ns for s in later])), 1.0)
    beyond = np.maximum(clock - ends[-1], 0.0) / length
    at = np.interp(clock, ends, indices) + beyond
    own = [_own(t) for t in inside]
    if len(inside) < RESIDENT_READINGS:
        return _steady(at.tolist(), own)
    half = len(own) // 2
    whole, late = _growth(at.tolist(), own), _growth(at[half:].tolist(), own[half:])
    if whole is None or late is None:
        return None
    return whole if abs(late) >= abs(whole) / 2 and late * whole > 0 else 0.0


def _steady(at: Sequence[float], own: Sequence[int]) -> float | None:
    """Growth of a few samples, where each third of them rises as the whole does; else unknown."""
    at, own = at[_SETTLING:], own[_SETTLING:]
    whole = _growth(at, own)
    if whole is None or whole <= 0:
        return None
    part = len(own) // 3
    ends = [0, part, len(own) - part, len(own) - 1]
    paces = [(own[b] - own[a]) / max(at[b] - at[a], 1e-9) for a, b in pairwise(ends)]
    return whole if min(paces) >= _STEADY * whole else None


def _alone(capture: Capture | None) -> list[Window]:
    """After the timed steps the program goes on, and its memory is still looked at."""
    windows = capture.windows if capture is not None else ()
    return [window for window in windows if window.kind == "alone"]


def _after_trace(steps: Sequence[Step]) -> list[Step]:
    ordered = sorted(steps, key=lambda s: s.index)
    last = max((s.index for s in ordered if s.window not in ("light", "settle")), default=-1)
    return [s for s in ordered if s.index > last and s.window == "light"]


def _later(steps: Sequence[Step]) -> list[Step]:
    """Without the settling ones: caches and optimizer state are made in the first steps."""
    return [s for s in sorted(steps, key=lambda s: s.index) if s.window != "settle"]


def _growth(places: Sequence[float], sizes: Sequence[float]) -> float | None:
    """Bytes a step, 0.0 where it does not keep rising or falling; None where too little is known.
    The median slope of all pairs, so that one reading in the middle of a step moves nothing."""
    at, size = _distinct(places, sizes)
    if size.size < FEWEST_READINGS or at[-1] - at[0] < SHORTEST_SPAN:
        return None
    at, size = fold(at), fold(size)
    slope, rises = trend(size, at)
    certain = rises in (m := size.size * (size.size - 1) / 2, -m)
    return slope if certain or kendall_score(rises, size.size) > _GROWS_Z else 0.0


def _distinct(
    places: Sequence[float], sizes: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at, first = np.unique(np.asarray(places, dtype=np.float64), return_index=True)
    return at, np.asarray(sizes, dtype=np.float64)[first]
