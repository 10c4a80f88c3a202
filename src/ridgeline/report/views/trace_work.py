"""Says what ran in a trace: kernels, operators, modules, the roofline, memory; and over which
ranks."""

from collections import Counter
from collections.abc import Sequence

from ridgeline import units
from ridgeline.records.machine import Ceiling
from ridgeline.records.trace import (
    CollectiveRow,
    MemoryCurve,
    ModuleRow,
    OpRow,
    Place,
    Ranks,
    RankTime,
    Region,
    Roofline,
    RooflineLimit,
    RooflineRow,
    TraceStudy,
)
from ridgeline.report.document import (
    Cell,
    Column,
    CurveChart,
    Row,
    Table,
    row,
)
from ridgeline.report.drawings import (
    IciclePlot,
    Measure,
    Roof,
    RooflineGroup,
    RooflinePlot,
    RooflinePoint,
)
from ridgeline.report.numbers import MIN_EXACT_SHARE, share, share_text, time
from ridgeline.report.plain import kernel_name, printable, shorten
from ridgeline.report.views.trace_data import (
    MAX_FOLDED_ROWS,
    SectionOrGap,
    numbers,
    trace_section,
)

MIN_NAMED_CATEGORY_SHARE = 0.005
"""Kinds of work below this share are not in the line that sums them up."""
MIN_MEMORY_BYTES = 1 << 20
"""Curves with a lower peak are not shown: often a few bytes are all that was recorded of the CPU's
allocator."""
MAX_CURVES = 16
MAX_POINTS = 200
"""Points of one kind: more overlap, and each takes 300 bytes of the page."""
MAX_DTYPES = 3
"""Types of arithmetic whose ceilings are drawn; more lines could not be told apart."""
MIN_TITLE_SHARE = 0.02
"""A class of operators with less of the time is not worth a part of a title."""
MIN_TREE_NODES = 3
"""Fewer modules need no figure."""
TREE_CAPTION = (
    "Each module stands below the one that holds it. Click one to zoom in; Escape zooms out."
)
MAX_NAMED_REGIONS = 3
MAX_INDENTS = 8
"""The largest number of levels by which the name of a module is indented."""
_ONE_RANK = "One rank only: give the traces of all ranks together to see who was late."


def timed(ns: float | None) -> Cell:
    """Return a time that sorts by its length, and not by its text."""
    return Cell(time(ns), ns)


def part(share: float | None) -> Cell:
    return Cell(share_text(share), share)


def counted(number: int) -> Cell:
    return Cell(f"{number:,}", number)


def kernels(study: TraceStudy, limit: int | None) -> SectionOrGap:
    columns = (
        Column("kernel", "name"), Column("kind", "words"),
        *numbers("time", "share", "times", "mean"),
        Column("least", spare=2), Column("most", spare=2),
        Column("launched by", "name", spare=2), Column("tensor cores", "words", spare=2),
    )  # fmt: skip
    rows = tuple(
        row(kernel_name(k.name), k.category, timed(k.total_ns), part(k.share),
            counted(k.count), timed(k.mean_ns), timed(k.least_ns),
            timed(k.most_ns), k.op, {True: "yes", False: "no", None: ""}[k.tensor_cores],
            minor=k.share < MIN_EXACT_SHARE)
        for k in study.kernels[:limit]
    )  # fmt: skip
    table = Table(
        columns=columns,
        rows=rows,
        short=6,
        unseen=len(study.kernels) - len(rows),
        left_out=study.kernels_left_out,
    )
    return trace_section(
        study, "kernels", name="kernels", table=table, empty="There are no kernels in this trace."
    )


def operators(study: TraceStudy, limit: int | None) -> SectionOrGap:
    on_device = "the device work they launch themselves"
    by = on_device if _has_device_work(study.ops) else "the host time they take themselves"
    return trace_section(
        study,
        f"operators, by {by}",
        name="ops",
        table=_operator_table(study.ops, limit, has_inputs=False),
        empty="There are no operators in this trace.",
    )


def operators_by_shape(study: TraceStudy, limit: int | None) -> SectionOrGap:
    return trace_section(
        study,
        "operators by shape",
        name="shapes",
        table=_operator_table(study.shapes, limit, has_inputs=True),
        empty="Shapes were not recorded: record_shapes=True.",
        full=True,
    )


