"""Events that contradict the rest of their trace, for example because of one damaged digit.

The window of every figure is the device's activity. So one operation at a wrong time stretches the
window, and one with a wrong device number invents a GPU. Three things hold in every sound trace,
and an operation that breaks one of them is set aside and named:

- a process of the timeline holds one device;
- an operation does not start before the call that launches it;
- an operation that has been launched does not wait while all devices are idle. In eleven public
  traces (V100, A100, H100, MI300) the longest such wait is 12 µs.

An allocation is set aside as well if its total does not follow from the totals before and after it:
it would be taken for the memory peak.

If more operations break a rule than a few damaged bytes explain, another tool wrote the file or its
clocks disagree. These operations stay, and `validation` reports what it finds.

A single event may also decide a figure without contradicting another event: the end of the window,
the longest duration, a device. Such an event may be right, so it stays, and `headline_checks` makes
the headline doubtful.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.trust import Check
from ridgeline.trace.columns import Events
from ridgeline.trace.links import Links, Rows, links_of
from ridgeline.trace.trace import Loss, Trace

MAX_CLOCK_SKEW_NS = 200_000
"""How far the clocks of host and device may disagree before an operation counts as misplaced."""
MIN_WAIT_SHARE = 0.02
"""A wait on an idle device below this share of the device's activity moves no headline."""
MAX_OUTLIERS, MAX_OUTLIER_SHARE = 2, 0.01
"""At most this many operations are set aside, or this share of them if that is more."""
MIN_STRETCH_SHARE = 0.25
"""A headline is doubtful if this share of the window rests on one or two events that no other event
supports."""
MIN_JUDGED_EVENTS = 10
"""A trace with fewer events is not judged: each event holds a large share of its window."""
MIN_DURATION_FACTOR, MIN_DURATION_SHARE, MIN_SAME_NAME = 20, 0.1, 4
"""An event is out of line if it is more than 20 times as long as the next longest of its name and
lasts a tenth of the window. There must be at least four events of that name, and the long one must
not be the first of them: first calls load and initialise."""
MAX_LONG_NAMES = 100
"""Number of names that are searched for such an event: a sound trace has a dozen names with events
that last so long."""
MIN_DEVICE_SHARE = 0.01
"""A device with a smaller share of the operations says nothing about the program."""

OTHER_DEVICE = "on another device than all other work of its process"
TOO_EARLY = "starts long before the call that launched it"
TOO_LATE = "starts long after its launch, while the device was idle"
WRONG_TOTAL = "its total of allocated memory does not follow from the events around it"


def without_outliers(trace: Trace) -> Trace:
    """Return the trace without the events that contradict it. These events are listed among the
    losses of the new trace."""
    kept: dict[str, Events] = {}
    losses = []
    for name, found in (
        ("device", outliers(trace, links_of(trace))),
        ("memory", wrong_totals(trace)),
    ):
        if not found:
            continue
        table: Events = getattr(trace, name)
        keep = np.ones(len(table), bool)
        for reason, rows in found.items():
            keep[rows] = False
            example = trace.text(int(table.name[rows[0]]))[:120]
            losses.append(Loss(reason=reason, count=len(rows), example=example))
        kept[name] = table.take(keep)
    if not losses:
        return trace
    origin = replace(
        trace.origin,
        events=trace.origin.events - sum(loss.count for loss in losses),
        losses=(*trace.origin.losses, *losses),
    )

    def load(name: str) -> Events:
        loaded: Events = kept[name] if name in kept else getattr(trace, name)
        return loaded

    return Trace(origin, trace.metadata, trace.texts, trace.lanes, load)


