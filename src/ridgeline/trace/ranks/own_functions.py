"""How long each rank is in each of the user's own functions, side by side.

An all-reduce makes all ranks' steps equally long. Where the main thread was outside of collectives
still tells them apart: a rank that is late spends its time in a function the others are not in.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np

from ridgeline.records.collective_site import RankPlace
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.step_counts import step_spans
from ridgeline.trace.intervals import evenly_spread, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.ranks.collectives import collectives
from ridgeline.trace.trace import Trace

MOMENTS = 4000
"""Looked at in each rank's steps: 40 of them are a hundredth of the time."""
MOST = 12


def own_functions(
    traces: Sequence[Trace],
    links: Sequence[Links],
    windows: Sequence[Window],
    numbers: Sequence[int],
) -> tuple[RankPlace, ...]:
    """The largest differences first; nothing without Python stacks."""
    if len(traces) < 2:
        return ()
    spent = [_spent(t, li, w) for t, li, w in zip(traces, links, windows, strict=True)]
    found = []
    for rank, own in enumerate(spent):
        for name, ns in own.items():
            place = place_of(name)
            others = median(other[name] for r, other in enumerate(spent) if r != rank)
            if place is not None and ns > others:
                found.append(
                    RankPlace(rank=numbers[rank], place=place, ns=ns, others_ns=float(others))
                )
    return tuple(sorted(found, key=lambda one: one.others_ns - one.ns)[:MOST])


def _spent(trace: Trace, links: Links, window: Window) -> Counter[str]:
    """Nanoseconds a step on the main thread, by the innermost function of the user's."""
    places = Places(trace, links)
    found: Counter[str] = Counter()
    told = collectives(trace, links)
    waiting = union(told.start, told.end) if told.source == "host" else union(*_none())
    spans = subtract(step_spans(trace, window), waiting)
    if not places.known or not spans.total:
        return found
    moments = evenly_spread(spans, MOMENTS)
    codes = places.at(np.full(len(moments), links.main_lane, np.int64), moments)
    each = spans.total / len(moments) / max(window.steps, 1)
    names, counts = np.unique(codes, return_counts=True)
    for code, count in zip(names.tolist(), counts.tolist(), strict=True):
        if code != -1:
            found[places.text(code)] += round(count * each)
    return found


def _none() -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, np.int64), np.empty(0, np.int64)