def _has_device_work(rows: Sequence[OpRow]) -> bool:
    return any(op.device_ns for op in rows)


def _operator_table(ops: Sequence[OpRow], limit: int | None, *, has_inputs: bool) -> Table:
    on_device = _has_device_work(ops)
    columns = (
        Column("operator", "name"),
        *([Column("inputs", "name")] if has_inputs else []),
        *(numbers("device") if on_device else ()),
        *numbers("share", "times"),
        *([Column("device, with calls", spare=2)] if on_device else []),
        *numbers("host"),
        Column("host, with calls", spare=2),
    )
    rows = tuple(
        row(
            op.name,
            *([op.shape] if has_inputs else []),
            *([timed(op.device_self_ns)] if on_device else []),
            part(op.share),
            counted(op.count),
            *([timed(op.device_ns)] if on_device else []),
            timed(op.host_self_ns),
            timed(op.host_ns),
            minor=not has_inputs and op.share < MIN_EXACT_SHARE,
        )
        for op in ops[:limit]
    )
    short = MAX_FOLDED_ROWS if has_inputs else 5
    return Table(columns=columns, rows=rows, short=short, unseen=len(ops) - len(rows))


def modules(study: TraceStudy, limit: int | None) -> SectionOrGap:
    columns = (
        Column("module", "name"), Column("class", "name", spare=2), *numbers("device", "share"),
        Column("itself", spare=2), *numbers("host", "times"),
    )  # fmt: skip
    rows = tuple(
        row(f"{'  ' * min(m.depth, MAX_INDENTS)}{m.path.split(' / ')[-1] or m.kind}", m.kind,
            timed(m.device_ns), part(m.share), timed(m.device_self_ns),
            timed(m.host_ns), counted(m.count), minor=m.share < MIN_EXACT_SHARE)
        for m in study.modules[:limit]
    )  # fmt: skip
    return trace_section(
        study,
        "modules",
        name="modules",
        charts=(plot,) if (plot := _module_plot(study.modules)) is not None else (),
        table=Table(columns=columns, rows=rows, short=5, unseen=len(study.modules) - len(rows)),
        empty="Modules need Python stacks: record with with_stack=True.",
    )


def _module_plot(rows: Sequence[ModuleRow]) -> IciclePlot | None:
    """Return the modules as a tree; those whose holder has no row are left out."""
    number: dict[str, int] = {"": -1}
    kept: list[ModuleRow] = []
    for found in sorted(rows, key=lambda m: m.depth):
        if found.path.rpartition(" / ")[0] in number and found.path not in number:
            number[found.path] = len(kept)
            kept.append(found)
    if len(kept) < MIN_TREE_NODES:
        return None
    children: dict[str, int] = {}
    for module in kept:
        holder = module.path.rpartition(" / ")[0]
        children[holder] = children.get(holder, 0) + 1
    # A module that stands alone in another says nothing: that one is a wrapper or a container.
    beside = [m for m in kept if children[m.path.rpartition(" / ")[0]] > 1] or kept
    largest = max(beside, key=lambda m: (m.device_ns, m.host_ns))
    whole_ns = sum(m.device_ns for m in kept if " / " not in m.path)
    title = "where the modules spend the host's time"
    if largest.device_ns and whole_ns:
        name = largest.path.rpartition(" / ")[2]
        title = f"{name} takes {share(largest.device_ns / whole_ns)} of the model's device time"
    return IciclePlot(
        title=title,
        names=tuple(m.path.rpartition(" / ")[2] for m in kept),
        parents=tuple(number[m.path.rpartition(" / ")[0]] for m in kept),
        notes=tuple(f"{m.kind}, {m.count:,} calls" for m in kept),
        measures=(
            Measure(name="device", unit="ns", values=tuple(m.device_ns for m in kept)),
            Measure(name="host", unit="ns", values=tuple(m.host_ns for m in kept)),
        ),
        whole="model",
        caption=TREE_CAPTION,
    )


def categories(study: TraceStudy) -> SectionOrGap:
    rows = tuple(
        row(c.category, timed(c.device_ns), part(c.share), counted(c.count))
        for c in study.categories
    )
    columns = (Column("kind", "words"), *numbers("time", "share", "operations"))
    named = (c for c in study.categories if c.share >= MIN_NAMED_CATEGORY_SHARE)
    return trace_section(
        study,
        "kinds of device work",
        name="categories",
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        empty="There is no device work to sort.",
        full=True,
        line=" · ".join(f"{c.category} {share_text(c.share)}" for c in named),
    )


