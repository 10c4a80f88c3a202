"""The runs of a folder as the viewer lists and compares them: a row of facts for each run.

A run that is over does not change, so its row is read once and kept until one of its files has
another size or time.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from msgspec import Struct

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.harness.capture.watch_lock import is_held
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.runs import NOTES_FILE, RunNotes, all_runs, notes_of
from ridgeline.report.views.runs import RunLine, run_line

Stage = Literal["running", "concluding", "over"]
"""What becomes of a run: the program runs; it has ended and its report is being made; nothing is
written any more."""


class Figure(Struct, frozen=True):
    """A number of a run that can be compared with other runs' and plotted over them."""

    id: str
    title: str
    read: Callable[[RunSummary], float | None]
    text: Callable[[float], str]
    is_better: Literal["lower", "higher", ""] = ""


def _milliseconds(value: float) -> str:
    return units.seconds(value / 1000)


def _phase(name: str) -> Callable[[RunSummary], float | None]:
    def read(summary: RunSummary) -> float | None:
        return next((p.ms for p in summary.step.phases if p.phase == name), None)

    return read


FIGURES = (
    Figure("step_ms", "step time", lambda s: s.step.median_ms, _milliseconds, "lower"),
    Figure("samples_s", "samples/s", lambda s: s.throughput.samples_s, units.count, "higher"),
    Figure("tokens_s", "tokens/s", lambda s: s.throughput.tokens_s, units.count, "higher"),
    Figure("steps_s", "steps/s", lambda s: s.throughput.steps_s, units.significant, "higher"),
    Figure("mfu", "MFU", lambda s: s.efficiency.mfu, units.percent, "higher"),
    Figure("flops_s", "FLOP/s", lambda s: s.efficiency.flops_s, units.flops, "higher"),
    Figure(
        "device_peak", "peak memory of the GPU", lambda s: s.memory.device_peak_bytes,
        units.bytes_, "lower",
    ),
    Figure(
        "host_peak", "peak memory of the host", lambda s: s.memory.host_peak_bytes,
        units.bytes_, "lower",
    ),
    Figure(
        "gpu_use", "GPU in use", lambda s: s.telemetry.gpu_utilisation, units.percent, "higher"
    ),
    Figure(
        "joules", "energy of a step", lambda s: s.energy.joules_per_step,
        lambda value: f"{units.significant(value)} J", "lower",
    ),
    Figure(
        "loss", "loss at the end", lambda s: s.losses[1] if s.losses else None,
        lambda value: units.significant(value, 4),
    ),
    Figure("input_ms", "input wait", _phase("input"), _milliseconds, "lower"),
    Figure("transfer_ms", "transfer", _phase("transfer"), _milliseconds, "lower"),
    Figure("forward_ms", "forward", _phase("forward"), _milliseconds, "lower"),
    Figure("backward_ms", "backward", _phase("backward"), _milliseconds, "lower"),
    Figure("optimizer_ms", "optimizer", _phase("optimizer"), _milliseconds, "lower"),
)  # fmt: skip
FIGURE_BY_ID = {figure.id: figure for figure in FIGURES}
MAIN_FIGURES = tuple(figure for figure in FIGURES if not figure.id.endswith("_ms")) + FIGURES[:1]


class Entry(Struct, frozen=True, kw_only=True):
    """A run as a row of the list."""

    line: RunLine
    program: str = ""
    stage: Stage = "over"
    notes: RunNotes = RunNotes()
    notes_problem: str = ""
    """Why the notes cannot be read."""
    figures: dict[str, float] = {}
    """The numbers that are known, by the id of their `Figure`."""

    @property
    def name(self) -> str:
        return self.line.name

    @property
    def id(self) -> str:
        return id_of(self.line.name)

    @property
    def memory_bytes(self) -> float | None:
        """The peak on the GPU; on the host if the run used no GPU."""
        return self.figures.get("device_peak", self.figures.get("host_peak"))


def id_of(name: str) -> str:
    """Return the name of a run as addresses and forms hold it, percent-encoded: a directory may
    have any characters in its name, and even bytes that are no text."""
    return quote(name, safe="", errors="surrogateescape")


def program_of(target: Target) -> str:
    """Return the program of a run in a few words: train.py, -m package.train, -c …"""
    if target.kind == "module":
        return f"-m {target.name}"
    if target.kind == "code":
        return "-c …"
    return os.path.basename(target.name) or target.name