def outliers(trace: Trace, links: Links) -> dict[str, Rows]:
    """Return the rows of the device table to set aside, by reason. Each row has one reason."""
    device = trace.device
    found: dict[str, Rows] = {}
    seen = np.zeros(len(device), bool)
    for reason, broken in (
        (OTHER_DEVICE, _on_another_device(trace)),
        (TOO_EARLY, _too_early(trace, links)),
        (TOO_LATE, _too_late(trace, links)),
    ):
        rows = np.flatnonzero(broken & ~seen)
        if _are_few(rows, len(device)):
            found[reason] = rows
            seen[rows] = True
    return found


def wrong_totals(trace: Trace) -> dict[str, Rows]:
    """Return the rows of the memory table whose total does not follow from the rows around it.

    Each total is the total before it plus the bytes of its own event. If that fails at a row and at
    the next one, but holds from the row before to the next one, the total of the row is damaged.
    """
    memory = trace.memory
    device = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    found = []
    for one in np.unique(device):
        rows = np.flatnonzero(device == one)
        total, size = memory.allocated[rows], memory.bytes[rows]
        if 2 * np.count_nonzero(total < 0) > len(total):
            continue  # older traces have no totals
        follows = np.diff(total) == size[1:]
        around = total[2:] - total[:-2] == size[1:-1] + size[2:]
        broken = np.flatnonzero(~follows[:-1] & ~follows[1:] & around) + 1
        if len(rows) > 2 and not follows[-1] and follows[-2]:
            broken = np.append(broken, len(rows) - 1)  # the last row has no row after it
        if _are_few(broken, len(rows)):
            found.append(rows[broken])
    return {WRONG_TOTAL: np.concatenate(found)} if found else {}


