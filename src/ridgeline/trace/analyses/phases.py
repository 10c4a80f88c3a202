"""The window by phase of training: input, forward, backward, optimizer, and other.

Each moment of host time belongs to one phase, the first of input, optimizer, backward and forward
that covers it, so the five phases add up to the window. What an optimizer runs as its closure,
`optimizer.step(closure)`, is forward and backward, as in a run. The backward runs on a thread of
its own (without a device, on the main thread). While the main thread waits for it, the time belongs
to the backward. The device time of a phase is the sum of the work launched in it.
"""

import re
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.sites import OwnCode
from ridgeline.records.trace import Phase, Window
from ridgeline.trace.host_states import driving_lanes, is_input, launched
from ridgeline.trace.intervals import (
    NOTHING,
    Spans,
    Times,
    clip,
    covered,
    evenly_spread,
    intersect,
    merge,
    subtract,
    time_of,
    union,
)
from ridgeline.trace.links import Links
from ridgeline.trace.places import place_of, user_places
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import rows_in, step_spans

PhaseName = Literal["input", "forward", "backward", "optimizer", "other"]
PHASES: tuple[PhaseName, ...] = ("input", "forward", "backward", "optimizer", "other")
CODED_PHASES: tuple[PhaseName, ...] = ("other", "input", "forward", "backward", "optimizer")
"""The phases in the order of the numbers that `phase_codes` returns."""

_OPTIMIZER = re.compile(r"torch/optim/.*: (step|zero_grad|profile_hook_step|wrapper)$")
_BACKWARD = re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): (backward|grad)$")


def phases(trace: Trace, links: Links, window: Window) -> tuple[Phase, ...]:
    if window.ns <= 0:
        return ()
    spans = phase_spans(trace, links)
    inside = rows_in(trace.device, window)
    dur = trace.device.dur[inside]
    moment, lane = launched(trace, links)
    moment, known = moment[inside], lane[inside] >= 0
    host: dict[PhaseName, int] = {}
    device: dict[PhaseName, int] = {}
    for name, span in spans.items():
        host[name] = clip(span, window.start_ns, window.end_ns).total
        launched_in = known & (covered(span, moment, moment + 1) > 0)
        device[name] = int(dur[launched_in].sum())
    host["other"] = window.ns - sum(host.values())
    device["other"] = int(dur.sum()) - sum(device.values())
    return tuple(
        Phase(
            phase=name,
            host_ns=host[name],
            device_ns=device[name],
            share=host[name] / window.ns,
        )
        for name in PHASES
    )


@once_per_trace
def phase_spans(trace: Trace, links: Links) -> dict[PhaseName, Spans]:
    """Return disjoint spans of the four phases, over the whole trace."""
    lanes = driving_lanes(trace, links)
    feeding = _named(trace, lanes, is_input)
    optimizer = _named(trace, lanes, is_optimizer)
    closure_forward, closure_backward = _closures(trace, optimizer, feeding, lanes)
    optimizer = subtract(optimizer, merge(feeding, closure_forward, closure_backward))
    backward = _backward(trace, links, merge(feeding, optimizer))
    backward = subtract(subtract(backward, feeding), optimizer)
    forward = merge(_forward(trace, links, lanes), closure_forward)
    for taken in (feeding, optimizer, backward):
        forward = subtract(forward, taken)
    return {"input": feeding, "optimizer": optimizer, "backward": backward, "forward": forward}


def _closures(
    trace: Trace, optimizer: Spans, feeding: Spans, lanes: NDArray[np.int64]
) -> tuple[Spans, Spans]:
    """Return the forwards and the backwards that optimizers ran as their closures.

    A forward comes before a backward in the same call of the optimizer, and its operators have
    numbers for autograd. An update runs without gradients, so its operators have none."""
    ops, spans, marked = trace.ops, trace.annotations, _is_backward(trace)
    ran = intersect(time_of(ops, marked), optimizer)
    call = np.searchsorted(ran.start, optimizer.end) - 1  # the last backward in each call
    rows = np.flatnonzero(np.searchsorted(ran.start, optimizer.start) <= call)
    if not len(rows):
        return NOTHING, NOTHING
    before = union(optimizer.start[rows], ran.end[call[rows]])
    zeroing = time_of(spans, trace.names_where(spans.name, _is_zeroing))
    others = merge(feeding, zeroing)
    inside = np.isin(ops.lane, lanes) & ~marked & (covered(before, ops.ts, ops.ts + 1) > 0)
    numbered = (ops.sequence >= 0) & (covered(others, ops.ts, ops.ts + 1) == 0)
    forward = subtract(time_of(ops, inside & numbered), ran)
    others = merge(others, subtract(time_of(ops, inside & ~numbered), merge(forward, ran)))
    return _stretches(forward, merge(others, ran)), _stretches(ran, merge(others, forward))


def _is_zeroing(name: str) -> bool:
    return name.startswith("Optimizer.zero_grad")


def phase_codes(trace: Trace, links: Links, moments: Times) -> NDArray[np.int64]:
    """Return the phase of each moment, as an index into CODED_PHASES."""
    codes = np.zeros(len(moments), np.int64)
    for name, span in phase_spans(trace, links).items():
        codes[covered(span, moments, moments + 1) > 0] = CODED_PHASES.index(name)
    return codes