def stage_of(run: RunDirectory) -> Stage:
    """Return whether a run is under way. The watcher holds its lock until it has written the report
    page, the last file of a run. A damaged run is over."""
    try:
        if run.status() == "running":
            return "running"
    except RidgelineError:
        return "over"
    return "concluding" if is_held(run.lock_file()) else "over"


def entry_of(run: RunDirectory) -> Entry:
    """Return a run as a row. What cannot be read is named in the row."""
    line, program, figures = run_line(run), "", {}
    with contextlib.suppress(RidgelineError):
        program = program_of(run.run().target)
    with contextlib.suppress(RidgelineError):
        summary = run.summary()
        if summary is not None:
            figures = figures_of(summary)
    notes, problem = RunNotes(), ""
    try:
        notes = notes_of(run)
    except RidgelineError as error:
        problem = error.message.replace(f"{run.path}/", "")
    return Entry(
        line=line, program=program, stage=stage_of(run), notes=notes, notes_problem=problem,
        figures=figures,
    )  # fmt: skip


def figures_of(summary: RunSummary) -> dict[str, float]:
    """Return every number of a run that is known, by the id of its `Figure`."""
    values = ((figure.id, figure.read(summary)) for figure in FIGURES)
    return {key: float(value) for key, value in values if value is not None}


SORT_KEYS: dict[str, Callable[[Entry], str | float | None]] = {
    "began": lambda entry: entry.line.began_at,
    "name": lambda entry: entry.name,
    "program": lambda entry: entry.program,
    "verdict": lambda entry: entry.line.verdict or None,
    "step": lambda entry: entry.line.step_ms,
    "memory": lambda entry: entry.memory_bytes,
    "status": lambda entry: entry.line.status,
    "tags": lambda entry: ", ".join(entry.notes.tags) or None,
}
"""What the columns of the list are sorted by. None: not known."""


def ordered(entries: Iterable[Entry], key: str, *, descending: bool) -> list[Entry]:
    """Return the entries in the order of a key of `SORT_KEYS`. Unknown values come last in either
    direction."""
    read = SORT_KEYS[key]
    entries = list(entries)
    known = [entry for entry in entries if read(entry) is not None]
    known.sort(key=lambda entry: (read(entry), entry.name), reverse=descending)
    return known + [entry for entry in entries if read(entry) is None]


def matching(entries: Iterable[Entry], query: str) -> list[Entry]:
    """Return the entries in which every word of the query occurs, in whatever letters."""
    words = query.casefold().split()
    return [entry for entry in entries if all(word in searched_text(entry) for word in words)]


def searched_text(entry: Entry) -> str:
    """Return what a search looks at: name, program, verdict, finding, status, tags and notes."""
    line = entry.line
    parts = (
        entry.name, entry.program, line.verdict, line.finding, line.status,
        *entry.notes.tags, entry.notes.text,
    )  # fmt: skip
    return " ".join(parts).casefold()


Stamp = tuple[tuple[int, int], ...]


class Library:
    """The runs of one folder. Several requests may use it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[str, tuple[Stamp, Entry]] = {}
        self._lock = threading.Lock()

    def runs(self) -> tuple[RunDirectory, ...]:
        """Return all runs, newest first."""
        return all_runs(self.folder)

    def run(self, run_id: str) -> RunDirectory | None:
        """Return the run with this id; None if the folder lists no such run. The id comes from a
        request, so it is compared with those of the listed runs and never becomes a path."""
        return next((run for run in self.runs() if id_of(run.name) == run_id), None)

    def entries(self) -> list[Entry]:
        """Return a row for each run, newest first."""
        runs = self.runs()
        entries = [self.entry(run) for run in runs]
        with self._lock:
            for name in self._kept.keys() - {run.name for run in runs}:
                del self._kept[name]
        return entries

    def entry(self, run: RunDirectory) -> Entry:
        stamp = _stamp(run)
        with self._lock:
            kept = self._kept.get(run.name)
        if kept is not None and kept[0] == stamp and kept[1].stage == "over":
            return kept[1]
        entry = entry_of(run)
        with self._lock:
            self._kept[run.name] = (stamp, entry)
        return entry


def _stamp(run: RunDirectory) -> Stamp:
    """Return times and sizes of the files that a row is read from."""
    files: Sequence[Path] = (
        run.path, run.run_file, run.summary_file, run.capture_file(), run.path / NOTES_FILE,
    )  # fmt: skip
    stamps = []
    for file in files:
        try:
            status = os.lstat(file)
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)
