"""Says where the time of a trace went and why the device was idle."""

from collections.abc import Sequence

from ridgeline import units
from ridgeline.records.trace import DeviceTime, Gap, IdleCause, StepTime, TraceStudy
from ridgeline.report.document import Column, Row, Table, TimelineChart, TimelineSpan, row
from ridgeline.report.numbers import MIN_EXACT_SHARE, share_text, time
from ridgeline.report.plain import kernel_name, place_name, shorten
from ridgeline.report.views.trace_data import (
    GOOD,
    MAX_FOLDED_ROWS,
    NO_DEVICE,
    SectionOrGap,
    doubt_text,
    numbers,
    trace_section,
)

MIN_NOTABLE_SHARE = 0.1
"""A share from which a reader takes a figure for a finding."""
MAX_STRIPS = 16
MAX_DRAWN_GAPS = 200
"""The largest number of gaps drawn: more would overlap, and each takes 200 bytes of the page."""


def idle_causes(study: TraceStudy) -> SectionOrGap:
    idle = study.idle
    has_lines = any(cause.places for cause in idle.causes)
    total = ""
    if idle.total_ns is not None:
        total = f": {time(idle.total_ns)} in {units.plural(idle.gaps, 'gap')}"
    columns = (
        Column("cause", "words"),
        *numbers("time", "share", "gaps"),
        *([Column("your line", "place", -1)] if has_lines else []),
        Column("the host was in", "name", spare=1),
    )
    rows = tuple(_cause_row(cause, has_lines) for cause in idle.causes)
    chart = _gap_timeline(study)
    return trace_section(
        study,
        f"why the device was idle{total}",
        name="idle",
        charts=(chart,) if chart else (),
        table=Table(columns=columns, rows=rows, short=8),
        trust=idle.trust,
        empty="No idle time was found." if study.devices else NO_DEVICE,
    )


def _cause_row(cause: IdleCause, has_lines: bool) -> Row:
    cells = [cause.cause, time(cause.ns), share_text(cause.share), f"{cause.gaps:,}"]
    if has_lines:
        more = f" +{len(cause.places) - 1}" if len(cause.places) > 1 else ""
        cells.append(f"{place_name(cause.places[0])}{more}" if cause.places else "")
    host = kernel_name(cause.says) if cause.says else ""
    return row(*cells, host, minor=cause.share < MIN_EXACT_SHARE)


def _gap_timeline(study: TraceStudy) -> TimelineChart | None:
    """Return the longest gaps along the window. A gap does not name its rank, so several ranks have
    no such chart."""
    window = study.window
    devices = [device for device in study.devices[:MAX_STRIPS] if device.busy_ns is not None]
    ranks = {device.rank for device in study.devices}
    gaps = study.idle.top[:MAX_DRAWN_GAPS]
    if not gaps or window.ns <= 0 or not devices or len(ranks) > 1:
        return None
    return TimelineChart(
        strips=tuple(
            (
                f"device {device.device}",
                tuple(_gap_span(g, study) for g in gaps if g.device == device.device),
            )
            for device in devices
        ),
        window=time(window.ns),
        title="Gaps along the window",
        described=f"{len(gaps)} longest gaps of {study.idle.gaps:,}",
        caption="The longest gaps along the window; blue is busy or a shorter gap.",
    )


def _gap_span(gap: Gap, study: TraceStudy) -> TimelineSpan:
    tip = f"{gap.cause} {time(gap.dur_ns)}, then {kernel_name(gap.after)}"
    return TimelineSpan(
        max((gap.start_ns - study.window.start_ns) / study.window.ns, 0.0),
        gap.dur_ns / study.window.ns,
        gap.cause,
        f"{tip} {place_name(gap.place)}".strip(),
    )


def longest_gaps(study: TraceStudy, limit: int | None) -> SectionOrGap:
    gaps = study.idle.top
    has_devices = len({gap.device for gap in gaps}) > 1
    has_lines = any(gap.place for gap in gaps)
    columns = (
        *([Column("device")] if has_devices else []),
        *numbers("at", "length"),
        Column("cause", "words"),
        *([Column("your line", "place", -1)] if has_lines else []),
        Column("the host was in", "name", spare=1),
        Column("after", "name", spare=2),
        Column("ended by", "name", spare=1),
    )
    table = Table(
        columns=columns,
        rows=tuple(_gap_row(gap, study, has_devices, has_lines) for gap in gaps[:limit]),
        short=3,
        unseen=len(gaps) - len(gaps[:limit]),
        left_out=max(study.idle.gaps - len(gaps), 0),
        rest="" if len(study.files) > 1 else "shorter: -o FILE.perfetto.json.gz has all",
    )
    return trace_section(
        study, "the longest gaps", name="gaps", table=table, empty="There are no gaps to show."
    )


