"""Copies between host and device, by the line of code that makes them."""

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.sites import CopySite
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.busy import busy_spans, is_communication
from ridgeline.trace.analyses.critical_path import device_on_path
from ridgeline.trace.analyses.phases import CODED_PHASES, phase_codes
from ridgeline.trace.analyses.recorded_calls import sizes_of
from ridgeline.trace.columns import Kind
from ridgeline.trace.intervals import Spans, covered
from ridgeline.trace.links import Links, sums_by
from ridgeline.trace.places import CallPaths, user_places
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import step_spans, steps_of

MAX_SITES = 200
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|Host -> Device", re.IGNORECASE)
_TO_HOST = re.compile(r"DtoH|DeviceToHost|Device -> Host", re.IGNORECASE)
_PAGEABLE, _PINNED = re.compile("Pageable", re.IGNORECASE), re.compile("Pinned", re.IGNORECASE)

_Key = tuple[bool, bool | None, str, int, int, int, tuple[str, ...]]


def copy_sites(trace: Trace, links: Links, window: Window) -> tuple[CopySite, ...]:
    """Return the copies with the most exposed time first; () where the trace has no device."""
    device = trace.device
    copies = (device.kind == Kind.MEMCPY) & trace.names_where(device.name, _over_link)
    spans = step_spans(trace, window)
    call = links.device_call
    requested = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], device.ts) if len(
        trace.calls
    ) else device.ts  # fmt: skip
    rows = np.flatnonzero(copies & (covered(spans, requested, requested + 1) > 0))
    if not len(rows):
        return ()
    steps = max(window.steps, 1)
    exposed, on_path = _exposed(trace, window, rows), device_on_path(trace, links, window)
    main = _main_stream(trace)
    places = user_places(trace, links)
    codes = places.at_or_main(links.launch_lane[rows].astype(np.int64), requested[rows])
    phases = phase_codes(trace, links, requested[rows])
    groups: dict[_Key, list[int]] = defaultdict(list)
    ops = [_op(trace, links, int(row)) for row in rows]
    paths, offset = _paths(trace, links, call[rows]), _offsets(trace, requested[rows])
    for i, row in enumerate(rows.tolist()):
        name = trace.text(int(device.name[row]))
        op, shape = ops[i]
        key = (bool(_TO_DEVICE.search(name)), _pageable(name), op, int(codes[i]), int(phases[i]),
               shape, paths[i])  # fmt: skip
        groups[key].append(i)
    sites = []
    for (to_device, pageable, op, place, phase, shape, via), members in groups.items():
        of_site = rows[members]
        calls = call[of_site][call[of_site] >= 0]
        inputs = trace.shape(shape)
        source = _source(inputs.dims)
        sites.append(
            CopySite(
                direction="to device" if to_device else "to host",
                pageable=pageable,
                op=op,
                place=places.place(place),
                via=via,
                phase=CODED_PHASES[phase],
                dims=source[0],
                dtype=str(inputs.types[source[1]]) if 0 <= source[1] < len(inputs.types) else "",
                offset_ns=int(offset[members].min()),
                copies=len(members) / steps,
                bytes=float(np.maximum(device.bytes[of_site], 0).sum()) / steps,
                device_ns=float(device.dur[of_site].sum()) / steps,
                exposed_ns=float(exposed[members].sum()) / steps,
                path_ns=float(on_path[of_site].sum()) / steps,
                beside=bool((device.stream[of_site] != main).all()),
                host_ns=float(trace.calls.dur[calls].sum()) / steps if len(calls) else 0.0,
            )
        )
    return tuple(sorted(sites, key=lambda site: -(site.exposed_ns + site.host_ns))[:MAX_SITES])


def _over_link(name: str) -> bool:
    return bool(_TO_DEVICE.search(name) or _TO_HOST.search(name))


def _pageable(name: str) -> bool | None:
    if _PAGEABLE.search(name):
        return True
    return False if _PINNED.search(name) else None


def _exposed(trace: Trace, window: Window, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how long each copy ran while no kernel that computes ran on its device."""
    device = trace.device
    kernels = (device.kind == Kind.KERNEL) & ~trace.names_where(device.name, is_communication)
    exposed = np.zeros(len(rows), np.int64)
    for number in np.unique(device.device[rows]):
        on_device = np.flatnonzero(device.device[rows] == number)
        busy: Spans = busy_spans(device.take(kernels & (device.device == number)), window)
        copies = rows[on_device]
        exposed[on_device] = device.dur[copies] - covered(
            busy, device.ts[copies], device.end[copies]
        )
    return exposed


def _main_stream(trace: Trace) -> int:
    """Return the stream with the most kernel time; -1 where there are no kernels."""
    device = trace.device
    kernels = device.kind == Kind.KERNEL
    streams, stream_of = np.unique(device.stream[kernels], return_inverse=True)
    if not len(streams):
        return -1
    total = sums_by(stream_of, device.dur[kernels], len(streams))
    return int(streams[total.argmax()])


def _paths(trace: Trace, links: Links, call: NDArray[np.int64]) -> list[tuple[str, ...]]:
    known = np.flatnonzero(call >= 0)
    paths: list[tuple[str, ...]] = [()] * len(call)
    known_paths = CallPaths(trace, links).of(trace.calls.take(call[known]))
    for i, (via, _) in zip(known.tolist(), known_paths, strict=True):
        paths[i] = via
    return paths


def _offsets(trace: Trace, requested: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the time from the start of the step to the request for each copy; without steps, from
    the first request."""
    begins = np.sort(steps_of(trace).start)
    begins = begins if len(begins) else requested.min(keepdims=True)
    step = np.searchsorted(begins, requested, side="right") - 1
    return requested - begins[np.maximum(step, 0)]


def _op(trace: Trace, links: Links, row: int) -> tuple[str, int]:
    """Return the outermost operator around a copy, and the innermost recorded shape."""
    op, shape = int(links.device_op[row]), -1
    name = ""
    while op >= 0:
        shape = int(trace.ops.shape[op]) if shape < 0 else shape
        name = trace.text(int(trace.ops.name[op]))
        op = int(links.op_parent[op])
    return name, shape


def _source(dims: tuple[object, ...]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the tensor that aten::copy_(to, from) copies, and its position."""
    for index in (1, 0):
        sizes = sizes_of(dims[index]) if index < len(dims) else None
        if sizes:
            return sizes, index
    return (), -1
