"""What ran: kernels, operators, modules, kinds of work, the roofline, memory, as sections."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.records.trace import MemoryCurve, OpRow, Region, RooflineRow, TraceStudy
from ridgeline.report.names import kernel_name
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_grid import Column, Section, doubt, number, share, time

LEAST_SHARE = 0.005
"""Kinds of work below it are not worth a word in one line."""
LEAST_MEMORY = 1 << 20
"""Of the CPU's allocator often a few bytes are all that was recorded."""


def categories(study: TraceStudy) -> Section:
    return Section(
        id="categories",
        title="kinds of device work",
        columns=(Column("kind", "words"), *number("time", "share", "operations")),
        rows=tuple(
            (c.category, time(c.device_ns), share(c.share), f"{c.count:,}")
            for c in study.categories
        ),
        short=0,
        brief=" · ".join(
            f"{c.category} {share(c.share)}" for c in study.categories if c.share >= LEAST_SHARE
        ),
        empty="There is no device work to sort.",
    )


def kernels(study: TraceStudy) -> Section:
    return Section(
        id="kernels",
        title="kernels",
        columns=(
            Column("kernel", "name"), Column("kind", "words"),
            *number("time", "share", "times", "mean"),
            Column("least", spare=2), Column("most", spare=2),
            Column("launched by", "name", spare=2), Column("tensor cores", "words", spare=2),
        ),
        rows=tuple(
            (kernel_name(k.name), k.category, time(k.total_ns), share(k.share), f"{k.count:,}",
             time(k.mean_ns), time(k.least_ns), time(k.most_ns), printable(k.op),
             {True: "yes", False: "no", None: ""}[k.tensor_cores])
            for k in study.kernels
        ),
        shares=tuple(k.share for k in study.kernels),
        short=6,
        left_out=study.kernels_left_out,
        empty="There are no kernels in this trace.",
    )  # fmt: skip


def ops(study: TraceStudy) -> Section:
    return Section(
        id="ops",
        title="operators, by "
        + (
            "the device work they launch themselves"
            if _on_device(study.ops)
            else "the host time they take themselves"
        ),
        columns=(Column("operator", "name"), *_op_columns(study.ops)),
        rows=tuple((printable(o.name), *cells) for o, cells in _op_cells(study.ops)),
        shares=tuple(o.share for o in study.ops),
        empty="There are no operators in this trace.",
    )


def shapes(study: TraceStudy) -> Section:
    return Section(
        id="shapes",
        title="operators by shape",
        columns=(Column("operator", "name"), Column("inputs", "name"), *_op_columns(study.shapes)),
        rows=tuple(
            (printable(o.name), printable(o.shape), *cells) for o, cells in _op_cells(study.shapes)
        ),
        short=0,
        empty="Shapes were not recorded: record_shapes=True.",
    )


def _on_device(rows: Sequence[OpRow]) -> bool:
    return any(o.device_ns for o in rows)


def _op_columns(rows: Sequence[OpRow]) -> tuple[Column, ...]:
    host = (*number("host"), Column("host, with calls", spare=2))
    if not _on_device(rows):
        return (*number("share", "times"), *host)
    return (*number("device", "share", "times"), Column("device, with calls", spare=2), *host)


def _op_cells(rows: Sequence[OpRow]) -> Iterator[tuple[OpRow, tuple[str, ...]]]:
    on_device = _on_device(rows)
    for o in rows:
        host = (time(o.host_self_ns), time(o.host_ns))
        part = (share(o.share), f"{o.count:,}")
        if on_device:
            yield o, (time(o.device_self_ns), *part, time(o.device_ns), *host)
        else:
            yield o, (*part, *host)


def modules(study: TraceStudy) -> Section:
    return Section(
        id="modules",
        title="modules",
        columns=(Column("module", "name"), Column("class", "name", spare=2),
                 *number("device", "share"), Column("itself", spare=2),
                 *number("host", "times")),
        rows=tuple(
            (printable(f"{'  ' * min(m.depth, 8)}{m.path.split(' / ')[-1] or m.kind}"),
             printable(m.kind), time(m.device_ns), share(m.share), time(m.device_self_ns),
             time(m.host_ns), f"{m.count:,}")
            for m in study.modules
        ),
        shares=tuple(m.share for m in study.modules),
        short=5,
        empty="Modules need Python stacks: record with with_stack=True.",
    )  # fmt: skip


