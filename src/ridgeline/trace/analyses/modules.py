"""The device time of each nn.Module: in the forward by the time of the launch, in the backward by
the sequence number that joins an autograd node to the operator that made it."""

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.trace import ModuleRow, Window
from ridgeline.trace.columns import Frames
from ridgeline.trace.links import (
    Links,
    Rows,
    beneath,
    distinct,
    enclosing,
    inherited,
    nested,
    sums_by,
)
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import rows_in

Part = tuple[str, str]
"""(name, class) of one module in a path, outermost first."""


FRAME = "nn.Module: "


class Modules(Struct, frozen=True):
    """The tree of modules. Module numbers are indices into `names`."""

    names: tuple[Part, ...]
    parent: Rows
    of_op: Rows
    """The innermost module of each operator, by time or by stack; -1: none."""
    of_call: Rows
    """The innermost module of each runtime call; empty if only operators show the modules."""
    count: Rows
    """The number of calls of each module; of operators, if only they show the modules."""
    host: Rows


def modules(trace: Trace, links: Links, window: Window, limit: int = 100) -> tuple[ModuleRow, ...]:
    """Return the modules by device time, with what they contain; () where the trace shows no
    modules."""
    tree = module_paths(trace, links, window)
    if tree is None:
        return ()
    rows = rows_in(trace.device, window)
    dur = trace.device.dur[rows]
    module = _of_device(trace, links, tree)[rows]
    own = sums_by(module[module >= 0], dur[module >= 0], len(tree.names))
    total = beneath(tree.parent, own)
    whole = max(int(dur.sum()), 1)
    table = []
    for i in np.lexsort((np.arange(len(own)), -tree.host, -total)).tolist():
        if not tree.count[i] and not total[i]:
            continue  # ran outside the window only
        path = path_of(tree, i)
        table.append(
            ModuleRow(
                path=" / ".join(path),
                kind=tree.names[i][1],
                depth=len(path) - 1,
                count=int(tree.count[i]),
                host_ns=int(tree.host[i]),
                device_ns=int(total[i]),
                device_self_ns=int(own[i]),
                share=int(total[i]) / whole,
            )
        )
        if len(table) == limit:
            break
    return tuple(table)


def _of_device(trace: Trace, links: Links, tree: Modules) -> Rows:
    """Return the module of each device operation: that of its call, else that of its operator, else
    that of the forward operator."""
    call, op = links.device_call, links.device_op
    module = np.full(len(op), -1, np.int64)
    if len(tree.of_call):
        module = np.where(call >= 0, tree.of_call[np.maximum(call, 0)], -1)
    if len(trace.ops):
        by_op = inherited(_with_backward(trace, tree), links.op_parent)
        module = np.where((module < 0) & (op >= 0), by_op[np.maximum(op, 0)], module)
    return module


def _with_backward(trace: Trace, tree: Modules) -> Rows:
    """Return the modules of operators. Autograd nodes have the module of their forward operator."""
    forward = forward_of(trace, tree.of_op >= 0)
    taken = (tree.of_op < 0) & (forward >= 0)
    return np.where(taken, tree.of_op[np.maximum(forward, 0)], tree.of_op)


@once_per_trace
def modules_of_work(trace: Trace, links: Links, tree: Modules) -> tuple[Rows, Rows]:
    """Return the module of each operator, and of each device operation; -1 where none is known."""
    of_op = inherited(_with_backward(trace, tree), links.op_parent)
    return of_op, _of_device(trace, links, tree)


def path_of(tree: Modules, number: int) -> list[str]:
    names: list[str] = []
    while number >= 0:
        names.append(tree.names[number][0])
        number = int(tree.parent[number])
    return names[::-1]


MAX_HIERARCHY_CHARACTERS = 8192
"""A real hierarchy has a few hundred characters."""


