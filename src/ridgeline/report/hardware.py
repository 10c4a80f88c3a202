"""A machine's ceilings, for the terminal, for a page and for programs.

Renders a `Machine`; measures nothing and asks the machine nothing.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
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

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = "ridgeline.hardware/1"
_CSV_COLUMNS = (
    *("device", "name", "quantity", "dtype", "unit", "measured", "datasheet"),
    *("share_of_datasheet", "native", "ridge_flop_per_byte", "note"),
)
_COLUMNS = ("", "measured", "datasheet", "of datasheet", "ridge FLOP/byte", "note")


class Row(Struct, frozen=True, kw_only=True):
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


def label(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def rows(device: Device) -> tuple[Row, ...]:
    """Products by dtype, then copy, triad and launch, in the order the device lists them."""
    kinds = dict.fromkeys((c.quantity, c.dtype) for c in device.ceilings)
    return tuple(_row(device, quantity, dtype) for quantity, dtype in kinds)


def to_json_document(
    machine: Machine, left_out: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """The machine as one document; `left_out` names, by device label, dtypes it cannot do."""
    document: dict[str, Any] = {"schema": SCHEMA, **msgspec.to_builtins(machine)}
    for device, written in zip(machine.devices, document["devices"], strict=True):
        written["label"] = label(device)
        written["left_out"] = list((left_out or {}).get(label(device), ()))
        written["ridge_flop_per_byte"] = {
            row.dtype: row.ridge for row in rows(device) if row.ridge is not None
        }
    return document


def to_markdown(machine: Machine, left_out: Mapping[str, Sequence[str]] | None = None) -> str:
    lines = [f"# {machine.system}", "", f"Python {machine.python}, torch {machine.torch}", ""]
    for device in machine.devices:
        lines += [f"## {label(device)}: {device.name}", "", about(device), ""]
        if device.ceilings:
            lines += ["| " + " | ".join(_COLUMNS) + " |", "| --- |" + " ---: |" * 4 + " --- |"]
            lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows(device)]
        if doubt := disturbed(device):
            lines += ["", doubt]
        lines += [""] + [
            f"- left out: {reason}" for reason in (left_out or {}).get(label(device), ())
        ]
    if machine.conditions:
        lines += ["", "## Conditions", ""] + [f"- {said}" for said in machine.conditions]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def to_csv(machine: Machine) -> str:
    """One line a ceiling, in the units of the record: FLOP/s, B/s, s."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for device in machine.devices:
        for row in rows(device):
            best = row.best
            values = [row.measured and row.measured.value, row.datasheet and row.datasheet.value]
            writer.writerow(
                [label(device), device.name, row.quantity, row.dtype, best.unit if best else ""]
                + ["" if value is None else value for value in values]
                + ["" if row.share is None else row.share, best.native if best else ""]
                + ["" if row.ridge is None else row.ridge, best.note if best else ""]
            )
    return out.getvalue()


def render_terminal(
    machine: Machine, console: "Console", left_out: Mapping[str, Sequence[str]] | None = None
) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for device in machine.devices:
        console.print(Text.assemble((f"{label(device)}  ", "bold"), (device.name, "bold cyan")))
        console.print(Text(f"  {about(device)}", style="dim"))
        if device.ceilings:
            console.print(Padding(_table(device), (1, 0, 0, 2), expand=False))
        else:
            console.print("  no ceilings known: not measured yet, and not in the datasheet table")
        if doubt := disturbed(device):
            console.print(Text(f"  {doubt}", style="yellow"))
        for reason in (left_out or {}).get(label(device), ()):
            console.print(Text(f"  left out  {reason}", style="dim"))
        console.print()
    for said in machine.conditions:
        console.print(Text(f"  note  {said}", style="yellow"))


def _table(device: Device) -> "Table":
    from rich.table import Table
    from rich.text import Text

    # A CPU has no row in the datasheet table: two columns of dashes would only push the notes out.
    promised = any(ceiling.source == "datasheet" for ceiling in device.ceilings)
    shown = [i for i in range(len(_COLUMNS)) if promised or i not in (2, 3)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i in shown:
        text = _COLUMNS[i] in ("", "note")
        table.add_column(_COLUMNS[i], justify="left" if text else "right", no_wrap=not text)
    for row in rows(device):
        emulated = row.best is not None and not row.best.native
        cells = _cells(row)
        table.add_row(*(Text(cells[i]) for i in shown), style="yellow" if emulated else None)
    return table


def disturbed(device: Device) -> str:
    """Return a sentence if other programs used the device during the measurement, or if a program
    has since been faster than the ceiling; else ""."""
    measured = [c for c in device.ceilings if c.source == "measured"]
    doubtful = [c.dtype or c.quantity for c in measured if c.state != "usable"]
    if not doubtful:
        return ""
    which = "all" if len(doubtful) == len(measured) else ", ".join(doubtful)
    return f"{which} measured while the machine was busy: may be too low, so not used for decisions"


def about(device: Device) -> str:
    """What the device is, in one line."""
    parts = [device.architecture, f"{device.cores} {'cores' if device.kind == 'cpu' else 'SMs'}"]
    if device.cache_bytes:
        cache = "last-level cache" if device.kind == "cpu" else "L2"
        parts.append(f"{units.bytes_(device.cache_bytes)} {cache}")
    parts.append(f"{units.bytes_(device.memory_bytes)} memory")
    if device.driver:
        parts.append(f"driver {device.driver}")
    return " · ".join(part for part in parts if part)


def _row(device: Device, quantity: Quantity, dtype: str) -> Row:
    # Datasheets print one bandwidth, listed as copy: a triad is held against it too.
    promised: Quantity = "copy" if quantity == "triad" else quantity
    arithmetic = device.ceiling("matmul", dtype) if quantity == "matmul" else None
    memory = device.ceiling("copy")
    return Row(
        quantity=quantity,
        dtype=dtype,
        measured=_from(device, "measured", quantity, dtype),
        datasheet=_from(device, "datasheet", promised, dtype),
        ridge=arithmetic.value / memory.value if arithmetic and memory else None,
    )


def _from(device: Device, source: Source, quantity: Quantity, dtype: str) -> Ceiling | None:
    for ceiling in device.ceilings:
        if (ceiling.source, ceiling.quantity, ceiling.dtype) == (source, quantity, dtype):
            return ceiling
    return None


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.dtype if row.quantity == "matmul" else row.quantity,
        _value(row.measured),
        _value(row.datasheet),
        _share(row),
        "" if row.ridge is None else units.significant(row.ridge),
        _note(row.best) if row.best else "",
    )


def _share(row: Row) -> str:
    """Return the measured ceiling as a share of the datasheet's. Return "—" for a measurement that
    is not usable, and "over" for one above the datasheet by more than measuring tolerance."""
    if row.share is None or row.measured is None or row.measured.state != "usable":
        return "—"
    return "over" if row.share > MAX_SHARE_OF_CEILING else units.percent(row.share)


def _note(ceiling: Ceiling) -> str:
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
