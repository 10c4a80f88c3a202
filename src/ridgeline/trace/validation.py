"""What is tested before any number is believed: each check looks at one thing, says one sentence.

Thresholds: a warning makes the sections it affects doubtful, an error makes them unreliable, and an
unreliable figure is not shown.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.records.trust import Check, Severity, Trust
from ridgeline.trace.columns import DeviceOps, Kind
from ridgeline.trace.host_states import is_graph_launch
from ridgeline.trace.links import Links
from ridgeline.trace.outliers import headline_checks
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import Steps

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
    found = [
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
    return tuple(sorted(found, key=lambda check: order.index(check.severity)))


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
    for one in np.unique(key):
        yield device.take(key == one)


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
    seen = np.zeros(len(calls), bool)
    seen[links.device_call[links.device_call >= 0]] = True
    lost = int((~seen[launches]).sum())
    share = lost / max(len(launches), 1)
    loose = int((links.device_call < 0).sum())
    if lost and loose >= lost:
        yield Check(
            id="unpaired", severity="note", count=lost,
            claim=f"{lost:,} launches and {loose:,} device operations cannot be paired: their "
            "correlation ids are missing or differ",
        )  # fmt: skip
    elif lost and share > 0.002:
        yield Check(
            id="dropped", severity="error" if share > 0.1 else "warning", count=lost,
            claim=f"{lost:,} of {len(launches):,} launches have no kernel in the trace: records "
            "were dropped, and the device was busier than it looks",
            affects=("idle", "kernels", "launch", "overlap", "critical path"),
        )  # fmt: skip


def _graphs(trace: Trace, links: Links) -> Iterator[Check]:
    calls = trace.calls
    rows = np.flatnonzero(trace.names_where(calls.name, is_graph_launch))
    if not len(rows):
        return
    seen = np.zeros(len(calls), bool)
    seen[links.device_call[links.device_call >= 0]] = True
    hidden = int((~seen[rows]).sum())
    loose = int((links.device_call < 0).sum())
    if hidden and loose < hidden:
        yield Check(
            id="graphs-hide", severity="error", count=hidden,
            claim=f"{hidden:,} of {len(rows):,} graph launches hide their kernels: the device "
            "worked, and the trace does not say when",
            affects=("idle", "kernels", "categories", "overlap", "critical path", "launch"),
        )  # fmt: skip
    elif hidden:
        yield Check(
            id="graphs-loose", severity="note", count=hidden,
            claim=f"{len(rows):,} graph launches; {loose:,} kernels are not linked to a launch, "
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