def roofline(study: TraceStudy, limit: int | None) -> SectionOrGap:
    roofline = study.roofline
    columns = (
        Column("operator", "name"), Column("inputs", "name", -1), Column("dtype", "words", 2),
        Column("time", spare=-1), Column("share", spare=1), Column("rate", spare=1),
        Column("bound by", "words"),
        Column("of its ceiling", spare=-1), Column("ceiling", "words", 2),
    )  # fmt: skip
    rows = tuple(_roofline_row(r) for r in roofline.rows[:limit])
    others = ", ".join(
        f"{shorten(kernel_name(name), 60)} ({time(ns)})" for name, ns in roofline.uncovered[:3]
    )
    covered = f"{share_text(roofline.covered)} of device time has shapes and a formula"
    return trace_section(
        study,
        f"roofline{f' of {roofline.device}' if roofline.device else ''}",
        name="roofline",
        charts=(plot,) if (plot := roofline_plot(roofline)) is not None else (),
        table=Table(columns=columns, rows=rows, short=5, unseen=len(roofline.rows) - len(rows)),
        notes=[f"{covered}{f'; the rest: {others}' if others else ''}"],
        trust=roofline.trust,
        empty="No roofline: it needs recorded shapes (record_shapes=True) and device work.",
    )


def _roofline_row(r: RooflineRow) -> Row:
    is_memory = r.bound == "memory"
    ceiling = r.source
    if r.ceiling is not None:
        value = units.bandwidth(r.ceiling) if is_memory else units.flops(r.ceiling)
        ceiling = f"{value} {r.source}"
    return row(
        r.op, r.shape, r.dtype, timed(r.device_ns), part(r.share),
        units.bandwidth(r.bytes_s) if is_memory else units.flops(r.flops_s), r.bound or "—",
        Cell("over" if r.over_ceiling else share_text(r.attained), r.attained), ceiling,
        minor=r.share < MIN_EXACT_SHARE,
    )  # fmt: skip


def roofline_plot(roofline: Roofline) -> RooflinePlot | None:
    """Return the roofline as a figure; None where no operator has known work."""
    groups = [
        RooflineGroup(name=name, points=tuple(point(r) for r in rows if r.bytes)[:MAX_POINTS])
        for name, rows in (
            ("operators", roofline.rows), ("modules", roofline.modules),
            ("kernels", roofline.kernels),
        )
    ]  # fmt: skip
    if not groups[0].points:
        return None
    covered = f"{share_text(roofline.covered)} of the time has known work and is drawn."
    still = any(r.bytes and not r.flops for r in roofline.rows)
    edge = " Work without arithmetic, such as copies, stands at the left edge." if still else ""
    return RooflinePlot(
        title=roofline_title(roofline),
        roofs=roofs(roofline.ceilings, {r.dtype for r in roofline.rows}, roofline.rows),
        groups=tuple(group for group in groups if group.points),
        caption=f"{covered}{edge} The size of a mark is its time, its shape what limits it; solid "
        "roofs were measured here, dashed ones are the datasheet's, dotted ones were measured on a "
        "busy machine and judge nothing. Click a mark to see its row.",
    )


def roofline_title(roofline: Roofline) -> str:
    """Return what the roofline shows, as a sentence."""
    parts = []
    bounds: tuple[tuple[RooflineLimit, float | None], ...] = (
        ("compute", roofline.attained_of("compute")), ("memory", roofline.attained_of("memory")),
        ("overhead", None),
    )  # fmt: skip
    for limit, attained in bounds:
        part = roofline.share_of(limit)
        if part < MIN_TITLE_SHARE:
            continue
        reach = f" and reach {share(attained)} of their roof" if attained is not None else ""
        parts.append(f"{limit}-bound operators take {share(part)} of the time{reach}")
    if not parts:
        return "Rate and intensity of each operator; no usable ceiling of this device is known"
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def point(found: RooflineRow) -> RooflinePoint:
    place = place_text(found.place)
    notes = (
        found.shape,
        f"{found.count:,} × {time(found.mean_ns)}, {found.dtype}".rstrip(", "),
        f"called from {place}" if place else "",
        f"most of it in {found.module}" if found.module else "",
        found.note,
    )
    return RooflinePoint(
        name=kernel_name(found.op),
        intensity=found.intensity,
        rate=found.flops_s,
        ns=found.device_ns,
        share=found.share,
        kind=found.limit,
        attained=None if found.over_ceiling else found.attained,
        notes=tuple(note for note in notes if note),
        row=found.shape,
    )


