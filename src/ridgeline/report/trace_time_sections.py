"""Where the time went and why the device idled, as sections."""

from ridgeline import units
from ridgeline.records.trace import (
    CriticalPath,
    DeviceTime,
    Gap,
    IdleCause,
    Launch,
    StepTime,
    TraceStudy,
)
from ridgeline.report.names import kernel_name, place_name
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_grid import Column, Section, doubt, number, share, time

MUCH = 0.1
"""A share from which a figure is read as a finding."""
NO_DEVICE = "There is no device work in this trace."


def devices(study: TraceStudy) -> Section:
    shown = len(study.devices) > 1 and study.ranks is None
    return Section(
        id="device",
        title="devices",
        columns=(
            Column("device", "words"),
            *number("busy", "idle", "compute", "communication"),
            Column("exposed"),
            Column("copies", spare=2),
            Column("operations", spare=2),
            Column("streams", spare=2),
        ),
        rows=tuple(_device(d) for d in study.devices),
        short=8 if shown else 0,
        notes=tuple(f"{_label(d)}: {doubt(d.trust)}" for d in study.devices if doubt(d.trust)),
        empty=NO_DEVICE,
    )


def _device(d: DeviceTime) -> tuple[str, ...]:
    whole = d.window.ns or 1
    busy = "—" if d.busy_ns is None else f"{time(d.busy_ns)} {share(d.busy_ns / whole)}"
    idle = "—" if d.idle_ns is None else f"{time(d.idle_ns)} {share(d.idle_ns / whole)}"
    return (
        _label(d), busy, idle, time(d.kernel_ns), time(d.communication_ns),
        time(d.exposed_communication_ns), time(d.copy_ns), f"{d.operations:,}",
        str(len(d.streams)),
    )  # fmt: skip


def _label(d: DeviceTime) -> str:
    rank = "" if d.rank is None else f"rank {d.rank} "
    return printable(f"{rank}device {d.device}{f' {d.name}' if d.name else ''}")


def streams(study: TraceStudy) -> Section:
    rows = tuple(
        (_label(d), str(s.stream), time(s.busy_ns), share(s.busy_ns / (d.window.ns or 1)),
         f"{s.operations:,}")
        for d in study.devices for s in d.streams
    )  # fmt: skip
    return Section(
        id="streams",
        title="streams",
        columns=(Column("device", "words"), *number("stream", "busy", "of window", "operations")),
        rows=rows,
        short=0,
        empty=NO_DEVICE,
    )


def steps(study: TraceStudy) -> Section:
    rows = tuple(_step(d, s) for d in study.devices for s in d.steps)
    return Section(
        id="steps",
        title="steps, as the host marked them",
        columns=(
            Column("step", "words"), Column("device", "words"),
            *number("duration", "busy", "idle", "idle share"), Column("", "words"),
        ),
        rows=rows,
        short=0,
        empty="There are no step marks: call prof.step() after each step.",
    )  # fmt: skip


def _step(d: DeviceTime, s: StepTime) -> tuple[str, ...]:
    known = s.busy_ns + s.idle_ns
    part = share(s.idle_ns / known) if known else "—"
    remark = "" if s.whole else "some of its device work lies outside the mark"
    return (printable(s.name), _label(d), time(s.dur_ns), time(s.busy_ns), time(s.idle_ns), part,
            remark)  # fmt: skip


def causes(study: TraceStudy) -> Section:
    idle = study.idle
    lines = any(c.places for c in idle.causes)
    told = idle.total_ns is not None
    about = f": {time(idle.total_ns)} in {units.plural(idle.gaps, 'gap')}" if told else ""
    return Section(
        id="idle",
        title=f"why the device was idle{about}",
        columns=(
            Column("cause", "words"),
            *number("time", "share", "gaps"),
            *([Column("your line", "place", -1)] if lines else []),
            Column("the host was in", "name", spare=1),
        ),
        rows=tuple(_cause(c, lines) for c in idle.causes),
        shares=tuple(c.share for c in idle.causes),
        short=8,
        doubt=doubt(idle.trust),
        empty="No idle time was found." if study.devices else NO_DEVICE,
    )


def _cause(c: IdleCause, lines: bool) -> tuple[str, ...]:
    row = [c.cause, time(c.ns), share(c.share), f"{c.gaps:,}"]
    if lines:
        more = f" +{len(c.places) - 1}" if len(c.places) > 1 else ""
        row.append(f"{place_name(c.places[0])}{more}" if c.places else "")
    return (*row, kernel_name(c.says) if c.says else "")


def lines(study: TraceStudy) -> Section:
    """All lines of every cause, where one line is not the whole of it."""
    rows = tuple(
        (c.cause, place_name(p), time(p.ns), share(p.ns / c.ns if c.ns else None))
        for c in study.idle.causes
        for p in c.places
    )
    return Section(
        id="lines",
        title="idle time by your own lines",
        columns=(
            Column("cause", "words"),
            Column("line", "place"),
            *number("time", "of the cause"),
        ),
        rows=rows,
        short=0,
        empty="Lines need Python stacks: record with with_stack=True.",
    )


