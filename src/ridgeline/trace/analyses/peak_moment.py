"""What the program was doing at one moment: phase, operator, module. For the peak of memory."""

import re

import numpy as np
from msgspec import Struct

from ridgeline.trace.analyses.phases import is_optimizer
from ridgeline.trace.columns import Events
from ridgeline.trace.host_names import is_input
from ridgeline.trace.trace import Trace

_MODULE = "nn.Module: "
_ENGINE = "autograd::engine"
_BACKWARD = re.compile(r"autograd::engine|\w+Backward\d*$")


class Moment(Struct, frozen=True, kw_only=True):
    phase: str = ""
    """"" where nothing tells it: no marks, no stacks, no autograd node around."""
    op: str = ""
    """The outermost operator, in the backward the autograd node: what the program asked for."""
    module: str = ""
    """GPT_0 / Block_3: with stacks, and not in the backward."""


def moment(trace: Trace, at: int, lane: int) -> Moment:
    """On one thread: another may be loading the next batch meanwhile."""
    ops, frames = _around(trace, trace.ops, at, lane), _around(trace, trace.frames, at, lane)
    marks = [*_around(trace, trace.annotations, at, lane), *frames]
    modules = [name.removeprefix(_MODULE) for name in frames if name.startswith(_MODULE)]
    return Moment(
        phase=_phase(ops, marks, bool(modules)),
        op=next((name for name in ops if not name.startswith(_ENGINE)), ""),
        module=" / ".join(modules),
    )


def _phase(ops: list[str], marks: list[str], in_module: bool) -> str:
    if any(is_optimizer(name) for name in marks):
        return "optimizer"
    if any(is_input(name) for name in marks):
        return "input"
    if any(_BACKWARD.match(name) for name in ops):
        return "backward"
    return "forward" if in_module else ""


def _around(trace: Trace, table: Events, at: int, lane: int) -> list[str]:
    """Names of the events that hold a moment, the outermost first."""
    rows = np.flatnonzero((table.lane == lane) & (table.ts <= at) & (at < table.end))
    return [trace.text(int(table.name[row])) for row in rows[np.argsort(table.ts[rows])]]
