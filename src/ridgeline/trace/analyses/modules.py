"""Which nn.Module used the device: forward by the time of the launch, backward by the sequence
number that joins an autograd node to the operator that made it."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import ModuleRow, Window
from ridgeline.trace.analyses.forward_of import forward_of
from ridgeline.trace.analyses.module_paths import Modules, module_paths
from ridgeline.trace.analyses.tree import beneath, inherited
from ridgeline.trace.analyses.within import within
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

Rows = NDArray[np.int64]


def modules(trace: Trace, links: Links, window: Window, limit: int = 100) -> tuple[ModuleRow, ...]:
    """By device time with what they contain; () where the trace tells of no modules."""
    tree = module_paths(trace, links, window)
    if tree is None:
        return ()
    rows = within(trace.device, window)
    dur = trace.device.dur[rows]
    module = _of_device(trace, links, tree)[rows]
    own = np.zeros(len(tree.names), np.int64)
    np.add.at(own, module[module >= 0], dur[module >= 0])
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
    """Each device operation's module: by its call, else by its operator, else by the forward."""
    call, op = links.device_call, links.device_op
    found = np.full(len(op), -1, np.int64)
    if len(tree.of_call):
        found = np.where(call >= 0, tree.of_call[np.maximum(call, 0)], -1)
    if len(trace.ops):
        by_op = inherited(_with_backward(trace, tree), links.op_parent)
        found = np.where((found < 0) & (op >= 0), by_op[np.maximum(op, 0)], found)
    return found


def _with_backward(trace: Trace, tree: Modules) -> Rows:
    """Operators' modules, those of autograd nodes taken from their forward operators."""
    forward = forward_of(trace, tree.of_op >= 0)
    taken = (tree.of_op < 0) & (forward >= 0)
    return np.where(taken, tree.of_op[np.maximum(forward, 0)], tree.of_op)


def path_of(tree: Modules, number: int) -> list[str]:
    names: list[str] = []
    while number >= 0:
        names.append(tree.names[number][0])
        number = int(tree.parent[number])
    return names[::-1]