def _gap_row(gap: Gap, study: TraceStudy, has_devices: bool, has_lines: bool) -> Row:
    start = time(gap.start_ns - study.window.start_ns)
    return row(
        *([str(gap.device)] if has_devices else []),
        start,
        time(gap.dur_ns),
        gap.cause,
        *([place_name(gap.place)] if has_lines else []),
        kernel_name(gap.host) if gap.host else "",
        kernel_name(gap.before),
        kernel_name(gap.after),
    )


def idle_lines(study: TraceStudy) -> SectionOrGap:
    """Return every line of every cause."""
    rows = tuple(
        row(cause.cause, place_name(place), time(place.ns),
            share_text(place.ns / cause.ns if cause.ns else None))
        for cause in study.idle.causes
        for place in cause.places
    )  # fmt: skip
    columns = (
        Column("cause", "words"),
        Column("line", "place", -1),
        *numbers("time", "of the cause"),
    )
    return trace_section(
        study,
        "idle time by your own lines",
        name="lines",
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        empty="Lines need Python stacks: record with with_stack=True.",
        full=True,
    )


def gap_lengths(study: TraceStudy) -> SectionOrGap:
    total = study.idle.total_ns or 0
    rows = tuple(
        row(time(limit), f"{count:,}", time(ns), share_text(ns / total if total else None))
        for limit, count, ns in study.idle.histogram
    )
    columns = numbers("up to", "gaps", "together", "of idle time")
    return trace_section(
        study,
        "gaps by length",
        name="gap_lengths",
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        empty="There are no gaps to count.",
        full=True,
    )


def devices(study: TraceStudy) -> SectionOrGap:
    columns = (
        Column("device", "words"),
        *numbers("busy", "idle", "compute", "communication"),
        Column("exposed"),
        Column("copies", spare=2),
        Column("operations", spare=2),
        Column("streams", spare=2),
    )
    doubts = ((device, doubt_text(device.trust)) for device in study.devices)
    is_short = len(study.devices) > 1 and study.ranks is None
    return trace_section(
        study,
        "devices",
        name="device",
        table=Table(
            columns=columns,
            rows=tuple(_device_row(device) for device in study.devices),
            short=8 if is_short else MAX_FOLDED_ROWS,
        ),
        notes=[f"{_device_label(device)}: {doubt}" for device, doubt in doubts if doubt],
        empty=NO_DEVICE,
        full=not is_short,
    )


def _device_row(device: DeviceTime) -> Row:
    def part(ns: int | None) -> str:
        return "—" if ns is None else f"{time(ns)} {share_text(ns / (device.window.ns or 1))}"

    return row(
        _device_label(device), part(device.busy_ns), part(device.idle_ns),
        time(device.kernel_ns), time(device.communication_ns),
        time(device.exposed_communication_ns), time(device.copy_ns),
        f"{device.operations:,}", str(len(device.streams)),
    )  # fmt: skip


def _device_label(device: DeviceTime) -> str:
    rank = "" if device.rank is None else f"rank {device.rank} "
    return f"{rank}device {device.device}{f' {device.name}' if device.name else ''}"


def streams(study: TraceStudy) -> SectionOrGap:
    rows = tuple(
        row(_device_label(device), str(stream.stream), time(stream.busy_ns),
            share_text(stream.busy_ns / (device.window.ns or 1)), f"{stream.operations:,}")
        for device in study.devices
        for stream in device.streams
    )  # fmt: skip
    columns = (Column("device", "words"), *numbers("stream", "busy", "of window", "operations"))
    table = Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS)
    return trace_section(
        study, "streams", name="streams", table=table, empty=NO_DEVICE, full=True
    )  # fmt: skip


def steps(study: TraceStudy) -> SectionOrGap:
    columns = (
        Column("step", "words"), Column("device", "words"),
        *numbers("duration", "busy", "idle", "idle share"), Column("", "words"),
    )  # fmt: skip
    rows = tuple(_step_row(device, step) for device in study.devices for step in device.steps)
    return trace_section(
        study,
        "steps, as the host marked them",
        name="steps",
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        empty="No step is marked: give profile() a schedule, and call prof.step() after each step.",
        full=True,
    )


def _step_row(device: DeviceTime, step: StepTime) -> Row:
    known_ns = step.busy_ns + step.idle_ns
    return row(
        step.name, _device_label(device), time(step.dur_ns), time(step.busy_ns),
        time(step.idle_ns), share_text(step.idle_ns / known_ns) if known_ns else "—",
        "" if step.whole else "some of its device work lies outside the mark",
    )  # fmt: skip


