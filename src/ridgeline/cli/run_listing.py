"""The runs of a folder in a line each: for the terminal and for programs."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_reading import NewerSchema
from ridgeline.records.runs import began
from ridgeline.report.plain import printable, shorten
from ridgeline.units import bytes_, count, plural

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "ridgeline.runs/1"
_HEADER = ("run", "began", "status", "steps", "limit", "size")
_RIGHT = ("steps", "size")


class RunLine(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    began_at: str = ""
    status: str
    """As in run.json, "killed" for one that died without a word; else "damaged", or "newer"."""
    steps: int | None = None
    verdict: str = ""
    """"" where nothing was concluded."""
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
        why = error.message.replace(f"{path}/", "").replace(f"{path} is not a run: ", "")
        return RunLine(
            name=name,
            path=path,
            began_at=_moment(began(run)),
            status="newer" if isinstance(error, NewerSchema) else "damaged",
            bytes_on_disk=size,
            damaged=why.replace(" is damaged:", ":"),
        )
    verdict, steps, median = "", None, None
    with contextlib.suppress(RidgelineError):
        summary = run.summary()
        if summary is not None:
            verdict, steps = summary.verdict.bound, summary.step.counted
            median = summary.step.median_ms
    if steps is None:
        steps = _counted(run)
    return RunLine(
        name=name, path=path, began_at=file.began_at, status=status, steps=steps, verdict=verdict,
        step_ms=median, bytes_on_disk=size,
    )  # fmt: skip


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
    for name in _HEADER:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(cell) for cell in _cells(line, now)))
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
    return (name, when, line.status, steps, line.verdict or "—", size)


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
