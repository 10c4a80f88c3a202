"""A study of memory: the peak and who owns it, what grows, how segments are filled, and what would
have helped; or two studies compared."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ridgeline import units
from ridgeline.memory.advice import MIN_GROWTH_BYTES
from ridgeline.records.facts import Place
from ridgeline.records.memory import (
    DeviceMemory,
    Growth,
    MemoryAdvice,
    MemoryKind,
    MemoryStudy,
    Owner,
    Shortage,
    StackMemory,
)
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    Item,
    KeyNumber,
    KeyNumbers,
    Labelled,
    Paragraph,
    Part,
    Report,
    Row,
    Section,
    Span,
    SplitChart,
    Table,
    item,
    row,
)
from ridgeline.report.drawings import Curve, CurvesPlot, IciclePlot, Mark, Measure
from ridgeline.report.memory_reasons import KIND_NAMES
from ridgeline.report.numbers import NOTHING, share, share_text, times
from ridgeline.report.plain import place_name
from ridgeline.report.reasons import explain, reason_data

SCHEMA = "ridgeline.memory/1"
MAX_NAMED_KINDS = 3
SHORT_OWNERS = 8
SHORT_MODULES = 6
SHORT_GROWTH = 3
SHORT_ADVICE = 3
MAX_MARKED_STEPS = 40
"""More steps than this are not marked on the curve: their lines would cover it."""
TREE_CAPTION = (
    "Width is memory at the peak. Callers stand above what they call; the program's own code has a "
    "colour of its own. Click a frame to zoom."
)


def memory_report(study: MemoryStudy, *, full: bool = False, typed: Sequence[str] = ()) -> Report:
    """Return the report. `typed` is the command line after `ridgeline`, for what to type next."""
    return Report(
        document=lambda: document(study, full=full, typed=typed),
        page=lambda: page(study),
        data=lambda: data(study),
        figures=lambda: figures(study),
    )


# ------------------------------------------------------------------------------------ sentences


def headline(study: MemoryStudy) -> str:
    """Return the answer: how much, when, and what it was for."""
    if not study.devices:
        return "the snapshot is empty: nothing was allocated, and nothing recorded"
    device = study.devices[0]
    text = f"peak {units.bytes_(device.peak.bytes)}"
    if not study.has_history:
        text = f"{units.bytes_(device.peak.bytes)} in use when the snapshot was made"
    elif when := _moment(device):
        text = f"{text} {when}"
    if device.shortages:
        text = f"{_shortage_text(device.shortages[-1])}; {text}"
    kinds = [
        f"{KIND_NAMES[kind][0]} {units.bytes_(size)} ({share(size / max(device.peak.bytes, 1))})"
        for kind, size in _by_size(device)[:MAX_NAMED_KINDS]
        if kind is not MemoryKind.UNKNOWN or study.has_stacks
    ]
    return f"{text}: {', '.join(kinds)}" if kinds else text


def _moment(device: DeviceMemory) -> str:
    peak = device.peak
    if not device.events:
        return ""
    at = f"at {units.seconds(peak.at_ns / 1e9)}" if device.has_times else f"at event {peak.at_ns:,}"
    step = "" if peak.step is None else f"step {peak.step}"
    if peak.phase:
        return f"{at}, in the {peak.phase}{f' of {step}' if step else ''}"
    return f"{at}, in {step}" if step else at


def _shortage_text(shortage: Shortage) -> str:
    asked = f"out of memory for {units.bytes_(shortage.requested_bytes)}"
    total = f" of {units.bytes_(shortage.total_bytes)}" if shortage.total_bytes else ""
    return f"{asked} with {units.bytes_(shortage.free_bytes)}{total} free on the device"


def _by_size(device: DeviceMemory) -> list[tuple[MemoryKind, int]]:
    return sorted(device.peak.by_kind.items(), key=lambda item: -item[1])


def _about(study: MemoryStudy) -> tuple[str, ...]:
    about = [re.split(r"[/\\]", study.source)[-1]]
    if study.devices:
        device = study.devices[0]
        about.append(device.device)
        if study.steps:
            about.append(units.plural(study.steps, "step"))
        if device.events:
            about.append(units.plural(device.events, "event"))
        if device.peak.reserved_bytes:
            about.append(f"reserved {units.bytes_(device.peak.reserved_bytes)}")
    return tuple(about)


# ------------------------------------------------------------------------------------ documents


def document(study: MemoryStudy, *, full: bool = False, typed: Sequence[str] = ()) -> Document:
    blocks = list(_blocks(study))
    if study.devices:
        blocks.append(_next(study, full, typed))
    return _document(study, blocks)


def page(study: MemoryStudy) -> Document:
    blocks: list[Block] = []
    if study.devices:
        blocks = [KeyNumbers(tuple(_key_numbers(study))), *_pictures(study.devices[0])]
    # A picture of the whole has colours of its own: on a page the curve and a table stand for it.
    rest = (
        _kinds_table(study.devices[0]) if isinstance(block, SplitChart) else block
        for block in _blocks(study)
    )
    return _document(study, [*blocks, *rest])


def _document(study: MemoryStudy, blocks: Sequence[Block]) -> Document:
    return Document(
        answer=(Span(headline(study), bold=True),),
        about=_about(study),
        blocks=tuple(blocks),
        title=f"Memory of {re.split(r'[/]', study.source)[-1]}",
        footer=SCHEMA,
    )


def _blocks(study: MemoryStudy) -> Iterator[Block]:
    for reason in study.notes:
        yield Paragraph(explain(reason), "doubt")
    if not study.devices:
        return
    device = study.devices[0]
    yield from _kinds(device)
    yield from _shortages(device)
    yield _owners(device)
    yield from _modules(device)
    yield from _growth(study, device)
    yield from _fragmentation(device)
    yield from _advice(device)
    yield from _other_devices(study)
    notes = ". ".join(_capital(explain(reason)) for reason in device.notes)
    if notes:
        yield Paragraph(f"{notes}.", "quiet")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _kinds(device: DeviceMemory) -> Iterator[Block]:
    whole = device.peak.bytes
    parts = tuple(
        Part(KIND_NAMES[kind][0], size, f"{share(size / whole)} {units.bytes_(size)}")
        for kind, size in _by_size(device)
        if whole
    )
    if len(parts) > 1:
        yield SplitChart(parts=parts, title="What the peak is made of")


def _kinds_table(device: DeviceMemory) -> Section:
    whole = max(device.peak.bytes, 1)
    columns = (Column("kind", "words", -1), Column("size"), Column("share"))
    rows = tuple(
        row(
            KIND_NAMES[kind][0],
            Cell(units.bytes_(size), size),
            Cell(share_text(size / whole), size / whole, bar=size / whole),
        )
        for kind, size in _by_size(device)
    )
    return Section(title="by kind", blocks=(Table(columns=columns, rows=rows),))


def _shortages(device: DeviceMemory) -> Iterator[Block]:
    if not device.shortages:
        return
    last = device.shortages[-1]
    place = place_name(last.place)
    text = [
        f"The last request that failed was for {units.bytes_(last.requested_bytes)}"
        + (f", at {place}" if place else ", in the backward" if last.phase == "backward" else "")
    ]
    if last.fragmented:
        text.append(
            "the allocator had enough free memory, but in pieces of "
            f"{units.bytes_(last.largest_free_bytes)} at most"
        )
    else:
        text.append(
            f"the largest free piece of the allocator was {units.bytes_(last.largest_free_bytes)}"
        )
    if len(device.shortages) > 1:
        text.append(f"{len(device.shortages)} requests failed in all")
    yield Paragraph("; ".join(text) + ".", "warning")


def _owners(device: DeviceMemory) -> Section:
    columns = (
        Column("line", "place", -1), Column("kind", "words"), Column("size", spare=-1),
        Column("share"), Column("blocks", spare=1), Column("module", "name", spare=1),
    )  # fmt: skip
    whole = max(device.peak.bytes, 1)
    rows = tuple(
        row(
            owner_text(owner, device),
            owner.kind.value,
            Cell(units.bytes_(owner.bytes), owner.bytes),
            Cell(share_text(owner.bytes / whole), owner.bytes / whole, bar=owner.bytes / whole),
            Cell(f"{owner.blocks:,}", owner.blocks),
            owner.module,
        )
        for owner in device.peak.owners
    )
    table = Table(
        columns=columns, rows=rows, short=SHORT_OWNERS, left_out=device.peak.owners_left_out
    )
    return Section(title="who owned the peak", blocks=(table,))


def owner_text(owner: Owner, device: DeviceMemory) -> str:
    """Return the line, or why there is none."""
    is_older = 0 < owner.bytes <= device.peak.before_recording_bytes
    return place_name(owner.place) or place_or_reason(owner.kind, is_older=is_older)


def place_or_reason(kind: MemoryKind | None, *, is_older: bool = False) -> str:
    """Return why there is no line. `is_older` says that the memory was there before the
    recording."""
    if kind in (MemoryKind.GRADIENT, MemoryKind.TEMPORARY, MemoryKind.WORKSPACE):
        return "(backward)"
    return "(before the recording)" if kind is not MemoryKind.UNKNOWN or is_older else "(no stack)"


def _modules(device: DeviceMemory) -> Iterator[Block]:
    whole = max(device.peak.bytes, 1)
    rows = tuple(
        row(name, Cell(units.bytes_(size), size), Cell(share_text(size / whole), size / whole))
        for name, size in device.peak.by_module.items()
    )
    if rows:
        columns = (Column("module", "name", -1), Column("size"), Column("share"))
        table = Table(columns=columns, rows=rows, short=SHORT_MODULES)
        yield Section(title="by module", blocks=(table,), detail="full")


def _growth(study: MemoryStudy, device: DeviceMemory) -> Iterator[Block]:
    if not study.steps:
        return
    if not device.growth:
        line = f"nothing grows over {units.plural(study.steps, 'step')}"
        yield Paragraph(f"{_capital(line)}.", "quiet")
        return
    columns = (
        Column("line", "place", -1), Column("kind", "words"), Column("a step", spare=-1),
        Column("blocks a step"), Column("over steps", spare=1), Column("held by", "name", spare=1),
    )  # fmt: skip
    rows = tuple(_growth_row(growth) for growth in device.growth)
    table = Table(columns=columns, rows=rows, short=SHORT_GROWTH)
    yield Section(title="what grows from step to step", blocks=(table,))


def _growth_row(growth: Growth) -> Row:
    return row(
        place_name(growth.place) or place_or_reason(growth.kind),
        growth.kind.value,
        Cell(f"+{units.bytes_(growth.bytes_per_step)}", growth.bytes_per_step),
        Cell(units.significant(growth.blocks_per_step), growth.blocks_per_step),
        Cell(f"{growth.steps:,}", growth.steps),
        ", ".join(growth.held_by),
    )


def _fragmentation(device: DeviceMemory) -> Iterator[Block]:
    found = device.fragmentation
    if found is None or not found.reserved_bytes:
        return
    stuck = found.stuck_bytes / found.reserved_bytes
    size = units.bytes_
    text = (
        f"At the end the allocator holds {size(found.reserved_bytes)} in "
        f"{units.plural(found.segments, 'segment')}, {size(found.allocated_bytes)} of it in use; "
        f"{size(found.stuck_bytes)} ({share(stuck)}) lie free beside blocks in use, the largest "
        f"free piece is {size(found.largest_free_bytes)}"
    )
    if found.expandable:
        text += "; expandable segments are on"
    elif found.expandable_saves_bytes:
        text += (
            f"; expandable segments would give back {units.bytes_(found.expandable_saves_bytes)}"
        )
    if found.retries:
        text += (
            f"; {units.plural(found.retries, 'time')} it had to give back its cache to go on, "
            "which stops the device"
        )
    yield Paragraph(f"{text}.")
    if device.outside_torch_bytes:
        outside = units.bytes_(device.outside_torch_bytes)
        yield Paragraph(f"{outside} of the device are in use outside of torch's allocator.")


def _advice(device: DeviceMemory) -> Iterator[Block]:
    if not device.advice:
        return
    items = [_advice_item(way, device.peak.bytes) for way in device.advice]
    blocks = [Labelled(tuple(items[:SHORT_ADVICE]))]
    if items[SHORT_ADVICE:]:
        blocks.append(Labelled(tuple(items[SHORT_ADVICE:]), detail="full"))
    yield Section(title="what would have helped, and how many bytes it saves", blocks=(*blocks,))


def _advice_item(way: MemoryAdvice, peak: int) -> Item:
    bound = "≤ " if way.is_bound else ""
    saved = f"{bound}{units.bytes_(way.saves_bytes)}, {share(way.saves_bytes / max(peak, 1))}"
    cost = ""
    if way.slowdown is not None and way.slowdown > 1:
        cost = f"; a step takes about {times(way.slowdown)} as long"
    return item(saved, f"{_capital(explain(way.reason))}{cost}.")


def _other_devices(study: MemoryStudy) -> Iterator[Block]:
    if len(study.devices) < 2:
        return
    columns = (
        Column("device", "words"), Column("peak", spare=-1), Column("reserved"), Column("events"),
        Column("largest kind", "words"),
    )  # fmt: skip
    rows = tuple(
        row(
            device.device,
            Cell(units.bytes_(device.peak.bytes), device.peak.bytes),
            Cell(units.bytes_(device.peak.reserved_bytes), device.peak.reserved_bytes),
            Cell(f"{device.events:,}", device.events),
            KIND_NAMES[_by_size(device)[0][0]][0] if device.peak.by_kind else NOTHING,
        )
        for device in study.devices
    )
    yield Section(title="all devices", blocks=(Table(columns=columns, rows=rows),))


def _next(study: MemoryStudy, full: bool, typed: Sequence[str]) -> Commands:
    asked = list(typed) or ["memory", study.source]
    commands = []
    if not full:
        commands.append(Command("every line", shlex.join(["ridgeline", *asked, "--full"])))
    source = shlex.quote(study.source)
    commands.append(Command("as a picture", f"ridgeline memory {source} -o memory.html"))
    if len(study.devices) > 1:
        number = study.devices[1].device.partition(":")[2]
        commands.append(Command("another device", f"ridgeline memory {source} --device {number}"))
    return Commands(tuple(commands))


# ------------------------------------------------------------------------------------ pictures


def _key_numbers(study: MemoryStudy) -> Iterator[KeyNumber]:
    device = study.devices[0]
    peak = device.peak
    when = _moment(device)
    yield KeyNumber("peak", units.bytes_(peak.bytes), when)
    if peak.by_kind:
        kind, size = _by_size(device)[0]
        yield KeyNumber(
            f"largest kind: {KIND_NAMES[kind][0]}",
            units.bytes_(size),
            f"{share(size / max(peak.bytes, 1))} of the peak",
        )
    if peak.reserved_bytes:
        yield KeyNumber("reserved at the peak", units.bytes_(peak.reserved_bytes))
    if device.growth and device.growth[0].bytes_per_step >= MIN_GROWTH_BYTES:
        fastest = device.growth[0]
        yield KeyNumber(
            "growth", f"{units.bytes_(fastest.bytes_per_step)} a step", place_name(fastest.place)
        )
    if device.fragmentation is not None and device.fragmentation.stuck_bytes:
        stuck = units.bytes_(device.fragmentation.stuck_bytes)
        yield KeyNumber("free beside blocks in use", stuck, "at the end")


def _pictures(device: DeviceMemory) -> Iterator[Block]:
    levels = device.levels
    if len(levels.at_ns) > 1:
        yield Section(title="Memory over time", blocks=(levels_plot(device),))
    if (plot := stacks_plot(device)) is not None:
        yield Section(title="The peak by call", blocks=(plot,))


def levels_plot(device: DeviceMemory) -> CurvesPlot:
    """Return memory over time, stacked by kind, with the peak and the steps marked."""
    levels, peak = device.levels, device.peak
    unit = 1e9 if device.has_times else 1.0
    marks = [Mark(peak.at_ns / unit, f"peak {units.bytes_(peak.bytes)}")]
    if len(levels.step_starts_ns) <= MAX_MARKED_STEPS:
        marks += [
            Mark(at / unit, "" if step % 5 else f"step {step}")
            for step, at in enumerate(levels.step_starts_ns)
        ]
    marks += [Mark(shortage.at_ns / unit, "out of memory") for shortage in device.shortages]
    kind, size = _by_size(device)[0]
    caption = (
        f"{levels.left_out:,} moments between these are not drawn; the highest ones are."
        if levels.left_out
        else ""
    )
    return CurvesPlot(
        title=f"At the peak, {KIND_NAMES[kind][0]} take {share(size / max(peak.bytes, 1))}",
        x=tuple(at / unit for at in levels.at_ns),
        x_name="time" if device.has_times else "event",
        x_unit="s" if device.has_times else "count",
        unit="bytes",
        curves=tuple(
            Curve(name=KIND_NAMES[kind][0], kind=KIND_NAMES[kind][1], values=values)
            for kind, values in levels.levels.items()
        ),
        stacked=True,
        # between thinned moments, a step would hide a short peak
        stepped="" if levels.left_out else "after",
        marks=tuple(marks),
        caption=caption,
    )


def stacks_plot(device: DeviceMemory) -> IciclePlot | None:
    """Return the stacks of the live blocks as a figure; None if no stacks are known."""
    nodes = device.peak.stacks
    if not any(node.file for node in nodes):
        return None
    own = [node for node in nodes if node.is_own] or list(nodes)
    deepest = _deepest(own)
    return IciclePlot(
        title=f"{share(deepest.bytes / max(device.peak.bytes, 1))} of the peak was allocated in "
        f"{_frame_text(deepest)} and what it calls",
        names=tuple(_frame_text(node) for node in nodes),
        parents=tuple(node.parent for node in nodes),
        measures=(
            Measure(name="memory", unit="bytes", values=tuple(node.bytes for node in nodes)),
            Measure(name="blocks", unit="count", values=tuple(node.blocks for node in nodes)),
        ),
        notes=tuple(f"{node.file}:{node.line}" if node.file else "" for node in nodes),
        set_off=tuple(number for number, node in enumerate(nodes) if node.is_own),
        set_off_name="the program's own code",
        whole="the peak",
        caption=TREE_CAPTION,
    )


def _deepest(own: Sequence[StackMemory]) -> StackMemory:
    """Return the last of the largest frames: a caller holds what it calls, and comes before."""
    largest = max(node.bytes for node in own)
    return [node for node in own if node.bytes >= largest / 2][-1]


def _frame_text(node: StackMemory) -> str:
    if not node.file and not node.function:
        return "no Python stack: backward, or before the recording"
    return place_name(Place(node.file, node.line, node.function))


# ------------------------------------------------------------------------------------ data


def data(study: MemoryStudy) -> dict[str, Any]:
    """Return the JSON form: the device with the highest peak, and below it all devices."""
    devices = [device_data(device) for device in study.devices]
    first = devices[0] if devices else {}
    return {
        "schema": SCHEMA,
        "source": study.source,
        "origin": study.origin,
        "answer": headline(study),
        "has_stacks": study.has_stacks,
        "has_history": study.has_history,
        "steps": study.steps,
        "notes": [reason_data(reason) for reason in study.notes],
        **first,
        "devices": devices,
    }


def device_data(device: DeviceMemory) -> dict[str, Any]:
    peak = device.peak
    made: dict[str, Any] = msgspec.to_builtins(device)
    made["peak"] = {
        "bytes": peak.bytes,
        "at": {"ns": peak.at_ns, "step": peak.step, "phase": peak.phase},
        "reserved_bytes": peak.reserved_bytes,
        "before_recording_bytes": peak.before_recording_bytes,
        "by_kind": {kind.value: size for kind, size in _by_size(device)},
        "by_frame": [msgspec.to_builtins(owner) for owner in peak.owners],
        "by_frame_left_out": peak.owners_left_out,
        "by_module": [{"module": name, "bytes": size} for name, size in peak.by_module.items()],
        "stacks": [msgspec.to_builtins(node) for node in peak.stacks],
    }
    made["advice"] = [
        {**msgspec.to_builtins(way), "reason": reason_data(way.reason)} for way in device.advice
    ]
    made["notes"] = [reason_data(reason) for reason in device.notes]
    return made


FIGURE_COLUMNS = (
    "device", "section", "file", "line", "function", "kind", "module", "bytes", "share_pct",
    "blocks", "steps",
)  # fmt: skip


def figures(study: MemoryStudy) -> Figures:
    """Return the owners of the peak, the kinds, the modules and the growth as one table."""
    return Figures(FIGURE_COLUMNS, [row for device in study.devices for row in _rows(device)])


def _rows(device: DeviceMemory) -> Iterator[list[Any]]:
    whole, name = max(device.peak.bytes, 1), device.device

    def row_of(
        section: str, place: Place | None, kind: str, module: str, size: float, *more: Any
    ) -> list[Any]:
        spot = (place.file, place.line, place.function) if place else ("", None, "")
        return [name, section, *spot, kind, module, size, round(100 * size / whole, 3), *more]

    for kind, size in _by_size(device):
        yield row_of("kind", None, kind.value, "", size, None, None)
    for owner in device.peak.owners:
        yield row_of(
            "line", owner.place, owner.kind.value, owner.module, owner.bytes, owner.blocks, None
        )
    for module, size in device.peak.by_module.items():
        yield row_of("module", None, "", module, size, None, None)
    for growth in device.growth:
        yield row_of(
            "growth", growth.place, growth.kind.value, "", growth.bytes_per_step,
            growth.blocks_per_step, growth.steps,
        )  # fmt: skip
