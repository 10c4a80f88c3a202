"""The runs of a folder in a line each: for the terminal and for programs."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.finding import Finding
from ridgeline.records.run_directory import NewerSchema, RunDirectory
from ridgeline.records.runs import began
from ridgeline.report.plain import printable, shorten
from ridgeline.report.views.findings import shown_findings
from ridgeline.units import bytes_, count, plural

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "ridgeline.runs/1"
_HEADER = ("run", "began", "status", "steps", "limit", "first finding", "size")
_RIGHT = ("steps", "size")
_SPARE = ("size", "first finding", "began")
"""What a narrow terminal can do without, in this order."""
_SHORTEST_NAME = 16


class RunLine(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    began_at: str = ""
    status: str
    """As in run.json, "killed" for one that died without a word; else "damaged", or "newer"."""
    exit_code: int | None = None
    steps: int | None = None
    verdict: str = ""
    """"" where nothing was concluded."""
    finding: str = ""
    """Rule of the most valuable finding; "" where none is worth a line."""
    findings: int = 0
    """Worth a line."""
    step_ms: float | None = None
    bytes_on_disk: int = 0
    damaged: str = ""
    """Why it cannot be read."""


def listed(run: RunDirectory) -> RunLine:
    """One line of the list; what cannot be read is said in it and stops nobody."""
    size, name, path = run.size(), run.name, str(run.path)
    try:
        file = run.run()
        status = run.status()
    except RidgelineError as error:
        return _unreadable(run, error, size)
    verdict, steps, median = "", None, None
    told: tuple[Finding, ...] = ()
    try:
        summary = run.summary()
        if summary is not None:
            verdict, steps = summary.verdict.bound, summary.step.counted
            median, told = summary.step.median_ms, shown_findings(summary.findings)
    except NewerSchema as error:
        return _unreadable(run, error, size)
    except RidgelineError:
        pass  # the summary is damaged: `runs show` makes it again
    if steps is None:
        steps = _counted(run)
    return RunLine(
        name=name, path=path, began_at=file.began_at, status=status,
        exit_code=file.exit_code, steps=steps, verdict=verdict, step_ms=median, bytes_on_disk=size,
        finding=told[0].rule if told else "", findings=len(told),
    )  # fmt: skip


def _unreadable(run: RunDirectory, error: RidgelineError, size: int) -> RunLine:
    path = str(run.path)
    why = error.message.replace(f"{path}/", "").replace(f"{path} is not a run: ", "")
    return RunLine(
        name=run.name,
        path=path,
        began_at=_moment(began(run)),
        status="newer" if isinstance(error, NewerSchema) else "damaged",
        bytes_on_disk=size,
        damaged=why.replace(" is damaged:", ":"),
    )


def document(root: Path, lines: Sequence[RunLine]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "root": str(root),
        "bytes_on_disk": sum(line.bytes_on_disk for line in lines),
        "runs": [msgspec.to_builtins(line) for line in lines],
    }


def show(root: Path, lines: Sequence[RunLine], console: "Console", now: float) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    header, *rows = _fitting([_HEADER, *(_cells(line, now) for line in lines)], console.width)
    for name in header:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in lines:
        if line.damaged:
            said = f"{line.name} {line.status}: {line.damaged}"
            console.print(Text(printable(said), style="yellow"), soft_wrap=True)
    total = sum(line.bytes_on_disk for line in lines)
    more = "; ridgeline runs rm … removes" if lines else ""
    console.print(
        Text(f"{plural(len(lines), 'run')}, {bytes_(total)} in {printable(str(root))}{more}"),
        soft_wrap=True,
    )


def ago(seconds: float) -> str:
    """just now, 5 min ago, 3 h ago, 12 days ago."""
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h ago"
    return f"{int(seconds // 86400)} days ago"


def _cells(line: RunLine, now: float) -> tuple[str, ...]:
    """Names and words are from files that anybody may have written."""
    began_s = began(RunDirectory(Path(line.path)))
    when = ago(now - began_s) if 0 < began_s <= now + 60 else "—"
    name, size = shorten(printable(line.name), 60), bytes_(line.bytes_on_disk)
    steps = "—" if line.steps is None else count(line.steps)
    left = line.exit_code if line.status == "finished" else None
    status = f"exit {left}" if left else line.status
    more = f" +{line.findings - 1}" if line.findings > 1 else ""
    finding = f"{shorten(printable(line.finding), 30)}{more}" if line.finding else "—"
    return (name, when, status, steps, line.verdict or "—", finding, size)


def _fitting(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """In a narrow terminal without the columns that matter least, then with shorter names: a
    table squeezed evenly is stubs of words."""
    from rich.cells import cell_len

    kept = list(range(len(_HEADER)))
    widths = [max(cell_len(row[at]) for row in rows) for at in kept]
    for name in _SPARE:
        if _wide(widths, kept) > width:
            kept.remove(_HEADER.index(name))
    room = max(widths[0] - max(_wide(widths, kept) - width, 0), _SHORTEST_NAME)
    return [(shorten(row[0], room), *(row[at] for at in kept[1:])) for row in rows]


def _wide(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] + 2 for at in kept)


def _counted(run: RunDirectory) -> int | None:
    """Steps the program's own process counted."""
    with contextlib.suppress(RidgelineError):
        capture = run.capture()
        return None if capture is None else capture.steps
    return None


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds)) if seconds else ""
    except (OverflowError, ValueError):
        return ""
