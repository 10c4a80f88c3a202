"""The memory of a run, for its report and its page: the peak by kind and by line, what each line
does with memory in a step, what grows and what holds it, the processes, and after a shortage the
request that failed and the ways to fit."""

import re
from collections.abc import Iterator

from ridgeline import units
from ridgeline.records.facts import Place
from ridgeline.records.memory import DeviceMemory, LineMemory, MemoryAdvice, MemoryStudy, Owner
from ridgeline.records.run import OutOfMemory
from ridgeline.records.run_summary import MemoryUse, RunSummary
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Item,
    Paragraph,
    Part,
    Row,
    Section,
    SplitChart,
    Table,
    item,
    row,
)
from ridgeline.report.drawings import Curve, CurvesPlot, Mark
from ridgeline.report.memory_reasons import KIND_NAMES
from ridgeline.report.numbers import share
from ridgeline.report.reasons import explain

MAX_KINDS_NAMED = 3
MIN_GROWTH_BYTES = 1024
"""Memory that grows by less in each step is not reported."""
MIN_CROWDED_SHARE = 0.8
"""Reserved device memory is printed from this share of the device on."""
MAX_LINES_NAMED = 2
MAX_WAYS = 3
MAX_TABLE_ROWS = 20
MIN_OWNER_SHARE = 0.001
"""Owners of a smaller share of the peak have no row."""
MIN_TRACED_BYTES = 2**20
"""A peak of the traced steps below this is not worth a line of the report."""
_PHASES = ("input", "forward", "backward", "optimizer")
"""Phases that a person knows by name; what lies between them is named by its step alone."""
_MODULES_BEFORE = "before the traced steps"


def memory_items(summary: RunSummary) -> Iterator[Item]:
    """Yield the lines of the report: the peak of the traced steps, what grows, and after a shortage
    what memory ran out on."""
    device = _first(summary.memory_study)
    lines = [text for text in (" · ".join(_use(summary)),) if text]
    if device is not None and not device.shortages and device.peak.bytes >= MIN_TRACED_BYTES:
        lines += _story(device)
    memory = summary.memory
    if lines:
        grows = bool(_growth(summary)) or memory.retries
        yield item("memory", *lines, level="doubt" if grows else "plain")
    if device is not None and device.shortages:
        yield from _post_mortem(summary, device)
    elif summary.out_of_memory is not None:
        yield from _alive(summary.out_of_memory)
    yield from _processes(memory)


def _use(summary: RunSummary) -> Iterator[str]:
    """Yield what the device holds and what grows, as far as it matters."""
    memory = summary.memory
    if memory.device_reserved_bytes and memory.device_total_bytes:
        crowded = memory.device_reserved_bytes > MIN_CROWDED_SHARE * memory.device_total_bytes
        if crowded or memory.retries:
            yield f"{part_of(memory.device_reserved_bytes, memory.device_total_bytes)} reserved"
    if memory.retries:
        yield f"{units.plural(memory.retries, 'retry', 'retries')} of the allocator"
    if growth := _growth(summary):
        yield f"grows {units.bytes_(growth)} a step{_where_it_grows(summary)}"
    if memory.device_peak_bytes and memory.host_peak_bytes:
        yield f"host {units.bytes_(memory.host_peak_bytes)}"


def _growth(summary: RunSummary) -> float:
    """Return the bytes by which memory grows in each step; 0 if that does not matter."""
    memory, device = summary.memory, _first(summary.memory_study)
    growth = 0.0 if memory.growth_released else memory.growth_bytes_per_step or 0.0
    if device is not None and device.growth:
        growth = device.growth[0].bytes_per_step
    return growth if growth >= MIN_GROWTH_BYTES else 0.0


def _where_it_grows(summary: RunSummary) -> str:
    device = _first(summary.memory_study)
    for grown in device.growth[:1] if device is not None else ():
        at = f" at {_place(grown.place)}" if grown.place is not None else ""
        return f"{at}, held by {grown.held_by[0]}" if grown.held_by else at
    return ""


def _alive(full: OutOfMemory) -> Iterator[Item]:
    """Yield the lines that held the most memory when it ran out."""
    parts = [
        f"{units.bytes_(size)} {f'allocated at {place}' if place else 'of unknown origin'}"
        for place, size, _ in full.alive[:MAX_KINDS_NAMED]
    ]
    if parts:
        yield item("held by", " · ".join(parts))


def part_of(part: float, whole: float) -> str:
    """Return "7.9 of 140 GiB", or both units where they differ."""
    number, unit = units.bytes_(part).split(" ")
    of = units.bytes_(whole)
    return f"{number} of {of}" if of.split(" ")[-1] == unit else f"{number} {unit} of {of}"


def _first(study: MemoryStudy | None) -> DeviceMemory | None:
    return study.devices[0] if study is not None and study.devices else None


