"""What a trace does not hold, and how to record it."""

from ridgeline.trace.steps import Steps
from ridgeline.trace.trace import Trace


def missing(trace: Trace, steps: Steps) -> tuple[str, ...]:
    found = []
    if not len(trace.device):
        found.append("device work: add ProfilerActivity.CUDA to `activities` (needs a GPU)")
    if not (len(trace.ops) or len(trace.annotations) or len(trace.frames)):
        found.append("operators: add ProfilerActivity.CPU to `activities`")
    stacks = len(trace.frames) or any(
        "Call stack" in trace.text(int(code)) for code in set(trace.ops.info[:2000].tolist())
    )
    if not stacks:
        found.append("lines of your code: profile with `with_stack=True`")
    if len(trace.ops) and not (trace.ops.shape >= 0).any():
        found.append("input shapes, for the roofline: profile with `record_shapes=True`")
    if not len(trace.memory):
        found.append("memory: profile with `profile_memory=True`")
    if not len(steps):
        found.append("steps: call `prof.step()` once an iteration")
    return tuple(found)
