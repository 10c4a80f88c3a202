"""The checks that run before any number is believed. Each check looks at one thing.

Events whose times contradict all others are taken out first (`without_outliers`) and are listed as
losses.

Thresholds: a warning makes the sections it affects doubtful, an error makes them unreliable, and an
unreliable figure is not shown.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.facts import Check, Severity, Trust
from ridgeline.trace.columns import DeviceOps, Events, Kind
from ridgeline.trace.host_states import is_graph_launch
from ridgeline.trace.links import Links, Rows, links_of
from ridgeline.trace.trace import Loss, Trace, once_per_trace
from ridgeline.trace.window import Steps

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
    tables: dict[str, Events] = {}
    losses = []
    for name, broken_rows in (
        ("device", outliers(trace, links_of(trace))),
        ("memory", wrong_totals(trace)),
    ):
        if not broken_rows:
            continue
        table: Events = getattr(trace, name)
        keep = np.ones(len(table), bool)
        for reason, rows in broken_rows.items():
            keep[rows] = False
            example = trace.text(int(table.name[rows[0]]))[:120]
            losses.append(Loss(reason=reason, count=len(rows), example=example))
        tables[name] = table.take(keep)
    if not losses:
        return trace
    origin = replace(
        trace.origin,
        events=trace.origin.events - sum(loss.count for loss in losses),
        losses=(*trace.origin.losses, *losses),
    )

    def load(name: str) -> Events:
        loaded: Events = tables[name] if name in tables else getattr(trace, name)
        return loaded

    return Trace(origin, trace.metadata, trace.texts, trace.lanes, load)


def outliers(trace: Trace, links: Links) -> dict[str, Rows]:
    """Return the rows of the device table to set aside, by reason. Each row has one reason."""
    device = trace.device
    outlier_rows: dict[str, Rows] = {}
    taken = np.zeros(len(device), bool)
    for reason, broken in (
        (OTHER_DEVICE, _on_another_device(trace)),
        (TOO_EARLY, _too_early(trace, links)),
        (TOO_LATE, _too_late(trace, links)),
    ):
        rows = np.flatnonzero(broken & ~taken)
        if _are_few_enough(rows, len(device)):
            outlier_rows[reason] = rows
            taken[rows] = True
    return outlier_rows


def wrong_totals(trace: Trace) -> dict[str, Rows]:
    """Return the rows of the memory table whose total does not follow from the rows around it.

    Each total is the total before it plus the bytes of its own event. If that fails at a row and at
    the next one, but holds from the row before to the next one, the total of the row is damaged.
    """
    memory = trace.memory
    device = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    broken_rows = []
    for number in np.unique(device):
        rows = np.flatnonzero(device == number)
        total, size = memory.allocated[rows], memory.bytes[rows]
        if 2 * np.count_nonzero(total < 0) > len(total):
            continue  # older traces have no totals
        follows = np.diff(total) == size[1:]
        around = total[2:] - total[:-2] == size[1:-1] + size[2:]
        broken = np.flatnonzero(~follows[:-1] & ~follows[1:] & around) + 1
        if len(rows) > 2 and not follows[-1] and follows[-2]:
            broken = np.append(broken, len(rows) - 1)  # the last row has no row after it
        if _are_few_enough(broken, len(rows)):
            broken_rows.append(rows[broken])
    return {WRONG_TOTAL: np.concatenate(broken_rows)} if broken_rows else {}


def _are_few_enough(rows: Rows, total: int) -> bool:
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
    resting = max(late, early)
    if resting > MIN_STRETCH_SHARE * window:
        yield Check(
            id="stretched", severity="warning", count=1,
            claim=f"{100 * resting / window:.0f} % of the window rests on one or two events at its "
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


MAX_PAUSE_NS = 60_000_000_000
"""No profiler window has a minute without one event; a trace with a broken clock has."""
_LAUNCH = re.compile(r"^(cuda|hip|cu)(Launch|ExtLaunch|ExtModuleLaunch|ModuleLaunch|LaunchKernel)")
_COUNTS = re.compile(
    r"Out-of-range = (?P<range>\d+).*?Invalid ext correlations = (?P<invalid>\d+)"
    r".*?out-of-order = (?P<order>\d+).*?stopped early\? = (?P<early>\d+)"
)


@once_per_trace
def validate(trace: Trace, links: Links, steps: Steps) -> tuple[Check, ...]:
    """Return everything that was found wrong, the gravest first."""
    checks = [
        *_file(trace),
        *_clock(trace),
        *headline_checks(trace, links),
        *_overlapping(trace),
        *_repeated(trace),
        *_before_launch(trace, links),
        *_unlinked(trace, links),
        *_vanished(trace, links),
        *_graphs(trace, links),
        *_profiler(trace),
        *_resolution(trace),
        *_stacks(trace),
        *_steps(trace, steps),
    ]
    order: tuple[Severity, ...] = ("error", "warning", "note")
    return tuple(sorted(checks, key=lambda check: order.index(check.severity)))


def trust_in(section: str, checks: Sequence[Check]) -> Trust:
    """Return how far a section can be believed after these checks."""
    for severity, confidence in (("error", "unreliable"), ("warning", "doubtful")):
        failed = [c for c in checks if c.severity == severity and section in c.affects]
        if failed:
            return Trust(
                confidence=confidence,  # type: ignore[arg-type]
                why="; ".join(check.claim for check in failed),
                codes=tuple(check.id for check in failed),
            )
    return Trust()


def _file(trace: Trace) -> Iterator[Check]:
    origin = trace.origin
    if origin.truncated:
        yield _cut(origin.truncated, origin.has_all_events)
    if origin.unverified:
        damaged = origin.checksum_differs
        yield Check(
            id="checksum", severity="warning" if damaged else "note", count=1,
            claim=origin.unverified,
            affects=("idle", "kernels", "roofline", "launch") if damaged else (),
        )  # fmt: skip
    for loss in origin.losses:
        events = "1 event" if loss.count == 1 else f"{loss.count} events"
        share = loss.count / max(origin.events, 1)
        if loss.lost:
            yield Check(
                id="lost", severity="warning", count=loss.count,
                claim=f"{events} left out: {loss.reason}",
                affects=("idle", "kernels") if share > 0.001 else (),
            )  # fmt: skip
        else:
            times = "once" if loss.count == 1 else f"{loss.count} times"
            yield Check(
                id="repaired", severity="note", count=loss.count,
                claim=f"repaired ({times}): {loss.reason}",
            )  # fmt: skip


def _cut(how: str, has_all_events: bool) -> Check:
    """Return the check of a file that breaks off. Events are not written in order of time, and
    kernels mostly come last: any part of any step may be missing, so after a cut among the events
    no total can be believed."""
    lost = "all events are there" if has_all_events else "how much device work is lost is not known"
    return Check(
        id="truncated", severity="warning" if has_all_events else "error", count=1,
        claim=f"the file is cut short: {how}; {lost}",
        affects=() if has_all_events else (
            "idle", "steps", "launch", "kernels", "overlap", "phases", "critical path", "roofline",
        ),
    )  # fmt: skip


def _clock(trace: Trace) -> Iterator[Check]:
    """Yield checks of events that lie a minute or more from all others."""
    tables = [t for t in (trace.device, trace.ops, trace.calls, trace.annotations) if len(t)]
    if not tables:
        return
    start = np.concatenate([t.ts for t in tables])
    end = np.concatenate([t.end for t in tables])
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    holes = start[order][1:] - reach[:-1]
    jumps = int((holes > MAX_PAUSE_NS).sum())
    if jumps:
        yield Check(
            id="clock-jump", severity="error", count=jumps,
            claim=f"the clock jumps by {int(holes.max()) / 1e9:,.0f} s between events, "
            "so idle time cannot be told from a wrong clock",
            affects=("idle", "overlap", "phases", "critical path", "launch"),
        )  # fmt: skip
    longest = max(int(t.dur.max()) for t in tables if t is trace.device) if len(trace.device) else 0
    if longest > MAX_PAUSE_NS:
        yield Check(
            id="endless", severity="error", count=int((trace.device.dur > MAX_PAUSE_NS).sum()),
            claim=f"a device operation is said to last {longest / 1e9:,.0f} s",
            affects=("idle", "kernels", "overlap", "critical path"),
        )  # fmt: skip


def _streams(trace: Trace) -> Iterator[DeviceOps]:
    device = trace.device
    key = device.device.astype(np.int64) << 32 | (device.stream.astype(np.int64) & 0xFFFFFFFF)
    for number in np.unique(key):
        yield device.take(key == number)


def _overlapping(trace: Trace) -> Iterator[Check]:
    """Yield a check of overlaps: one stream runs one thing at a time, but for Hopper's early starts
    of a few µs."""
    count = over = total = 0
    for ops in _streams(trace):
        reach = np.maximum.accumulate(ops.end)[:-1]
        beyond = np.minimum(reach, ops.end[1:]) - ops.ts[1:]
        count += int((beyond > 0).sum())
        over += int(beyond[beyond > 0].sum())
        total += int(ops.dur.sum())
    if not count:
        return
    share = over / max(total, 1)
    severity: Severity = "error" if share > 0.2 else "warning" if share > 0.01 else "note"
    yield Check(
        id="overlap", severity=severity, count=count,
        claim=f"{count:,} device operations overlap another on their own stream, by "
        f"{100 * share:.1f} % of the device's summed time"
        + (": their durations cannot be right" if share > 0.2 else ""),
        affects=("kernels", "categories", "roofline", "idle"),
    )  # fmt: skip


def _repeated(trace: Trace) -> Iterator[Check]:
    d = trace.device
    if len(d) < 2:
        return
    same = np.ones(len(d) - 1, bool)
    for column in (d.ts, d.dur, d.name, d.stream, d.device, d.correlation):
        same &= column[1:] == column[:-1]
    same &= d.dur[1:] > 0
    if same.any():
        yield Check(
            id="repeated", severity="warning", count=int(same.sum()),
            claim=f"{int(same.sum()):,} device operations are in the file more than once",
            affects=("kernels", "categories", "roofline"),
        )  # fmt: skip


def _before_launch(trace: Trace, links: Links) -> Iterator[Check]:
    call = links.device_call
    linked = np.flatnonzero(call >= 0)
    early = trace.calls.ts[call[linked]] - trace.device.ts[linked]
    count = int((early > 0).sum())
    if not count:
        return
    share = count / len(linked)
    severity: Severity = "error" if share > 0.2 else "warning" if share > 0.01 else "note"
    yield Check(
        id="before-launch", severity=severity, count=count,
        claim=f"{count:,} of {len(linked):,} device operations start before the call that launched "
        f"them (by up to {int(early.max()) / 1e3:,.1f} µs): host and device clocks disagree",
        affects=("launch", "idle", "critical path", "overlap"),
    )  # fmt: skip


def _unlinked(trace: Trace, links: Links) -> Iterator[Check]:
    total = len(trace.device)
    missing = int((links.device_call < 0).sum())
    if not missing:
        return
    share = missing / total
    severity: Severity = "warning" if share > 0.05 else "note"
    yield Check(
        id="no-launch", severity=severity, count=missing,
        claim=f"{missing:,} of {total:,} device operations ({100 * share:.0f} %) have no launching "
        "call in the trace: launch figures describe the others",
        affects=("launch", "critical path") + (("idle causes",) if share > 0.05 else ()),
    )  # fmt: skip


def _vanished(trace: Trace, links: Links) -> Iterator[Check]:
    """Yield a check of launches without device work, whose records are lost. The last few launches
    of a window may lack theirs."""
    calls = trace.calls
    launches = np.flatnonzero(trace.names_where(calls.name, lambda n: bool(_LAUNCH.match(n))))
    if not len(trace.device):
        if len(launches):
            yield Check(
                id="no-device-records", severity="error", count=len(launches),
                claim=f"{len(launches):,} kernels were launched and none is in the file: device "
                "activity was not recorded, or was lost with the end of the file",
                affects=("idle", "kernels", "launch", "overlap", "critical path"),
            )  # fmt: skip
        return
    launches = launches[calls.ts[launches] < trace.device.ts.max()]
    without_work = _count_workless(links, launches)
    share = without_work / max(len(launches), 1)
    unlinked = int((links.device_call < 0).sum())
    if without_work and unlinked >= without_work:
        yield Check(
            id="unpaired", severity="note", count=without_work,
            claim=f"{without_work:,} launches and {unlinked:,} device operations cannot be paired: "
            "their correlation ids are missing or differ",
        )  # fmt: skip
    elif without_work and share > 0.002:
        yield Check(
            id="dropped", severity="error" if share > 0.1 else "warning", count=without_work,
            claim=f"{without_work:,} of {len(launches):,} launches have no kernel in the trace: "
            "records were dropped, and the device was busier than it looks",
            affects=("idle", "kernels", "launch", "overlap", "critical path"),
        )  # fmt: skip


def _count_workless(links: Links, calls: NDArray[Any]) -> int:
    """Return how many of these calls have no device work."""
    return int((~np.isin(calls, links.device_call)).sum())


def _graphs(trace: Trace, links: Links) -> Iterator[Check]:
    calls = trace.calls
    rows = np.flatnonzero(trace.names_where(calls.name, is_graph_launch))
    if not len(rows):
        return
    hidden = _count_workless(links, rows)
    unlinked = int((links.device_call < 0).sum())
    if hidden and unlinked < hidden:
        yield Check(
            id="graphs-hide", severity="error", count=hidden,
            claim=f"{hidden:,} of {len(rows):,} graph launches hide their kernels: the device "
            "worked, and the trace does not say when",
            affects=("idle", "kernels", "categories", "overlap", "critical path", "launch"),
        )  # fmt: skip
    elif hidden:
        yield Check(
            id="graphs-loose", severity="note", count=hidden,
            claim=f"{len(rows):,} graph launches; {unlinked:,} kernels are not linked to a launch, "
            "so their operators and modules are not known",
            affects=("modules", "ops"),
        )  # fmt: skip


def _profiler(trace: Trace) -> Iterator[Check]:
    """Yield checks of what Kineto itself complained of, and of what its buffers cost."""
    text = "\n".join(trace.metadata.messages)
    counts = _COUNTS.search(text)
    if counts and int(counts["early"]):
        yield Check(
            id="stopped-early", severity="error", count=1,
            claim="the profiler says it stopped recording the device early (its buffer was full)",
            affects=("idle", "kernels", "steps", "overlap"),
        )  # fmt: skip
    if counts and int(counts["order"]):
        yield Check(
            id="out-of-order", severity="warning", count=int(counts["order"]),
            claim=f"the profiler found {int(counts['order']):,} device records before their launch",
            affects=("launch",),
        )  # fmt: skip
    if re.search(r"dropped|lost \d+ (record|event)|buffer.{0,20}full", text, re.IGNORECASE):
        yield Check(
            id="buffers", severity="warning", count=1, affects=("idle", "kernels"),
            claim="the profiler's log speaks of dropped records",
        )  # fmt: skip
    rows = np.flatnonzero(trace.others.kind == Kind.OVERHEAD)
    if len(rows):
        ns = int(trace.others.dur[rows].sum())
        yield Check(
            id="overhead", severity="note", count=len(rows),
            claim=f"the profiler's own work took {ns / 1e6:,.2f} ms (buffers, instrumentation)",
        )  # fmt: skip


def _resolution(trace: Trace) -> Iterator[Check]:
    device = trace.device
    if len(device) > 20 and not (device.ts % 1000).any() and not (device.dur % 1000).any():
        zero = int((device.dur == 0).sum())
        yield Check(
            id="microseconds", severity="note", count=zero,
            claim="times are whole microseconds in this file"
            + (f": {zero:,} device operations last 0" if zero else ""),
        )  # fmt: skip


def _stacks(trace: Trace) -> Iterator[Check]:
    if len(trace.frames) and len(trace.device):
        yield Check(
            id="stacks", severity="note", count=len(trace.frames),
            claim="Python stacks were recorded, which slows the host: launch-bound and other host "
            "time are more than in an untraced run",
        )  # fmt: skip


def _steps(trace: Trace, steps: Steps) -> Iterator[Check]:
    if not len(steps):
        yield Check(
            id="no-steps", severity="note", affects=("steps",),
            claim="no step marks (prof.step()): figures are over the whole trace",
        )  # fmt: skip


def missing(trace: Trace, steps: Steps) -> tuple[str, ...]:
    advice = []
    if not len(trace.device):
        advice.append("device work: add ProfilerActivity.CUDA to `activities` (needs a GPU)")
    if not (len(trace.ops) or len(trace.annotations) or len(trace.frames)):
        advice.append("operators: add ProfilerActivity.CPU to `activities`")
    stacks = len(trace.frames) or any(
        "Call stack" in trace.text(int(code)) for code in set(trace.ops.info[:2000].tolist())
    )
    if not stacks:
        advice.append("lines of your code: profile with `with_stack=True`")
    if len(trace.ops) and not (trace.ops.shape >= 0).any():
        advice.append("input shapes, for the roofline: profile with `record_shapes=True`")
    if not len(trace.memory):
        advice.append("memory: profile with `profile_memory=True`")
    if not len(steps) or not steps.marked:  # without a schedule, `prof.step()` marks nothing
        advice.append("steps: give `profile` a `schedule`, and call `prof.step()` each iteration")
    return tuple(advice)