def _story(device: DeviceMemory) -> Iterator[str]:
    """Yield when the peak of the traced steps is, what it is made of, and its largest lines."""
    peak = device.peak
    phase = f"the {peak.phase} of " if peak.phase in _PHASES else ""
    when = f", in {phase}step {peak.step}" if peak.step is not None else ""
    yield f"tensors take {units.bytes_(peak.bytes)} at the peak of a step{when}: {_kinds(device)}"
    lines = [owner for owner in peak.owners if owner.place is not None][:MAX_LINES_NAMED]
    if lines:
        yield "most by line: " + " · ".join(map(_owner, lines))


def _kinds(device: DeviceMemory) -> str:
    whole = max(device.peak.bytes, 1)
    ordered = sorted(device.peak.by_kind.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{KIND_NAMES[k][0]} {share(v / whole)}" for k, v in ordered[:MAX_KINDS_NAMED])


def _owner(owner: Owner) -> str:
    kind = KIND_NAMES[owner.kind][0]
    return f"{_place(owner.place)} {units.bytes_(owner.bytes)} of {kind}"


def _place(place: Place | None) -> str:
    if place is None:
        return ""
    name = re.split(r"[\\/]", place.file)[-1]
    return name if place.line is None else f"{name}:{place.line}"


def _post_mortem(summary: RunSummary, device: DeviceMemory) -> Iterator[Item]:
    shortage, full = device.shortages[-1], summary.out_of_memory
    parts = []
    if shortage.requested_bytes:
        at = f" at {_place(shortage.place)}" if shortage.place is not None else ""
        parts.append(f"{units.bytes_(shortage.requested_bytes)} asked{at}")
    if shortage.fragmented:
        parts.append(
            "fragmented: enough is free, but not in one piece (the largest is "
            f"{units.bytes_(shortage.largest_free_bytes)})"
        )
    elif shortage.requested_bytes > shortage.free_bytes:
        parts.append(f"truly full: {units.bytes_(shortage.free_bytes)} free")
    elif shortage.requested_bytes:  # a host's free memory is read when the error has ended the step
        parts.append("more than was left; the error has released some since")
    if shortage.usual_bytes and shortage.requested_bytes > 1.5 * shortage.usual_bytes:
        factor = shortage.requested_bytes / shortage.usual_bytes
        parts.append(
            f"{units.significant(factor)} times what this line asked for in the traced steps"
        )
    if device.outside_torch_bytes:
        others = units.bytes_(device.outside_torch_bytes)
        parts.append(f"{others} of the device in use outside of torch")
    if parts:
        yield item("request", " · ".join(parts), level="doubt")
    if device.peak.by_kind:
        held = f"{units.bytes_(device.peak.bytes)}: {_kinds(device)}"
        lines = [_owner(owner) for owner in device.peak.owners if owner.place is not None]
        before = "" if not _is_earlier(summary) else " in the traced steps, before memory ran out"
        yield item(
            "tensors", f"{held}{before}", *lines[:1] and [" · ".join(lines[:MAX_KINDS_NAMED])]
        )
    if full is not None and full.held:
        text = " · ".join(
            f"`{one.name}` of {_where(one.file, one.owner_name)} {units.bytes_(one.bytes)}"
            + (f" in {one.entries:,} tensors" if one.entries > 1 else "")
            for one in full.held[:MAX_KINDS_NAMED]
            if one.name
        )
        if text:
            yield item("held by", text)
    if device.advice:
        yield item("to fit", *(_way(n, way) for n, way in enumerate(device.advice[:MAX_WAYS], 1)))


def _is_earlier(summary: RunSummary) -> bool:
    """Return whether the live set is that of the traced steps, and not of the moment of the
    failure."""
    return summary.memory_study is not None and summary.memory_study.origin == "trace"


def _where(file: str, function: str) -> str:
    name = re.split(r"[\\/]", file)[-1]
    return f"{name}:{function}" if name else function


def _way(number: int, way: MemoryAdvice) -> str:
    saves = f"saves {'at most ' if way.is_bound else ''}{units.bytes_(way.saves_bytes)}"
    cost = ""
    if way.slowdown is not None:
        slower = way.slowdown - 1
        cost = ", costs no time" if slower < 0.005 else f", a step takes {share(slower)} longer"
    return f"{number}. {explain(way.reason)}; {saves}{cost}"


def _processes(memory: MemoryUse) -> Iterator[Item]:
    """Yield the memory of the program and of its workers."""
    if len(memory.roles) < 2:
        return
    parts = []
    for one in memory.roles:
        name = one.role if one.processes == 1 else f"{one.processes} {one.role}"
        parts.append(f"{name} {units.bytes_(one.rss_bytes)}")
    known = [one.pss_bytes for one in memory.roles]
    if None not in known:
        together = units.bytes_(sum(size or 0 for size in known))
        parts.append(f"together {together} with shared pages counted once")
    else:
        parts.append("shared pages count in each")
    yield item("processes", " · ".join(parts))


# ----------------------------------------------------------------------------- tables and the page


def memory_section(summary: RunSummary) -> Iterator[Section]:
    """Yield the tables that the full report shows."""
    device = _first(summary.memory_study)
    blocks = list(_tables(device)) if device is not None else []
    if blocks:
        yield Section(title="memory of the traced steps", blocks=tuple(blocks), detail="full")


def memory_blocks(study: MemoryStudy | None) -> Iterator[Block]:
    """Yield what the page of a run shows of the traced steps."""
    device = _first(study)
    if device is None:
        return
    yield from _picture(device)
    yield from _tables(device)
    if device.advice:
        ways = tuple(_way(n, way) for n, way in enumerate(device.advice, 1))
        yield from (Paragraph(text) for text in ways)


def _picture(device: DeviceMemory) -> Iterator[Block]:
    levels, peak = device.levels, device.peak
    if len(levels.at_ns) < 2 or not levels.levels:
        return
    where = "the GPU" if device.device != "cpu" else "the host"
    # Steps have the numbers that the peak's step has.
    before = sum(start <= peak.at_ns for start in levels.step_starts_ns[1:])
    first = peak.step - before if peak.step is not None else 0
    yield CurvesPlot(
        title=f"Tensors on {where} take up to {units.bytes_(peak.bytes)} in the traced steps",
        x=tuple(at / 1e6 for at in levels.at_ns),
        x_name="time",
        x_unit="ms",
        unit="bytes",
        stacked=True,
        stepped="" if levels.left_out else "after",
        curves=tuple(
            Curve(name=KIND_NAMES[kind][0], kind=KIND_NAMES[kind][1], values=values)
            for kind, values in levels.levels.items()
        ),
        marks=(
            *(Mark(at / 1e6, f"step {n}") for n, at in enumerate(levels.step_starts_ns, first)),
            Mark(peak.at_ns / 1e6, "peak"),
        ),
        caption="Memory by kind while steps are traced, which makes them longer. Blocks that are "
        "older than the traced steps and belong to no model or optimizer are not seen on a host.",
    )


def _tables(device: DeviceMemory) -> Iterator[Block]:
    whole = device.peak.bytes
    if whole and len(device.peak.by_kind) > 1:
        ordered = sorted(device.peak.by_kind.items(), key=lambda pair: -pair[1])
        yield SplitChart(
            title="what the peak is made of",
            parts=tuple(
                Part(KIND_NAMES[kind][0], size, units.bytes_(size), share(size / whole))
                for kind, size in ordered
            ),
        )
    if device.peak.owners:
        yield _owners_table(device)
    if device.lines:
        yield _lines_table(device)


def _owners_table(device: DeviceMemory) -> Table:
    rows = []
    owners = [o for o in device.peak.owners if o.bytes >= MIN_OWNER_SHARE * device.peak.bytes]
    for owner in owners[:MAX_TABLE_ROWS]:
        part = owner.bytes / max(device.peak.bytes, 1)
        rows.append(
            row(
                _place(owner.place) or _MODULES_BEFORE, KIND_NAMES[owner.kind][0],
                Cell(units.bytes_(owner.bytes), owner.bytes, bar=part), Cell(share(part), part),
                Cell(f"{owner.blocks:,}", owner.blocks), owner.module,
            )
        )  # fmt: skip
    return Table(
        columns=(
            Column("at the peak, allocated at", "place"), Column("kind", "words"), Column("bytes"),
            Column("share", spare=1), Column("blocks", spare=1), Column("module", "name", spare=1),
        ),
        rows=tuple(rows),
        left_out=device.peak.owners_left_out + len(device.peak.owners) - len(rows),
        rest="in memory.json",
    )  # fmt: skip


def _lines_table(device: DeviceMemory) -> Table:
    return Table(
        columns=(
            Column("in a step, line", "place"), Column("allocates"), Column("gives back"),
            Column("net"), Column("high water"), Column("blocks", spare=1),
            Column("mostly", "words", spare=1),
        ),
        rows=tuple(_line_row(line) for line in device.lines[:MAX_TABLE_ROWS]),
        left_out=device.lines_left_out + max(len(device.lines) - MAX_TABLE_ROWS, 0),
        rest="in memory.json",
    )  # fmt: skip


def _line_row(line: LineMemory) -> Row:
    net = line.net_bytes
    sign = "+" if net > 0 else "−" if net < 0 else ""
    return row(
        _place(line.place) or "no line known",
        Cell(units.bytes_(line.allocated_bytes), line.allocated_bytes),
        Cell(units.bytes_(line.released_bytes), line.released_bytes),
        Cell(f"{sign}{units.bytes_(abs(net))}", net),
        Cell(units.bytes_(line.high_water_bytes), line.high_water_bytes),
        Cell(units.significant(line.blocks), line.blocks),
        KIND_NAMES[line.kind][0],
    )