def _named(trace: Trace, lanes: NDArray[np.int64], test: Callable[[str], bool]) -> Spans:
    """Return the spans that torch marks itself, and the Python functions behind them where stacks
    were recorded."""
    return merge(
        *(
            time_of(table, trace.names_where(table.name, test) & np.isin(table.lane, lanes))
            for table in (trace.annotations, trace.frames)
        )
    )


def is_optimizer(name: str) -> bool:
    return name.startswith("Optimizer.") or _OPTIMIZER.search(name) is not None


def _is_backward_call(name: str) -> bool:
    return _BACKWARD.search(name) is not None


def _backward(trace: Trace, links: Links, taken: Spans) -> Spans:
    ops, calls, main = trace.ops, trace.calls, links.main_lane
    marked = _is_backward(trace)
    # a thread other than the main one that runs backward operators runs nothing else
    engines = np.unique(ops.lane[marked & (ops.lane != main)]).astype(np.int64)
    ran = marked | np.isin(ops.lane, engines)
    work = merge(time_of(ops, ran), time_of(calls, np.isin(calls.lane, engines)))
    called = merge(
        _named(trace, np.array([main]), _is_backward_call),
        time_of(trace.annotations, _spans_named(trace, "backward")),
    )
    if not len(work):
        return called
    # between two stretches of work of its own, the main thread waits for the backward
    own = merge(
        time_of(ops, (ops.lane == main) & ~marked), time_of(calls, calls.lane == main), taken
    )
    return merge(work, _stretches(work, subtract(own, work)), called)


def _stretches(work: Spans, own: Spans) -> Spans:
    """Return spans from the first to the last piece of work in each stretch that `own` does not
    interrupt."""
    if not len(work):
        return work
    stretch = np.searchsorted(own.start, work.start, side="right")
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    last = np.append(first[1:], len(work)) - 1
    return union(work.start[first], work.end[last])


def _is_backward(trace: Trace) -> NDArray[np.bool_]:
    ops = trace.ops
    named = trace.names_where(
        ops.name,
        lambda n: n.startswith("autograd::engine::") or n == "CompiledFunctionBackward",
    )
    return named | (ops.forward_thread > 0)


def _forward(trace: Trace, links: Links, lanes: NDArray[np.int64]) -> Spans:
    """Return operators, launching calls outside of them, spans with that name, and modules where
    stacks show them."""
    ops, calls, spans, frames = trace.ops, trace.calls, trace.annotations, trace.frames
    modules = trace.names_where(frames.name, lambda name: name.startswith("nn.Module: "))
    working = merge(
        time_of(ops, np.isin(ops.lane, lanes)),
        time_of(
            calls, np.isin(calls.lane, lanes) & np.isin(np.arange(len(calls)), links.device_call)
        ),
        time_of(frames, modules & np.isin(frames.lane, lanes)),
        time_of(spans, _spans_named(trace, "forward") & np.isin(spans.lane, lanes)),
    )
    steps = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    if not steps.any():
        return working
    outside = subtract(working, time_of(spans, steps))
    return subtract(working, outside)


def _spans_named(trace: Trace, phase: str) -> NDArray[np.bool_]:
    """Return the spans that somebody named `backward`, `## forward ##` or
    DistributedDataParallel.forward."""
    return trace.names_where(
        trace.annotations.name,
        lambda name: name.strip("# ").rpartition(".")[2].lower() == phase,
    )


_STEP = re.compile(r"Optimizer\.step#(\w+)\.step$")


def optimizer_name(trace: Trace, window: Window) -> str:
    """Return the name of the optimizer; of several, the one whose steps take longest."""
    marks = trace.annotations
    inside = rows_in(marks, window)
    time_of_optimizer: dict[str, int] = {}
    for name, dur in zip(marks.name[inside].tolist(), marks.dur[inside].tolist(), strict=True):
        if (step_match := _STEP.match(trace.text(name))) is not None:
            time_of_optimizer[step_match[1]] = time_of_optimizer.get(step_match[1], 0) + dur
    return max(time_of_optimizer, key=lambda name: (time_of_optimizer[name], name), default="")


MOMENTS = 4000
"""Number of moments at which the function is looked up: 40 of them are a hundredth of the time."""
MAX_PLACES = 5


def own_code(trace: Trace, links: Links, window: Window) -> OwnCode:
    """Return the time of own code in the mean step on the main thread, and the functions with most
    of it."""
    lanes = driving_lanes(trace, links)
    phases = phase_spans(trace, links)
    known = merge(
        time_of(trace.ops, np.isin(trace.ops.lane, lanes)),
        time_of(trace.calls, np.isin(trace.calls.lane, lanes)),
        phases["input"],
        phases["backward"],
        phases["optimizer"],
    )
    spans = subtract(step_spans(trace, window), known)
    steps = max(window.steps, 1)
    places = user_places(trace, links)
    if not spans.total or not places.known:
        return OwnCode(ns=spans.total / steps)
    moments = evenly_spread(spans, MOMENTS)
    codes = places.at(np.full(len(moments), links.main_lane, np.int64), moments)
    distinct_codes, counts = np.unique(codes, return_counts=True)
    each = spans.total / len(moments) / steps
    named = [
        (place, count * each)
        for code, count in zip(distinct_codes.tolist(), counts.tolist(), strict=True)
        if code != -1 and (place := place_of(places.text(code))) is not None
    ]
    named.sort(key=lambda entry: -entry[1])
    return OwnCode(ns=spans.total / steps, places=tuple(named[:MAX_PLACES]))