def roofline(study: TraceStudy) -> Section:
    found = study.roofline
    left = ", ".join(
        f"{shorten(kernel_name(name), 60)} ({time(ns)})" for name, ns in found.uncovered[:3]
    )
    covered = f"{share(found.covered)} of device time has shapes and a formula"
    return Section(
        id="roofline",
        title=f"roofline{f' of {printable(found.device)}' if found.device else ''}",
        columns=(
            Column("operator", "name"), Column("inputs", "name", -1), Column("dtype", "words", 2),
            Column("time", spare=-1), Column("share", spare=1), Column("rate", spare=1),
            Column("bound by", "words"),
            Column("of its ceiling", spare=-1), Column("ceiling", "words", 2),
        ),
        rows=tuple(_roofline(r) for r in found.rows),
        shares=tuple(r.share for r in found.rows),
        notes=(f"{covered}{f'; the rest: {left}' if left else ''}",) if found.rows else (),
        doubt=doubt(found.trust),
        empty="No roofline: it needs recorded shapes (record_shapes=True) and device work.",
    )  # fmt: skip


def _roofline(r: RooflineRow) -> tuple[str, ...]:
    rate = units.bandwidth(r.bytes_s) if r.bound == "memory" else units.flops(r.flops_s)
    if r.ceiling is None:
        ceiling = printable(r.source)
    else:
        most = units.bandwidth(r.ceiling) if r.bound == "memory" else units.flops(r.ceiling)
        ceiling = f"{most} {printable(r.source)}"
    return (printable(r.op), printable(r.shape), printable(r.dtype), time(r.device_ns),
            share(r.share), rate, r.bound or "—", _attained(r), ceiling)  # fmt: skip


def _attained(r: RooflineRow) -> str:
    return "over" if r.over_ceiling else share(r.attained)


def regions(study: TraceStudy) -> Section:
    return Section(
        id="regions",
        title="graphs and compiled regions",
        columns=(Column("region", "name"), Column("kind", "words"),
                 *number("times", "host", "device", "operations"), Column("", "name")),
        rows=tuple(
            (printable(r.name), r.kind, f"{r.count:,}", time(r.host_ns), time(r.device_ns),
             f"{r.operations:,}", printable(r.note))
            for r in study.regions
        ),
        short=0,
        brief=_regions(study.regions),
        empty="No graphs and no compiled regions were seen.",
    )  # fmt: skip


def _regions(found: Sequence[Region]) -> str:
    """The three with most device time, or most of the host's."""
    top = sorted(found, key=lambda r: (-r.device_ns, -r.host_ns))[:3]
    said = [
        f"{shorten(printable(r.name), 50)} {r.count:,} × ({r.kind}, "
        f"{f'device {time(r.device_ns)}' if r.device_ns else f'host {time(r.host_ns)}'})"
        for r in top
    ]
    more = f"and {len(found) - len(top):,} more, with --full"
    return " · ".join([*said, more] if len(found) > len(top) else said)


def memory(study: TraceStudy) -> Section:
    large = [m for m in study.memory if m.peak_bytes >= LEAST_MEMORY]
    return Section(
        id="memory",
        title="memory",
        says=tuple(_memory(m) for m in study.memory),
        brief="\n".join(_memory(m) for m in large or study.memory),
        empty="Memory was not recorded: profile_memory=True.",
    )


def _memory(m: MemoryCurve) -> str:
    parts = [f"{m.device}: peak {units.bytes_(m.peak_bytes)}"]
    if m.peak_step:
        parts[0] += f" in {m.peak_step}"
    if m.reserved_peak_bytes > 0:
        parts.append(f"{units.bytes_(m.reserved_peak_bytes)} reserved")
    parts.append(
        f"{units.bytes_(m.start_bytes)} at the start, {units.bytes_(m.end_bytes)} at the end"
    )
    parts.append(units.plural(m.events, "event"))
    return printable(" · ".join([*parts, *([m.note] if m.note else [])]))