def _are_few(rows: Rows, total: int) -> bool:
    """Return whether there are any rows, and no more than a few damaged bytes explain."""
    most = min(max(MAX_OUTLIERS, int(MAX_OUTLIER_SHARE * total)), (total - 1) // 2)
    return 0 < len(rows) <= most


def _on_another_device(trace: Trace) -> NDArray[np.bool_]:
    """Return for each operation whether its device differs from that of most operations of its
    process."""
    device = trace.device
    broken = np.zeros(len(device), bool)
    if not len(device) or (device.device == device.device[0]).all():
        return broken
    processes = {lane.pid: code for code, lane in enumerate(trace.lanes)}
    process = np.array([processes[lane.pid] for lane in trace.lanes])[device.lane]
    for code in np.unique(process):
        rows = np.flatnonzero(process == code)
        numbers, counts = np.unique(device.device[rows], return_counts=True)
        broken[rows] = device.device[rows] != numbers[counts.argmax()]
    return broken


def _too_early(trace: Trace, links: Links) -> NDArray[np.bool_]:
    call = links.device_call
    broken = np.zeros(len(call), bool)
    linked = np.flatnonzero(call >= 0)
    early = trace.calls.ts[call[linked]] - trace.device.ts[linked]
    broken[linked] = early > MAX_CLOCK_SKEW_NS
    return broken


def _too_late(trace: Trace, links: Links) -> NDArray[np.bool_]:
    """Return for each operation whether it waited too long while all devices were idle.

    The limit is a share of the time from the first to the last operation. All devices must be idle,
    because work of one may wait for that of another.
    """
    device, call = trace.device, links.device_call
    broken = np.zeros(len(device), bool)
    linked = np.flatnonzero(call >= 0)
    if not len(linked):
        return broken
    reach = np.maximum.accumulate(device.end)
    idle = np.concatenate([[0], device.ts[1:] - reach[:-1]])
    wait = device.ts[linked] - trace.calls.end[call[linked]]
    least = max(MAX_CLOCK_SKEW_NS, MIN_WAIT_SHARE * int(reach[-1] - device.ts[0]))
    broken[linked] = np.minimum(wait, idle[linked]) > least
    return broken


def headline_checks(trace: Trace, links: Links) -> Iterator[Check]:
    """Yield the checks that make the headline doubtful, because it rests on one or two events."""
    yield from _stretched(trace, links)
    yield from _out_of_line(trace)
    yield from _hardly_used(trace)


def _stretched(trace: Trace, links: Links) -> Iterator[Check]:
    """Yield a check if the start or end of the window rests on one or two events that no other
    event supports."""
    host = [t for t in (trace.ops, trace.calls, trace.annotations, trace.frames) if len(t)]
    device = trace.device
    if len(device):
        start, end = device.ts, device.end
        unlaunched = links.device_call < 0
        margin = MIN_DURATION_SHARE * int(end.max() - start.min())
        beyond = end > max((int(t.end.max()) for t in host), default=0) + margin
    elif host:
        start, end = (np.concatenate([getattr(t, c) for t in host]) for c in ("ts", "end"))
        unlaunched = beyond = np.ones(len(start), bool)
    if not (len(device) or host) or len(start) < MIN_JUDGED_EVENTS:
        return
    window = int(end.max() - start.min())
    late = _held_by_few(end, beyond | unlaunched)
    early = _held_by_few(-start, unlaunched)
    held = max(late, early)
    if held > MIN_STRETCH_SHARE * window:
        yield Check(
            id="stretched", severity="warning", count=1,
            claim=f"{100 * held / window:.0f} % of the window rests on one or two events at its "
            f"{'end' if late >= early else 'start'} that no other event supports: their times may "
            "be damaged",
            affects=("idle", "ops", "steps", "launch", "overlap", "critical path"),
        )  # fmt: skip


def _held_by_few(edge: NDArray[np.int64], unsupported: NDArray[np.bool_]) -> int:
    """Return by how many ns the largest value in `edge` shrinks without the unsupported events that
    reach it."""
    last = np.argpartition(edge, -MAX_OUTLIERS - 1)[-MAX_OUTLIERS - 1 :]
    last = last[np.argsort(-edge[last], kind="stable")]
    shrinks = 0
    for row, following in pairwise(last):
        if not unsupported[row]:
            break
        shrinks = int(edge[last[0]] - edge[following])
    return shrinks


def _out_of_line(trace: Trace) -> Iterator[Check]:
    """Yield a check if an event lasts many times as long as any other of its name."""
    table: Events = trace.device if len(trace.device) else trace.ops
    if not len(table):
        return
    least = MIN_DURATION_SHARE * int(table.end.max() - table.ts.min())
    rows = []
    for name in np.unique(table.name[table.dur > least])[:MAX_LONG_NAMES]:
        same = np.flatnonzero(table.name == name)  # in order of start
        if len(same) >= MIN_SAME_NAME:
            second, longest = np.argsort(table.dur[same], kind="stable")[-2:]
            times = MIN_DURATION_FACTOR * table.dur[same[second]]
            if longest > 0 and table.dur[same[longest]] > times:
                rows.append(int(same[longest]))
    if rows:
        longest = max(rows, key=lambda row: int(table.dur[row]))
        yield Check(
            id="out-of-line", severity="warning", count=len(rows),
            claim=f"{trace.text(int(table.name[longest]))[:80]} lasts "
            f"{int(table.dur[longest]) / 1e6:,.3f} ms once, more than {MIN_DURATION_FACTOR} times "
            "as long as any other call: the duration may be damaged",
            affects=("idle", "kernels", "ops", "categories", "roofline"),
        )  # fmt: skip


def _hardly_used(trace: Trace) -> Iterator[Check]:
    """Yield a check for devices with next to no work, which count as much as the others in the
    headline."""
    numbers, counts = np.unique(trace.device.device, return_counts=True)
    few = numbers[counts < MIN_DEVICE_SHARE * len(trace.device)]
    if len(few):
        yield Check(
            id="hardly-used", severity="warning", count=len(few),
            claim=f"device {', '.join(str(n) for n in few[:8])} has less than "
            f"{100 * MIN_DEVICE_SHARE:.0f} % of the device operations, and counts as much as the "
            "others in figures of all devices",
            affects=("idle",),
        )  # fmt: skip
