"""The runs of a folder, a line each."""

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.finding import Finding
from ridgeline.records.run_directory import NewerSchema, RunDirectory
from ridgeline.records.runs import began
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Report,
    Row,
    Span,
    Table,
    Tone,
)
from ridgeline.report.views.findings import shown_findings
from ridgeline.units import bytes_, count, plural

SCHEMA = "ridgeline.runs/1"
MAX_CLOCK_DIFFERENCE_S = 60.0
"""A run that began later than this from now has the time of another clock: its age is unknown."""
_COLUMNS = (
    Column("run", "name"),
    Column("began", "words", spare=1),
    Column("status", "words"),
    Column("steps"),
    Column("limit", "words", spare=-1),
    Column("first finding", "name", spare=1),
    Column("size", spare=1),
)


class RunLine(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    began_at: str = ""
    status: str
    """The status in run.json, or "killed" for a program that died without a message, "damaged", or
    "newer" for a run that a newer version wrote."""
    exit_code: int | None = None
    steps: int | None = None
    verdict: str = ""
    """"" if nothing was concluded."""
    finding: str = ""
    """The rule of the most valuable finding; "" if no finding is worth a line."""
    findings: int = 0
    """How many findings are worth a line."""
    step_ms: float | None = None
    bytes_on_disk: int = 0
    damaged: str = ""
    """Why the run cannot be read."""


def run_line(run: RunDirectory) -> RunLine:
    """Return a run as a line of the list. If its files are damaged, the line says so."""
    try:
        file = run.run()
        status = run.status()
    except RidgelineError as error:
        return _unreadable(run, error)
    verdict, steps, median_ms = "", None, None
    findings: tuple[Finding, ...] = ()
    try:
        summary = run.summary()
        if summary is not None:
            verdict, steps = summary.verdict.bound, summary.step.counted
            median_ms, findings = summary.step.median_ms, shown_findings(summary.findings)
    except NewerSchema as error:
        return _unreadable(run, error)
    except RidgelineError:
        pass  # the summary is damaged: `runs show` makes it again
    if steps is None:
        with contextlib.suppress(RidgelineError):
            capture = run.capture()
            steps = None if capture is None else capture.steps
    return RunLine(
        name=run.name, path=str(run.path), began_at=file.began_at, status=status,
        exit_code=file.exit_code, steps=steps, verdict=verdict, step_ms=median_ms,
        bytes_on_disk=run.size(), finding=findings[0].rule if findings else "",
        findings=len(findings),
    )  # fmt: skip


def _unreadable(run: RunDirectory, error: RidgelineError) -> RunLine:
    began_at = ""
    with contextlib.suppress(OverflowError, ValueError):
        if seconds := began(run):
            began_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))
    return RunLine(
        name=run.name,
        path=str(run.path),
        began_at=began_at,
        status="newer" if isinstance(error, NewerSchema) else "damaged",
        bytes_on_disk=run.size(),
        damaged=error.message.replace(f"{run.path}/", "").replace(str(run.path), run.name),
    )


def runs_report(root: str, folder: str, lines: Sequence[RunLine]) -> Report:
    """`folder` is the root as a person would type it here."""
    return Report(
        document=lambda: document(folder, lines, time.time()), data=lambda: data(root, lines)
    )


def document(folder: str, lines: Sequence[RunLine], now_s: float) -> Document:
    if not lines:
        command = Command("make one", "ridgeline run train.py")
        return Document(answer=(Span(f"no runs in {folder}"),), blocks=(Commands((command,)),))
    blocks: tuple[Block, ...] = (
        Table(columns=_COLUMNS, rows=tuple(_row(line, now_s) for line in lines)),
        Commands((
            Command("show one again", "ridgeline runs show NAME"),
            Command("remove all but the ten newest", "ridgeline runs rm --keep 10"),
        )),
    )  # fmt: skip
    size = bytes_(sum(line.bytes_on_disk for line in lines))
    return Document(
        answer=(Span(f"{plural(len(lines), 'run')}, {size} in {folder}"),), blocks=blocks
    )


def data(root: str, lines: Sequence[RunLine]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "root": root,
        "bytes_on_disk": sum(line.bytes_on_disk for line in lines),
        "runs": [msgspec.to_builtins(line) for line in lines],
    }


def _row(line: RunLine, now_s: float) -> Row:
    code = line.exit_code if line.status == "finished" else None
    more = f" +{line.findings - 1}" if line.findings > 1 else ""
    texts = (
        line.name,
        age(line.began_at, now_s),
        f"exit {code}" if code else line.status,
        "—" if line.steps is None else count(line.steps),
        line.verdict or "—",
        f"{line.finding}{more}" if line.finding else "—",
        bytes_(line.bytes_on_disk),
    )
    tone: Tone = "unsure" if line.damaged else "plain"
    return Row(tuple(map(Cell, texts)), tone=tone, note=line.damaged)


def age(began_at: str, now_s: float) -> str:
    """Return "just now", "5 min ago", "3 h ago" or "12 days ago"."""
    try:
        seconds = now_s - datetime.fromisoformat(began_at).timestamp()
    except (ValueError, OverflowError):
        return "—"
    if seconds < -MAX_CLOCK_DIFFERENCE_S:
        return "—"
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h ago"
    return f"{int(seconds // 86400)} days ago"