def gaps(study: TraceStudy) -> Section:
    top = study.idle.top
    several = len({g.device for g in top}) > 1
    lines = any(g.place for g in top)
    return Section(
        id="gaps",
        title="the longest gaps",
        columns=(
            *([Column("device")] if several else []),
            *number("at", "length"),
            Column("cause", "words"),
            *([Column("your line", "place", -1)] if lines else []),
            Column("the host was in", "name", spare=1),
            Column("after", "name", spare=2),
            Column("ended by", "name", spare=1),
        ),
        rows=tuple(_gap(g, study, several, lines) for g in top),
        short=3,
        left_out=max(study.idle.gaps - len(top), 0),
        rest="" if len(study.files) > 1 else "shorter: -o FILE.perfetto.json.gz has all",
        empty="There are no gaps to show.",
    )


def _gap(g: Gap, study: TraceStudy, several: bool, lines: bool) -> tuple[str, ...]:
    row = [str(g.device)] if several else []
    row += [time(g.start_ns - study.window.start_ns), time(g.dur_ns), g.cause]
    if lines:
        row.append(place_name(g.place))
    row += [kernel_name(g.host) if g.host else "", kernel_name(g.before), kernel_name(g.after)]
    return tuple(row)


def histogram(study: TraceStudy) -> Section:
    total = study.idle.total_ns or 0
    return Section(
        id="gap_lengths",
        title="gaps by length",
        columns=number("up to", "gaps", "together", "of idle time"),
        rows=tuple(
            (time(most), f"{count:,}", time(ns), share(ns / total if total else None))
            for most, count, ns in study.idle.histogram
        ),
        short=0,
        empty="There are no gaps to count.",
    )


def launch(study: TraceStudy) -> Section:
    said = study.launch
    if not said.launches:
        return Section(id="launch", title="launches", empty="No launching calls are in this trace.")
    parts = [f"{said.launches:,} launches"]
    if said.per_step is not None:
        parts.append(f"{units.significant(said.per_step, 4)} a step")
    if said.median_latency_ns is not None:
        p95 = "" if said.p95_latency_ns is None else f", p95 {time(said.p95_latency_ns)}"
        parts.append(f"{time(said.median_latency_ns)} from call to start{p95}")
    if said.median_call_ns is not None:
        parts.append(f"a call takes {time(said.median_call_ns)}")
    if said.empty_queue is not None:
        parts.append(f"{share(said.empty_queue)} found the device with nothing to do")
    second = [f"{share(said.small_kernels)} of kernels under 10 µs, "
              f"{share(said.small_kernel_time)} of kernel time"]  # fmt: skip
    if said.tensor_core_time is not None:
        second.append(f"{share(said.tensor_core_time)} of matmul-like time on tensor cores")
    if said.linked < 1:
        second.append(f"{share(said.linked)} of device work has its launching call in the trace")
    return Section(
        id="launch",
        title=f"launches{_whose(said)}",
        says=(" · ".join(parts), " · ".join(second)),
        doubt=doubt(said.trust),
    )


def _whose(part: Launch | CriticalPath) -> str:
    """Of several ranks these are one's, not a sum."""
    return printable(f" of {part.of}") if part.of else ""


def overlap(study: TraceStudy) -> Section:
    """Python runs between operators too, and only they are in every trace."""
    o = study.overlap
    parts = (("both", o.both_ns), ("only host", o.host_ns), ("only device", o.device_ns),
             ("neither", o.neither_ns))  # fmt: skip
    total = sum(ns for _, ns in parts) if study.devices else 0
    said = " · ".join(f"{name} {time(ns)} {share(ns / total)}" for name, ns in parts if total)
    if total and o.neither_ns / total >= MUCH:
        said += " (Python between them counts as neither)"
    return Section(
        id="overlap",
        title="host and device",
        says=(f"host in operators or calls, device busy: {said}",) if said else (),
        doubt=doubt(o.trust),
        empty="Host and device cannot be set beside each other.",
    )


def phases(study: TraceStudy) -> Section:
    found = [p for p in study.phases if p.host_ns or p.device_ns]
    known = any(p.phase != "other" for p in found)
    said = " · ".join(
        f"{p.phase} {share(p.share)} (host {time(p.host_ns)}, device {time(p.device_ns)})"
        for p in found
    )
    return Section(
        id="phases",
        title="phases of a step",
        says=(said,) if known else (),
        empty="Phases could not be told: no backward, optimizer or loader was seen.",
    )


def critical_path(study: TraceStudy) -> Section:
    path = study.critical_path
    whole = path.total_ns
    said = (
        f"host {share(path.host_ns / whole)} · device {share(path.device_ns / whole)} · "
        f"waiting {share(path.wait_ns / whole)} of {time(whole)}"
        if whole
        else ""
    )
    top = ", ".join(f"{shorten(kernel_name(p.what), 40)} {share(p.share)}" for p in path.top[:3])
    brief = f"{said}{f'; largest parts: {top}' if top else ''}"
    meant = "; what decided the end: work beside it is hidden behind it"
    return Section(
        id="critical_path",
        title=f"critical path{_whose(path)}",
        columns=(
            Column("what", "name"),
            Column("side", "words"),
            *number("time", "share", "times"),
        ),
        rows=tuple(
            (kernel_name(p.what), p.side, time(p.ns), share(p.share), f"{p.count:,}")
            for p in path.top
        ),
        says=(f"{said}{meant if path.trust.confidence == 'good' else ''}",) if said else (),
        short=0,
        brief=brief if said and study.devices else "",
        doubt=doubt(path.trust),
        empty="The critical path could not be followed.",
    )
