"""The traced window as a list of events to be gone through again: launches, and waits of the host.

Threads that launch take turns (the main one waits while backward's works), so their launches in
order of time are one host's. Time between two marked steps is the profiler's, and left out.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.sites import Replay
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.step_counts import step_spans
from ridgeline.trace.intervals import covered, intersect, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

MOST = 40_000
"""Events: gone through some twenty times in Python, half a second in all."""

Times = NDArray[np.int64]


class Asking(Struct, frozen=True):
    """What asks for a wait: an operator, a call, the printing of a tensor."""

    site: int
    lane: int
    start: int
    end: int


def replay_of(
    trace: Trace,
    links: Links,
    window: Window,
    askings: Sequence[Asking],
    blocked: Mapping[int, int],
    stays: tuple[bool, ...],
) -> Replay | None:
    """`blocked`: of each row of `trace.calls` that waits its site, or -2. None: too many."""
    spans = step_spans(trace, window)
    call = links.device_call
    known = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], -1)
    rows = np.flatnonzero((call >= 0) & (covered(spans, known, known + 1) > 0))
    waits = np.array(sorted(blocked), np.int64)
    waits = waits[covered(spans, trace.calls.ts[waits], trace.calls.ts[waits] + 1) > 0]
    if not len(rows) or len(rows) + len(waits) > MOST:
        return None
    # the host is at a wait when its call begins, a launch in the same call just before; and it goes
    # on from the wait's end
    at = np.concatenate([known[rows], trace.calls.ts[waits]])
    until = np.concatenate([known[rows], trace.calls.end[waits]])
    is_wait = np.concatenate([np.zeros(len(rows), bool), np.ones(len(waits), bool)])
    order = np.lexsort((is_wait, at))
    at, until, is_wait = at[order], until[order], is_wait[order]
    left = np.append(at[:1], np.maximum.accumulate(until)[:-1])
    asked = sorted(askings, key=lambda one: one.start)
    inside = union(np.array([a.start for a in asked]), np.array([a.end for a in asked]))
    own = covered(spans, np.minimum(left, at), at)
    asking = covered(intersect(spans, inside), np.minimum(left, at), at)
    streams = np.unique(trace.device.stream[rows], return_inverse=True)[1]
    dur = np.concatenate([trace.device.dur[rows], np.full(len(waits), -1)])[order]
    stream = np.concatenate([streams, np.zeros(len(waits), np.int64)])[order]
    site = _sites(at, asked)
    held = np.array([blocked[int(row)] for row in waits], np.int64)
    site[is_wait] = np.concatenate([np.zeros(len(rows), np.int64), held])[order][is_wait]
    return Replay(
        steps=max(window.steps, 1),
        before_ns=tuple((own - asking).tolist()),
        asking_ns=tuple(asking.tolist()),
        site=tuple(site.tolist()),
        dur_ns=tuple(dur.tolist()),
        stream=tuple(stream.tolist()),
        stays=stays,
    )


def _sites(at: Times, asked: Sequence[Asking]) -> Times:
    """Of each moment the site of the asking around it; -1: none."""
    if not asked:
        return np.full(len(at), -1, np.int64)
    start = np.array([one.start for one in asked], np.int64)
    row = np.searchsorted(start, at, side="right") - 1
    found = np.full(len(at), -1, np.int64)
    for i, index in enumerate(row.tolist()):
        if index >= 0 and at[i] < asked[index].end:
            found[i] = asked[index].site
    return found
