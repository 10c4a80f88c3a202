"""Host and device side by side: how much of the window both worked, one, or neither.

The host works while an operator or a runtime call runs on a thread that drives the device, but
not inside a call that only waits for it. Python between operators is not in sight: it counts as
not working.
"""

from ridgeline.records.trace import Overlap, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.driving import driving_lanes, synchronising, time_of
from ridgeline.trace.intervals import NOTHING, Spans, clip, intersect, merge, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace


def overlap(trace: Trace, links: Links, window: Window) -> Overlap:
    host = clip(_host(trace, links), window.start_ns, window.end_ns)
    device = clip(
        union(trace.device.ts, trace.device.end, sorted_=True), window.start_ns, window.end_ns
    )
    both = intersect(host, device).total
    one, other = host.total, device.total
    return Overlap(
        both_ns=both,
        host_ns=one - both,
        device_ns=other - both,
        neither_ns=window.ns - one - other + both,
        trust=_trust(trace),
    )


def _host(trace: Trace, links: Links) -> Spans:
    """Thread by thread: one may work while another waits."""
    ops, calls = trace.ops, trace.calls
    waits = synchronising(trace, calls)
    working = NOTHING
    for lane in driving_lanes(trace, links):
        mine = calls.lane == lane
        busy = merge(time_of(ops, ops.lane == lane), time_of(calls, mine))
        working = merge(working, subtract(busy, time_of(calls, mine & waits)))
    return working


def _trust(trace: Trace) -> Trust:
    if not len(trace.device):
        return Trust(confidence="doubtful", why="the trace has no device work")
    if not len(trace.ops) and not len(trace.calls):
        return Trust(
            confidence="unreliable", why="the trace has no operators or runtime calls: no host"
        )
    return Trust()
