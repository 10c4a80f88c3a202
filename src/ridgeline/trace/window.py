"""The span every figure is over: chosen once, stated, the last step never dropped.

By default it is the device's activity, first start to last end: what every interval union of the
same file gives, so that figures can be checked. With chosen steps ("3-5", or "all" of them) it is
from the first one's mark to the end of the last one's device work.
"""

import numpy as np

from ridgeline.records.trace import Window
from ridgeline.trace.steps import Steps, steps_of
from ridgeline.trace.trace import Trace


def window_of(trace: Trace, wanted: str | None = None) -> Window:
    steps = steps_of(trace)
    if wanted == "all" and not len(steps):
        wanted = None
    if wanted is not None:
        return _of_steps(trace, steps, steps.chosen(wanted), wanted)
    device = trace.device
    if len(device):
        start, end = int(device.ts.min()), int(device.end.max())
        inside = (steps.end > start) & (steps.start < end)
        return Window(
            start_ns=start, end_ns=end, basis="device activity", steps=int(inside.sum()),
            note=_edges(steps, start, end),
        )  # fmt: skip
    held = [t for t in (trace.ops, trace.calls, trace.annotations, trace.frames) if len(t)]
    if not held:
        return Window(start_ns=0, end_ns=0, basis="nothing: no timed work in the trace")
    start = min(int(t.ts.min()) for t in held)
    end = max(int(t.end.max()) for t in held)
    return Window(
        start_ns=start, end_ns=end, basis="host activity (no device work)", steps=len(steps)
    )


def _of_steps(trace: Trace, steps: Steps, chosen: Steps, wanted: str) -> Window:
    start, end = int(chosen.start[0]), int(chosen.end[-1])
    after = steps.start[steps.start >= end]
    limit = int(after[0]) if len(after) else None
    device = trace.device
    if len(device) and limit is None:  # the last step: its work runs on after the mark
        end = max(end, int(device.end.max()))
    plural = "step" if len(chosen) == 1 else "steps"
    holes = int(np.diff(chosen.number).max(initial=1)) > 1
    return Window(
        start_ns=start, end_ns=end, steps=len(chosen),
        basis=f"all {plural}" if wanted == "all" else f"{plural} {wanted}",
        note="steps between the chosen ones are inside" if holes else "",
    )  # fmt: skip


def _edges(steps: Steps, start: int, end: int) -> str:
    """What the marks say of time the window leaves out or runs beyond."""
    if not len(steps):
        return ""
    lead = start - int(steps.start[0])
    over = end - int(steps.end[-1])
    said = []
    if lead > 0:
        said.append(
            f"the first step began {lead / 1e6:.3f} ms before the first device work "
            "(--steps all includes it)"
        )
    if over > 0:
        said.append(f"the last step's device work ran {over / 1e6:.3f} ms past its mark")
    return "; ".join(said)
