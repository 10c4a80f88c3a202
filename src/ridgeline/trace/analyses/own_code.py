"""Host time in the program's own Python code, and in which of the user's functions it is spent.

The program's own code is what is left outside operators, calls of the device's library, the loader,
the backward and the optimizer. With stacks (with_stack=True) the trace knows which function a
thread was in at any moment. So moments spread evenly over that time show how it is divided among
functions. Without stacks only the total is known.
"""

import numpy as np

from ridgeline.records.sites import OwnCode
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.driving import driving_lanes, on_lanes, time_of
from ridgeline.trace.analyses.phases import phase_spans
from ridgeline.trace.analyses.step_counts import step_spans
from ridgeline.trace.intervals import evenly_spread, merge, subtract
from ridgeline.trace.links import Links
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.trace import Trace

MOMENTS = 4000
"""Number of moments at which the function is looked up: 40 of them are a hundredth of the time."""
MAX_PLACES = 5


def own_code(trace: Trace, links: Links, window: Window) -> OwnCode:
    """Return the time of own code in the mean step on the main thread, and the functions with most
    of it."""
    lanes = driving_lanes(trace, links)
    phases = phase_spans(trace, links)
    known = merge(
        time_of(trace.ops, on_lanes(trace.ops, lanes)),
        time_of(trace.calls, on_lanes(trace.calls, lanes)),
        phases["input"],
        phases["backward"],
        phases["optimizer"],
    )
    spans = subtract(step_spans(trace, window), known)
    steps = max(window.steps, 1)
    places = Places(trace, links)
    if not spans.total or not places.known:
        return OwnCode(ns=spans.total / steps)
    moments = evenly_spread(spans, MOMENTS)
    codes = places.at(np.full(len(moments), links.main_lane, np.int64), moments)
    found, counts = np.unique(codes, return_counts=True)
    each = spans.total / len(moments) / steps
    named = [
        (place, count * each)
        for code, count in zip(found.tolist(), counts.tolist(), strict=True)
        if code != -1 and (place := place_of(places.text(code))) is not None
    ]
    named.sort(key=lambda one: -one[1])
    return OwnCode(ns=spans.total / steps, places=tuple(named[:MAX_PLACES]))