def roofs(
    ceilings: Sequence[Ceiling], dtypes: set[str], rows: Sequence[RooflineRow] = ()
) -> tuple[Roof, ...]:
    """Return the ceilings that matter to the drawn work; without any known ceilings, those that its
    rows name."""
    made = [
        Roof(
            name=ceiling.dtype or "memory",
            value=ceiling.value,
            kind="compute" if ceiling.quantity == "matmul" else "memory",
            source=ceiling.source,
            is_doubtful=ceiling.state != "usable",
        )
        for ceiling in ceilings
        if ceiling.quantity == "copy" or (ceiling.quantity == "matmul" and ceiling.dtype in dtypes)
    ]
    if not made:
        named = {
            (r.bound, r.dtype if r.bound == "compute" else "memory", r.ceiling, r.source)
            for r in rows
            if r.ceiling is not None
        }
        made = [
            Roof(name=name, value=value, kind="compute" if bound == "compute" else "memory",
                 source="measured" if source == "measured" else "datasheet")
            for bound, name, value, source in sorted(named)
        ]  # fmt: skip
    known = {roof.name for roof in made if roof.kind == "compute"}
    longest_first = dict.fromkeys(r.dtype for r in rows if r.limit == "compute")
    kept = [dtype for dtype in (*longest_first, *sorted(known)) if dtype in known]
    kept = list(dict.fromkeys(kept))[:MAX_DTYPES]
    flat = [roof for dtype in kept for roof in made if roof.name == dtype]
    return (*flat, *(roof for roof in made if roof.kind == "memory"))


def place_text(place: Place | None) -> str:
    return f"{place.file}:{place.line} {place.function}".rstrip() if place is not None else ""


def regions(study: TraceStudy) -> SectionOrGap:
    columns = (
        Column("region", "name", -1), Column("kind", "words"),
        *numbers("times", "host", "device", "operations"), Column("", "name"),
    )  # fmt: skip
    rows = tuple(
        row(r.name, r.kind, counted(r.count), timed(r.host_ns), timed(r.device_ns),
            counted(r.operations), r.note)
        for r in study.regions
    )  # fmt: skip
    return trace_section(
        study,
        "graphs and compiled regions",
        name="regions",
        table=Table(columns=columns, rows=rows, short=MAX_FOLDED_ROWS),
        empty="No graphs and no compiled regions were seen.",
        full=True,
        line=_region_line(study.regions),
    )


def _region_line(regions: Sequence[Region]) -> str:
    """Return the regions with most device time, or else most host time."""
    top = sorted(regions, key=lambda r: (-r.device_ns, -r.host_ns))[:MAX_NAMED_REGIONS]
    parts = []
    for r in top:
        side, ns = ("device", r.device_ns) if r.device_ns else ("host", r.host_ns)
        parts.append(f"{shorten(r.name, 50)} {r.count:,} × ({r.kind}, {side} {time(ns)})")
    if len(regions) > len(top):
        parts.append(f"and {len(regions) - len(top):,} more, with --full")
    return " · ".join(parts)


def memory(study: TraceStudy) -> SectionOrGap:
    large = [curve for curve in study.memory if curve.peak_bytes >= MIN_MEMORY_BYTES]
    return trace_section(
        study,
        "memory",
        name="memory",
        sentences=[_memory_text(curve) for curve in study.memory],
        charts=[
            CurveChart(
                points=curve.points,
                peak=(curve.peak_ns, curve.peak_bytes),
                title=f"Memory of {curve.device}",
                caption=f"{curve.device}; dashed: reserved",
            )
            for curve in study.memory[:MAX_CURVES]
            if _is_drawable(curve)
        ],
        # A line break in a name must not look like the next device.
        line="\n".join(printable(_memory_text(curve)) for curve in large or study.memory),
        empty="Memory was not recorded: profile_memory=True.",
    )