class _Tree:
    """Numbers the modules in the order in which they are first seen."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, Part], int] = {}

    def place(self, parent: int, part: Part) -> int:
        return self.numbers.setdefault((parent, part), len(self.numbers))

    def path(self, parts: list[Part]) -> int:
        number = -1
        for part in parts:
            number = self.place(number, part)
        return number

    def parents(self) -> Rows:
        return np.array([parent for parent, _ in self.numbers], np.int64)

    def names(self) -> tuple[Part, ...]:
        return tuple(part for _, part in self.numbers)


@once_per_trace
def module_paths(trace: Trace, links: Links, window: Window) -> Modules | None:
    """Return the modules by the best source that the trace has; None where it has none."""
    frames = trace.frames
    rows = trace.names_where(frames.name, lambda name: name.startswith(FRAME))
    if rows.any():
        return _from_frames(trace, frames.take(rows), window)
    for key, parse in (("Module Hierarchy", hierarchy), ("Call stack", stack)):
        tree = _from_operators(trace, links, window, key, parse)
        if tree is not None:
            return tree
    return None


def _from_frames(trace: Trace, frames: Frames, window: Window) -> Modules:
    above = nested(frames)
    number = np.full(len(frames), -1, np.int64)
    tree = _Tree()
    pending = np.arange(len(frames))
    while len(pending):  # one level at a time: rows whose parent has its number
        ready = (above[pending] < 0) | (number[np.maximum(above[pending], 0)] >= 0)
        rows, pending = pending[ready], pending[~ready]
        outer = np.where(above[rows] >= 0, number[np.maximum(above[rows], 0)], -1)
        pairs, which = distinct(outer, frames.name[rows])
        places = [tree.place(int(parent), _named(trace.text(int(name)))) for parent, name in pairs]
        number[rows] = np.array(places, np.int64)[which]
    # by overlap, not by start: the model's own frame began before the window's first kernel
    inside = np.flatnonzero((frames.ts < window.end_ns) & (frames.end > window.start_ns))
    host = sums_by(number[inside], frames.dur[inside], len(tree.numbers))

    def placed(found: Rows) -> Rows:
        return np.where(found >= 0, number[np.maximum(found, 0)], -1)

    return Modules(
        names=tree.names(),
        parent=tree.parents(),
        of_op=placed(enclosing(trace.ops, frames, above)),
        of_call=placed(enclosing(trace.calls, frames, above)),
        count=np.bincount(number[inside], minlength=len(tree.numbers)).astype(np.int64),
        host=host,
    )


def _from_operators(
    trace: Trace, links: Links, window: Window, key: str, parse: Callable[[str], list[Part]]
) -> Modules | None:
    codes, at = np.unique(trace.ops.info, return_inverse=True)
    tree = _Tree()
    places = []
    for code in codes:
        text = trace.info(int(code)).get(key)
        places.append(tree.path(parse(text)) if isinstance(text, str) else -1)
    if not tree.numbers:
        return None
    of_op = np.array(places, np.int64)[at]
    parent, up = tree.parents(), links.op_parent
    inside = np.flatnonzero((trace.ops.ts < window.end_ns) & (trace.ops.end > window.start_ns))
    outermost = inside[(up[inside] < 0) & (of_op[inside] >= 0)]
    host = np.zeros(len(parent), np.int64)
    count = np.zeros(len(parent), np.int64)
    module = of_op[outermost]
    while len(outermost):  # a module's time is that of all operators under it
        np.add.at(host, module, trace.ops.dur[outermost])
        np.add.at(count, module, 1)
        go = parent[module] >= 0
        outermost, module = outermost[go], parent[module[go]]
    empty = np.empty(0, np.int64)
    return Modules(tree.names(), parent, of_op, empty, count, host)


def _named(frame: str) -> Part:
    name = frame.removeprefix(FRAME).strip()
    return name, re.sub(r"_\d+$", "", name)


def hierarchy(text: str) -> list[Part]:
    """Return the modules of `TOP(ResNet)::forward.conv1(Conv2d)::forward`."""
    modules_found = re.findall(r"([^.()]+)\(([^()]*)\)(?:::\w+)?", text[:MAX_HIERARCHY_CHARACTERS])
    return [
        (f"{name.strip(':')} ({kind})" if kind else name, kind or name)
        for name, kind in modules_found
    ]


def stack(text: str) -> list[Part]:
    """`conv.py(443): forward;module.py(1051): _call_impl;resnet.py(124): forward;…`, innermost
    first: what `_call_impl` entered is a module, and the line below it tells which one."""
    lines = [line.strip() for line in text.split(";")]
    parts: list[Part] = []
    for i in range(len(lines) - 1, 0, -1):
        if not re.search(r"module\.py\(\d+\): _?(?:wrapped_)?call_impl$", lines[i]):
            continue
        inner = re.match(
            r"(?:.*[/\\])?([^/\\]+)\.py\(\d+\): (?!_?(?:wrapped_)?call_impl)", lines[i - 1]
        )
        if inner is None:
            continue
        caller = next((x for x in lines[i + 1 :] if "call_impl" not in x), "")
        site = re.match(r"(?:.*[/\\])?([^/\\]+\.py)\((\d+)\)", caller)
        parts.append((f"{inner[1]} at {site[1]}:{site[2]}" if site else inner[1], inner[1]))
    return parts


@once_per_trace
def forward_of(trace: Trace, candidates: NDArray[np.bool_]) -> Rows:
    """Return the forward operator of each node of the backward; -1 for every other operator.

    The counter increases when a node is made, so the last operator of the forward thread with a
    number made the node with this number. `candidates`: the operators that may be returned.
    """
    ops = trace.ops
    forward_row = np.full(len(ops), -1, np.int64)
    named = trace.names_where(ops.name, lambda name: "Backward" in name)
    node = (ops.sequence >= 0) & ((ops.forward_thread > 0) | named)
    forward = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread <= 0) & ~named & candidates)
    backward = np.flatnonzero(node)
    if not len(backward) or not len(forward):
        return forward_row
    forward = forward[np.argsort(ops.sequence[forward], kind="stable")]
    numbers = ops.sequence[forward]
    at = np.searchsorted(numbers, ops.sequence[backward], side="right") - 1
    has_forward = (at >= 0) & (numbers[np.maximum(at, 0)] == ops.sequence[backward])
    forward_row[backward[has_forward]] = forward[at[has_forward]]
    return forward_row
