"""The middle steps of a long trace, as a trace of their own.

What a step is made of can be told from a few of them: the diagnosis of 5 million events took as
long as reading them, that of 250,000 takes a second. Rows that reach into the span are kept, so
that functions which began before it are still around what they call.
"""

import numpy as np

from ridgeline.trace.columns import Events
from ridgeline.trace.steps import steps_of
from ridgeline.trace.trace import Trace

MOST_EVENTS = 250_000
LEAST_STEPS = 5
"""However many events they have: fewer say little of what varies."""


def middle_part(trace: Trace) -> tuple[Trace, str] | None:
    """The part, and its steps as `--steps` would have them; None where the whole is short enough,
    or has too few marks to be cut."""
    events, steps = trace.origin.events, steps_of(trace)
    wanted = max(LEAST_STEPS, len(steps) * MOST_EVENTS // max(events, 1))
    if events <= MOST_EVENTS or len(steps) < wanted + 2:
        return None
    first = (len(steps) - wanted) // 2
    last = first + wanted - 1
    # one step more on either side: work is launched ahead, and runs on behind its mark
    start, end = int(steps.start[first - 1]), int(steps.end[last + 1])

    def load(name: str) -> Events:
        table: Events = getattr(trace, name)
        return table.take(np.flatnonzero((table.ts < end) & (table.end > start)))

    part = Trace(trace.origin, trace.metadata, trace.texts, trace.lanes, load)
    return part, f"{int(steps.number[first])}-{int(steps.number[last])}"