def launches(study: TraceStudy) -> SectionOrGap:
    launch = study.launch
    sentences: Sequence[str] = ()
    if launch.launches:
        calls = [f"{launch.launches:,} launches"]
        if launch.per_step is not None:
            calls.append(f"{units.significant(launch.per_step, 4)} a step")
        if launch.median_latency_ns is not None:
            known = launch.p95_latency_ns is not None
            p95 = f", p95 {time(launch.p95_latency_ns)}" if known else ""
            calls.append(f"{time(launch.median_latency_ns)} from call to start{p95}")
        if launch.median_call_ns is not None:
            calls.append(f"a call takes {time(launch.median_call_ns)}")
        if launch.empty_queue is not None:
            calls.append(f"{share_text(launch.empty_queue)} found the device idle")
        work = [
            f"{share_text(launch.small_kernels)} of kernels under 10 µs, "
            f"{share_text(launch.small_kernel_time)} of kernel time"
        ]
        if launch.tensor_core_time is not None:
            work.append(
                f"{share_text(launch.tensor_core_time)} of matmul-like time on tensor cores"
            )
        if launch.linked < 1:
            work.append(
                f"{share_text(launch.linked)} of device work has its launching call in the trace"
            )
        sentences = (" · ".join(calls), " · ".join(work))
    return trace_section(
        study,
        f"launches{_whose(launch.of)}" if sentences else "launches",
        name="launch",
        sentences=sentences,
        trust=launch.trust if sentences else GOOD,
        empty="No launching calls are in this trace.",
    )


def _whose(label: str) -> str:
    """Return which rank the figures are of: with several ranks they are not a sum."""
    return f" of {label}" if label else ""


def overlap(study: TraceStudy) -> SectionOrGap:
    both = study.overlap
    parts = (("both", both.both_ns), ("only host", both.host_ns), ("only device", both.device_ns),
             ("neither", both.neither_ns))  # fmt: skip
    total = sum(ns for _, ns in parts) if study.devices else 0
    sentences = ""
    if total:
        split = " · ".join(f"{name} {time(ns)} {share_text(ns / total)}" for name, ns in parts)
        sentences = f"host in operators or calls, device busy: {split}"
        # Python runs between operators too, and only operators are in every trace.
        if both.neither_ns / total >= MIN_NOTABLE_SHARE:
            sentences += " (Python between them counts as neither)"
    return trace_section(
        study,
        "host and device",
        name="overlap",
        sentences=(sentences,) if sentences else (),
        trust=both.trust,
        empty="Host and device cannot be set beside each other.",
    )


def phases(study: TraceStudy) -> SectionOrGap:
    seen = [phase for phase in study.phases if phase.host_ns or phase.device_ns]
    split = " · ".join(
        f"{p.phase} {share_text(p.share)} (host {time(p.host_ns)}, device {time(p.device_ns)})"
        for p in seen
    )
    return trace_section(
        study,
        "phases of a step",
        name="phases",
        sentences=(split,) if any(p.phase != "other" for p in seen) else (),
        empty="Phases are not known: no backward, optimizer or loader was seen.",
    )


def critical_path(study: TraceStudy) -> SectionOrGap:
    path = study.critical_path
    sentences = line = ""
    if path.total_ns:
        sentences = (
            f"host {share_text(path.host_ns / path.total_ns)} · "
            f"device {share_text(path.device_ns / path.total_ns)} · "
            f"waiting {share_text(path.wait_ns / path.total_ns)} of {time(path.total_ns)}"
        )
        top = ", ".join(
            f"{shorten(kernel_name(p.what), 40)} {share_text(p.share)}" for p in path.top[:3]
        )
        line = f"{sentences}{f'; largest parts: {top}' if top else ''}" if study.devices else ""
        if path.trust.confidence == "good":
            sentences += (
                "; this chain decides when the window ends, and other work is hidden behind it"
            )
    columns = (
        Column("what", "name", -1),
        Column("side", "words"),
        *numbers("time", "share", "times"),
    )
    rows = tuple(
        row(kernel_name(p.what), p.side, time(p.ns), share_text(p.share), f"{p.count:,}")
        for p in path.top
    )
    return trace_section(
        study,
        f"critical path{_whose(path.of)}",
        name="critical path",
        sentences=(sentences,) if sentences else (),
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        trust=path.trust,
        empty="The critical path could not be followed.",
        full=True,
        line=line,
    )
