"""The optimizer's class, from the mark torch puts around its step: Optimizer.step#SGD.step."""

import re

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.driving import started_in
from ridgeline.trace.trace import Trace

_STEP = re.compile(r"Optimizer\.step#(\w+)\.step$")


def optimizer_name(trace: Trace, window: Window) -> str:
    """Of several, the one whose steps take longest."""
    marks = trace.annotations
    inside = started_in(marks, window.start_ns, window.end_ns)
    taken: dict[str, int] = {}
    for name, dur in zip(marks.name[inside].tolist(), marks.dur[inside].tolist(), strict=True):
        if (told := _STEP.match(trace.text(name))) is not None:
            taken[told[1]] = taken.get(told[1], 0) + dur
    return max(taken, key=lambda name: (taken[name], name), default="")
