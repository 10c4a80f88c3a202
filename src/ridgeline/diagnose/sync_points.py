"""Lines at which the host waits for the device, by what they cost a step."""

import numpy as np

from ridgeline.records.run_summary import SyncPoint
from ridgeline.records.trace import Window
from ridgeline.trace.host_states import sync_spans
from ridgeline.trace.links import Links, enclosing
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.trace import Trace

MOST = 20
_CALLS = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "a tensor as a condition",
    "aten::nonzero": "nonzero()",
    "aten::masked_select": "a mask as an index",
    "aten::_unique2": "unique()",
    "aten::unique_consecutive": "unique_consecutive()",
    "aten::equal": "equal()",
    "aten::copy_": "a copy to the host",
    "aten::_to_copy": "a copy to the host",
}
"""What the user wrote, for the operator the wait is in."""


def sync_points(trace: Trace, links: Links, window: Window) -> tuple[SyncPoint, ...]:
    """Costliest first; lines without a place of the user's are there too."""
    waits = sync_spans(trace, links)
    waits = waits.take((waits.ts >= window.start_ns) & (waits.ts < window.end_ns))
    if not len(waits):
        return ()
    places = Places(trace, links)
    where = places.at(waits.lane.astype(np.int64), waits.ts)
    lost = np.flatnonzero((where == -1) & (waits.lane != links.main_lane))
    where[lost] = places.at(np.full(len(lost), links.main_lane), waits.ts[lost])
    inside = enclosing(waits, trace.ops, links.op_parent)
    found: dict[tuple[str, str], list[float]] = {}
    for row in range(len(waits)):
        place = place_of(places.text(int(where[row]))) if where[row] != -1 else None
        op = trace.text(int(trace.ops.name[inside[row]])) if inside[row] >= 0 else ""
        call = _CALLS.get(op) or trace.text(int(waits.name[row]))
        key = (f"{place.file}:{place.line}" if place is not None else "", call)
        entry = found.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += int(waits.dur[row])
    steps = max(window.steps, 1)
    points = [
        SyncPoint(place=place, call=call, per_step=count / steps, ms_per_step=ns / 1e6 / steps)
        for (place, call), (count, ns) in found.items()
    ]
    return tuple(sorted(points, key=lambda point: -point.ms_per_step)[:MOST])