def _is_drawable(curve: MemoryCurve) -> bool:
    points = curve.points
    return curve.peak_bytes >= MIN_MEMORY_BYTES and len(points) > 1 and points[-1][0] > points[0][0]


def _memory_text(curve: MemoryCurve) -> str:
    peak = f"{curve.device}: peak {units.bytes_(curve.peak_bytes)}"
    parts = [f"{peak} in {curve.peak_step}" if curve.peak_step else peak]
    if curve.reserved_peak_bytes > 0:
        parts.append(f"{units.bytes_(curve.reserved_peak_bytes)} reserved")
    parts.append(
        f"{units.bytes_(curve.start_bytes)} at the start, {units.bytes_(curve.end_bytes)} at the "
        "end"
    )
    parts.append(units.plural(curve.events, "event"))
    return " · ".join([*parts, *([curve.note] if curve.note else [])])


def ranks(study: TraceStudy) -> SectionOrGap:
    across = study.ranks
    columns = (
        Column("rank", "words"),
        *numbers("busy", "compute"),
        Column("communication", spare=1),
        *numbers("waiting", "moving"),
        Column("hidden", spare=1),
        *numbers("last to arrive"),
        Column("others waited", spare=-1),
        Column("clock", spare=2),
        Column("was doing", "name", spare=-1),
    )
    if across is None:
        return trace_section(study, "ranks", empty=_ONE_RANK)
    unmatched = f", {across.unmatched:,} not" if across.unmatched else ""
    matched = units.plural(across.matched, "collective")
    return trace_section(
        study,
        "ranks",
        name="ranks",
        table=Table(columns=columns, rows=tuple(map(_rank_row, across.ranks)), short=16),
        notes=[f"{matched} matched over the ranks{unmatched}"],
        trust=across.trust,
        empty="No rank has device work.",
    )


def _rank_row(r: RankTime) -> Row:
    # If waiting was not split, who came last is not known; that is not the same as never.
    is_split = r.wait_ns is not None
    late = (f"{r.late_count:,} ×", time(r.caused_wait_ns)) if is_split else ("—", "—")
    return row(
        r.label or str(r.rank),
        "—" if r.busy_ns is None else share_text(r.busy_ns / (r.window_ns or 1)),
        time(r.compute_ns), time(r.communication_ns), time(r.wait_ns),
        time(r.transfer_ns), share_text(r.overlap), *late,
        f"{r.clock_offset_ns / 1e6:+.3g} ms" if r.clock_offset_ns else "0",
        ", ".join(f"{activity.label} {time(activity.ns)}" for activity in r.doing[:2]),
    )  # fmt: skip


def collectives(study: TraceStudy, across: Ranks | None = None) -> SectionOrGap:
    """`across`: the ranks side by side, where the study is of one of them."""
    ranks = across or study.ranks
    collectives = ranks.collectives if ranks else ()
    columns = (
        Column("collective", "name"),
        Column("group", "name", spare=2),
        *numbers("times", "bytes"),
        *numbers("moving, median a call", "waited, sum over ranks", "skew, largest"),
        Column("algorithm", spare=2),
        *numbers("bus"),
        Column("late rank", spare=-1),
    )
    return trace_section(
        study,
        "collectives",
        name="collectives",
        table=Table(columns=columns, rows=tuple(map(_collective_row, collectives)), short=4),
        empty="No collective could be matched over the ranks." if ranks else _ONE_RANK,
    )


def _collective_row(c: CollectiveRow) -> Row:
    def rate(value: float | None) -> str:
        return "—" if value is None else units.bandwidth(value)

    return row(
        c.name, c.group, counted(c.count),
        Cell("—" if c.bytes is None else units.bytes_(c.bytes), c.bytes),
        timed(c.wire_ns), timed(c.wait_ns), timed(c.skew_ns),
        rate(c.algorithm_bytes_s), rate(c.bus_bytes_s),
        "—" if c.late_rank is None else str(c.late_rank),
    )  # fmt: skip


def device_names(study: TraceStudy) -> str:
    """Return "4 × V100, 1 × H100", or the name alone of a single device."""
    names = Counter(device.name for device in study.devices if device.name)
    if len(study.devices) == 1:
        return "".join(names)
    return ", ".join(f"{count} × {name}" for name, count in names.items())
