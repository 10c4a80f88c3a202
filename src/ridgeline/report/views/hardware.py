"""A machine and its ceilings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ridgeline import units
from ridgeline.records.machine import (
    MAX_SHARE_OF_CEILING,
    Ceiling,
    Device,
    Machine,
    Quantity,
    Source,
)
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    Labelled,
    Paragraph,
    Report,
    Section,
    Span,
    Table,
    item,
    row,
)
from ridgeline.report.reasons import explain, record_data

SCHEMA = "ridgeline.hardware/1"
_FIGURES = (
    *("device", "name", "quantity", "dtype", "unit", "measured", "datasheet"),
    *("share_of_datasheet", "native", "ridge_flop_per_byte", "note"),
)
LeftOut = Mapping[str, Sequence[str]]
"""For each device label, the dtypes that the device cannot do, with the reason."""


class CeilingRow(Struct, frozen=True, kw_only=True):
    """One ceiling of a device, from both sources."""

    quantity: Quantity
    dtype: str
    measured: Ceiling | None
    datasheet: Ceiling | None
    ridge: float | None
    """FLOPs per byte above which arithmetic, not memory, is the limit."""

    @property
    def share(self) -> float | None:
        if self.measured is None or self.datasheet is None:
            return None
        return self.measured.value / self.datasheet.value

    @property
    def best(self) -> Ceiling | None:
        return self.measured or self.datasheet


def hardware_report(
    machine: Machine, left_out: LeftOut, next_command: tuple[str, str] = ("", "")
) -> Report:
    return Report(
        document=lambda: document(machine, left_out, next_command),
        data=lambda: data(machine, left_out),
        figures=lambda: figures(machine),
    )


def device_label(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def ceiling_rows(device: Device) -> tuple[CeilingRow, ...]:
    """Return products by dtype, then copy, triad and launch, in the order of the device."""
    kinds = dict.fromkeys((c.quantity, c.dtype) for c in device.ceilings)
    return tuple(_ceiling_row(device, quantity, dtype) for quantity, dtype in kinds)


def document(
    machine: Machine, left_out: LeftOut, next_command: tuple[str, str] = ("", "")
) -> Document:
    blocks: list[Block] = [
        Section(
            title=f"{device_label(device)}  {device.name}",
            blocks=tuple(_device_blocks(device, left_out.get(device_label(device), ()))),
        )
        for device in machine.devices
    ]
    if machine.conditions:
        notes = (item("note", explain(one), level="doubt") for one in machine.conditions)
        blocks.append(Labelled(tuple(notes)))
    if next_command[1]:
        blocks.append(Commands((Command(*next_command),)))
    return Document(
        answer=(Span(machine.system),),
        about=(f"Python {machine.python}", f"torch {machine.torch}"),
        blocks=tuple(blocks),
        footer=SCHEMA,
    )


def _device_blocks(device: Device, left_out: Sequence[str]) -> Iterator[Block]:
    yield Paragraph(about_device(device), "quiet")
    if device.ceilings:
        yield _ceiling_table(device)
    else:
        yield Paragraph("no ceilings known: not measured yet, and not in the datasheet table")
    if doubt := disturbed(device):
        yield Paragraph(doubt, "doubt")
    if left_out:
        yield Labelled(tuple(item("left out", reason, level="quiet") for reason in left_out))


def _ceiling_table(device: Device) -> Table:
    # A CPU has no row in the datasheet table: two columns of dashes would only push the notes out.
    promised = any(ceiling.source == "datasheet" for ceiling in device.ceilings)
    names = ("measured", *(("datasheet", "of datasheet") if promised else ()), "ridge FLOP/byte")
    columns = (Column("", "words"), *map(Column, names), Column("note", "words"))
    rows = []
    for ceiling in ceiling_rows(device):
        best = ceiling.best
        cells = [
            ceiling.dtype if ceiling.quantity == "matmul" else ceiling.quantity,
            _value(ceiling.measured),
            *([_value(ceiling.datasheet), _share(ceiling)] if promised else []),
            "" if ceiling.ridge is None else units.significant(ceiling.ridge),
            _ceiling_note(best) if best else "",
        ]
        is_emulated = best is not None and not best.native
        rows.append(row(*(Cell(text, tone="unsure" if is_emulated else "plain") for text in cells)))
    return Table(columns=columns, rows=tuple(rows))


def disturbed(device: Device) -> str:
    """Return a sentence if other programs used the device during the measurement, or if a program
    has since been faster than the ceiling; else ""."""
    measured = [c for c in device.ceilings if c.source == "measured"]
    doubtful = [c.dtype or c.quantity for c in measured if c.state != "usable"]
    if not doubtful:
        return ""
    which = "all" if len(doubtful) == len(measured) else ", ".join(doubtful)
    return f"{which} measured while the machine was busy: may be too low, so not used for decisions"


def about_device(device: Device) -> str:
    parts = [device.architecture, f"{device.cores} {'cores' if device.kind == 'cpu' else 'SMs'}"]
    if device.cache_bytes:
        cache = "last-level cache" if device.kind == "cpu" else "L2"
        parts.append(f"{units.bytes_(device.cache_bytes)} {cache}")
    parts.append(f"{units.bytes_(device.memory_bytes)} memory")
    if device.driver:
        parts.append(f"driver {device.driver}")
    return " · ".join(part for part in parts if part)


def _ceiling_row(device: Device, quantity: Quantity, dtype: str) -> CeilingRow:
    # Datasheets print one bandwidth, listed as copy: a triad is held against it too.
    promised: Quantity = "copy" if quantity == "triad" else quantity
    arithmetic = device.ceiling("matmul", dtype) if quantity == "matmul" else None
    memory = device.ceiling("copy")
    return CeilingRow(
        quantity=quantity,
        dtype=dtype,
        measured=_find(device, "measured", quantity, dtype),
        datasheet=_find(device, "datasheet", promised, dtype),
        ridge=arithmetic.value / memory.value if arithmetic and memory else None,
    )


def _find(device: Device, source: Source, quantity: Quantity, dtype: str) -> Ceiling | None:
    for ceiling in device.ceilings:
        if (ceiling.source, ceiling.quantity, ceiling.dtype) == (source, quantity, dtype):
            return ceiling
    return None


def _share(ceiling: CeilingRow) -> str:
    """Return the measured ceiling as a share of the datasheet's. Return "—" for a measurement that
    is not usable, and "over" for one above the datasheet by more than measuring tolerance."""
    share, measured = ceiling.share, ceiling.measured
    if share is None or measured is None or measured.state != "usable":
        return "—"
    return "over" if share > MAX_SHARE_OF_CEILING else units.percent(share)


def _ceiling_note(ceiling: Ceiling) -> str:
    # An emulated dtype's own note says so; the others would leave the question open.
    known = ceiling.quantity == "matmul" and ceiling.source == "measured" and ceiling.native
    return f"native, {ceiling.note}" if known else ceiling.note


def _value(ceiling: Ceiling | None) -> str:
    if ceiling is None:
        return "—"
    if ceiling.unit == "s":
        return units.seconds(ceiling.value)
    return (
        units.flops(ceiling.value) if ceiling.unit == "FLOP/s" else units.bandwidth(ceiling.value)
    )


def data(machine: Machine, left_out: LeftOut | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"schema": SCHEMA, **record_data(machine, "conditions")}
    for device, written in zip(machine.devices, made["devices"], strict=True):
        written["label"] = device_label(device)
        written["left_out"] = list((left_out or {}).get(device_label(device), ()))
        written["ridge_flop_per_byte"] = {
            row.dtype: row.ridge for row in ceiling_rows(device) if row.ridge is not None
        }
    return made


def figures(machine: Machine) -> Figures:
    """Return one row for each ceiling, in the units of the record: FLOP/s, B/s, s."""
    rows = []
    for device in machine.devices:
        for ceiling in ceiling_rows(device):
            best = ceiling.best
            rows.append(
                [
                    device_label(device),
                    device.name,
                    ceiling.quantity,
                    ceiling.dtype,
                    best.unit if best else "",
                    ceiling.measured and ceiling.measured.value,
                    ceiling.datasheet and ceiling.datasheet.value,
                    ceiling.share,
                    best.native if best else "",
                    ceiling.ridge,
                    best.note if best else "",
                ]
            )
    return Figures(_FIGURES, rows)
