"""The pages of the viewer, made by the server: the list of runs, one run, two runs side by side."""

import math
import os
import threading
import time
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.conclusion import recorded_summary
from ridgeline.diagnosis.run_page import run_page
from ridgeline.records.finding import Finding
from ridgeline.records.run import RunFile
from ridgeline.records.run_directory import RunDirectory, open_plain_file
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.runs import MAX_NOTES_LENGTH, shown_folder
from ridgeline.report.document import Document, Part, SplitChart, prose
from ridgeline.report.numbers import share, signed
from ridgeline.report.plain import printable
from ridgeline.report.reasons import verdict_sentence
from ridgeline.report.renderers import html, svg
from ridgeline.report.renderers.charts import draw
from ridgeline.report.views.findings import claim_text, gain_text, shown_findings
from ridgeline.report.views.run_page import document as run_page_document
from ridgeline.report.views.runs import age
from ridgeline.viewer.library import (
    FIGURE_BY_ID,
    FIGURES,
    MAIN_FIGURES,
    SORT_KEYS,
    Entry,
    Figure,
    Library,
    figures_of,
    id_of,
    matching,
    ordered,
    searched_text,
)
from ridgeline.viewer.live import News, is_charted, shown_figures, stage_sentence

MAX_ROWS = 500
"""Rows of the list. A page of 500 rows has 1 MB; the others are found by a search."""
MAX_PLOTTED_RUNS = 500
MAX_STORED_REPORT_BYTES = 16 << 20
"""A stored report that is larger is not served; the report is made again."""
KEPT_REPORTS = 8
"""Reports of killed runs are concluded anew, which takes seconds: the latest few are kept."""
DESCENDING_FIRST = ("began", "memory", "step")
"""Columns whose largest value people look for first."""
HISTORY_WIDTH, HISTORY_HEIGHT = 960.0, 220.0
SERIES = 6
"""Programs that get a colour of their own in the history."""


class Column(Struct, frozen=True):
    title: str
    key: str = ""
    """The key to sort by; "" if the column cannot be sorted by."""
    kind: str = "words"


COLUMNS = (
    Column("run", "name"), Column("began", "began"), Column("program", "program"),
    Column("limit", "verdict"), Column("step", "step", "number"),
    Column("memory", "memory", "number"), Column("status", "status"), Column("tags", "tags"),
    Column("notes"),
)  # fmt: skip


class Pages:
    """Makes the pages. Every text from outside is escaped by the templates."""

    def __init__(self, library: Library, write_token: str) -> None:
        self._library = library
        self._write_token = write_token
        self._reports: dict[tuple[str, int], bytes] = {}
        self._lock = threading.Lock()

    def problem(self, sentence: str) -> bytes:
        return self._made("problem.html.jinja", sentence=sentence)

    def runs(self, query: dict[str, str]) -> bytes:
        """Return the list, searched, sorted and plotted as the query says."""
        everything = self._library.entries()
        key = query.get("sort", "began")
        key = key if key in SORT_KEYS else "began"
        is_descending = query.get("order", _first_order(key)) == "down"
        found = matching(everything, query.get("q", ""))
        figures = [f for f in FIGURES if any(f.id in entry.figures for entry in found)]
        figure = FIGURE_BY_ID.get(query.get("figure", "")) or (figures or FIGURES)[0]
        entries = ordered(found, key, descending=is_descending)
        return self._made(
            "runs.html.jinja",
            folder=shown_folder(self._library.folder),
            total=len(everything),
            title=units.plural(len(everything), "run"),
            total_bytes=sum(entry.line.bytes_on_disk for entry in everything),
            entries=entries[:MAX_ROWS],
            left_out=max(len(entries) - MAX_ROWS, 0),
            query=query.get("q", ""),
            sort=key,
            order="down" if is_descending else "up",
            columns=[(column, _sort_link(column, key, is_descending, query)) for column in COLUMNS],
            figure=figure,
            figures=figures,
            history=history(found, figure),
            programs=programs_of(plotted(found, figure))[:SERIES],
        )

    def run(self, run: RunDirectory) -> bytes:
        entry = self._library.entry(run)
        return self._made("run.html.jinja", entry=entry, max_notes=MAX_NOTES_LENGTH)

    def report(self, run: RunDirectory) -> bytes:
        """Return the report of a run: the stored page, else one made from what was recorded."""
        stored = _stored_report(run)
        if stored is not None:
            return stored
        key = (run.name, _newest_change_ns(run))
        with self._lock:
            if key in self._reports:
                return self._reports[key]
        page = html.render(report_document(run)).encode("utf-8", "replace")
        with self._lock:
            self._reports[key] = page
            while len(self._reports) > KEPT_REPORTS:
                del self._reports[next(iter(self._reports))]
        return page

    def comparison(self, query: dict[str, str]) -> bytes:
        """Return two runs side by side; without two names, the form that asks for them."""
        runs = {id_of(run.name): run for run in self._library.runs()}
        chosen = [runs.get(query.get(side, "")) for side in ("a", "b")]
        sides = [
            Side(run.name, run.run(), recorded_summary(run)) if run is not None else None
            for run in chosen
        ]
        first, second = sides
        both = (first, second) if first is not None and second is not None else None
        return self._made(
            "comparison.html.jinja",
            choices=[(key, run.name) for key, run in runs.items()][:MAX_ROWS],
            chosen=[query.get("a", ""), query.get("b", "")],
            sides=both,
            numbers=number_rows(*both) if both else [],
            phases=phase_rows(*both) if both else [],
            findings=finding_rows(*both) if both else [],
            settings=setting_rows(*both) if both else [],
        )

    def _made(self, template: str, **values: Any) -> bytes:
        page = (
            _environment()
            .get_template(template)
            .render(write_token=self._write_token, now_s=time.time(), **values)
        )
        return page.encode("utf-8", "replace")


def report_document(run: RunDirectory) -> Document:
    """Return the report of a run that has no stored page. The lines of source around findings are
    left out: their files are named in the run's own records, which may come from anybody, and a
    run must not choose which files of this machine are shown."""
    return run_page_document(replace(run_page(run, recorded_summary(run)), source=()))


class Side(Struct, frozen=True):
    """One of two runs that are compared."""

    name: str
    file: RunFile
    summary: RunSummary

    @property
    def verdict(self) -> str:
        return verdict_sentence(self.summary.verdict)

    @property
    def bar(self) -> Markup:
        """Return the phases of the mean step as a bar, to scale."""
        phases = self.summary.step.phases
        parts = tuple(Part(p.phase, p.ms, _milliseconds(p.ms), share(p.share)) for p in phases)
        return Markup(draw(SplitChart(parts=parts, title=f"phases of {self.name}")))


def number_rows(a: Side, b: Side) -> list[tuple[str, str, str, str]]:
    """Return (title, first run, second run, difference) for each main number that one of them
    has."""
    first, second = figures_of(a.summary), figures_of(b.summary)
    rows = []
    for figure in sorted(MAIN_FIGURES, key=lambda figure: FIGURES.index(figure)):
        one, two = first.get(figure.id), second.get(figure.id)
        if one is not None or two is not None:
            texts = ["—" if value is None else figure.text(value) for value in (one, two)]
            rows.append((figure.title, texts[0], texts[1], relative_difference(one, two)))
    return rows


def relative_difference(first: float | None, second: float | None) -> str:
    """Return how much larger the second number is, in percent of the first: "+12 %"."""
    if first is None or second is None or not first:
        return ""
    return f"{signed(100 * (second - first) / abs(first), 2)} %"


def phase_rows(a: Side, b: Side) -> list[tuple[str, str, str, str]]:
    """Return (phase, first run, second run, difference) for each phase of either run."""
    first = {p.phase: p for p in a.summary.step.phases}
    second = {p.phase: p for p in b.summary.step.phases}
    rows: list[tuple[str, str, str, str]] = []
    for phase in dict.fromkeys([*first, *second]):
        pair = (first.get(phase), second.get(phase))
        texts = ["—" if p is None else f"{_milliseconds(p.ms)}, {share(p.share)}" for p in pair]
        change_ms = (pair[1].ms if pair[1] else 0.0) - (pair[0].ms if pair[0] else 0.0)
        rows.append((phase, texts[0], texts[1], f"{signed(change_ms, 2)} ms"))
    return rows


def finding_rows(a: Side, b: Side) -> list[tuple[str, Any, Any]]:
    """Return (rule, finding of the first run, finding of the second run), each finding as (words,
    place, gain), or None where a run has no finding of that rule."""
    first, second = (
        {f.rule: _claim(f) for f in reversed(shown_findings(side.summary.findings))}
        for side in (a, b)
    )
    rules = dict.fromkeys([*reversed(first), *reversed(second)])
    return [(rule, first.get(rule), second.get(rule)) for rule in rules]


def _claim(finding: Finding) -> tuple[Any, str, str]:
    return prose(claim_text(finding)), finding.place if finding.file else "", gain_text(finding)


def setting_rows(a: Side, b: Side) -> list[tuple[str, str, str]]:
    """Return (name, first run, second run) for whatever may explain a difference between them: the
    command, the device, the commit, versions of packages."""
    settings = [_settings(side) for side in (a, b)]
    names = dict.fromkeys([*settings[0], *settings[1]])
    pairs = [(name, settings[0].get(name, "—"), settings[1].get(name, "—")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _settings(side: Side) -> dict[str, str]:
    environment = side.file.environment
    git = environment.git
    settings = {
        "command": side.summary.command,
        "device": side.summary.device,
        "ranks": str(side.summary.ranks),
        "host": environment.host,
        "processors": str(environment.cores),
        "commit": f"{git.commit[:12]}{' and changes' if git.dirty else ''}" if git else "",
        "Python": environment.python,
        "folder": environment.directory,
        "Ridgeline": side.file.ridgeline,
    }
    settings |= environment.packages
    return {**settings, **environment.variables}


def live_data(news: News) -> dict[str, Any]:
    """Return what is new in a run under way, as the script of its page reads it."""
    return {
        "stage": news.stage,
        "sentence": stage_sentence(news),
        "began_over": news.began_over,
        "offsets": {"steps": news.offsets.steps, "telemetry": news.offsets.telemetry},
        "figures": shown_figures(news),
        "phases": [(name, ms, _milliseconds(ms)) for name, ms in news.recent.phases],
        "steps": [
            (
                step.index,
                (step.device_ns or step.dur_ns) / 1e6 if is_charted(step) else None,
                step.loss,
            )
            for step in news.steps
        ],
        "telemetry": [
            (
                point.at_ns / 1e9,
                None if point.program_cores is None
                else point.program_cores + (point.worker_cores or 0.0),
                point.host_bytes / 2**30,
                [gpu.utilisation_percent for gpu in point.gpus],
            )
            for point in news.telemetry
        ],
    }  # fmt: skip


def history(entries: Iterable[Entry], figure: Figure) -> Markup:
    """Draw a number over the runs of `plotted`, with a line for each program; nothing if there are
    fewer than two."""
    known = plotted(entries, figure)
    if len(known) < 2:
        return Markup("")
    values = [entry.figures[figure.id] for entry in known]
    ticks = even_ticks(min(values), max(values))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)
    frame = svg.Frame(left=80, right=HISTORY_WIDTH - 10, top=12, bottom=HISTORY_HEIGHT - 24)
    drawn = []
    for tick in ticks:
        y = frame.y((tick - low) / (high - low))
        drawn.append(svg.line(frame.left, y, frame.right, y, "grid"))
        drawn.append(svg.text(frame.left - 8, y + 4, figure.text(tick), "end", "tick"))
    places = {
        entry.name: (
            frame.x((i + 0.5) / len(known)),
            frame.y((entry.figures[figure.id] - low) / (high - low)),
        )
        for i, entry in enumerate(known)
    }
    programs = programs_of(known)
    for i, program in enumerate(programs):
        line = [places[entry.name] for entry in known if entry.program == program]
        if len(line) > 1:
            drawn.append(svg.track(line, f"track series{i % SERIES}"))
    for entry in known:
        x, y = places[entry.name]
        kind = f"point series{programs.index(entry.program) % SERIES}"
        tip = f"{entry.name}: {figure.text(entry.figures[figure.id])}, {entry.program}"
        dot = svg.dot(x, y, 4, kind, tip)
        label = svg.escape(tip)
        link = escape(run_link(entry.name))
        drawn.append(f'<a href="{link}" aria-label="{label}">{dot}</a>')
    ends = (known[0].line.began_at[:10], known[-1].line.began_at[:10])
    drawn.append(svg.text(frame.left, HISTORY_HEIGHT - 6, ends[0], "start", "tick"))
    drawn.append(svg.text(frame.right, HISTORY_HEIGHT - 6, ends[1], "end", "tick"))
    described = f"{len(known)} runs, {figure.text(min(values))} to {figure.text(max(values))}"
    # role="img" would hide the links from a screen reader.
    picture = svg.drawing(HISTORY_WIDTH, HISTORY_HEIGHT, figure.title, described, drawn)
    return Markup(picture.replace('role="img"', 'role="group"', 1))


def plotted(entries: Iterable[Entry], figure: Figure) -> list[Entry]:
    """Return the newest runs that have the number, oldest first."""
    known = [entry for entry in entries if math.isfinite(entry.figures.get(figure.id, math.nan))]
    known.sort(key=lambda entry: (entry.line.began_at, entry.name))
    return known[-MAX_PLOTTED_RUNS:]


def programs_of(entries: Iterable[Entry]) -> list[str]:
    """Return the programs in the order in which their colours are given out."""
    return list(dict.fromkeys(entry.program for entry in entries))


def even_ticks(low: float, high: float) -> list[float]:
    """Return three to six round values that enclose both ends."""
    if low == high:
        low, high = (low - abs(low) * 0.1, high + abs(high) * 0.1) if low else (-1.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * i for i in range(first, last + 1)]


def run_link(name: str) -> str:
    return f"/run/{id_of(name)}"


def _sort_link(column: Column, key: str, is_descending: bool, query: dict[str, str]) -> str:
    if not column.key:
        return ""
    order = _first_order(column.key)
    if column.key == key:
        order = "up" if is_descending else "down"
    kept = {name: query[name] for name in ("q", "figure") if query.get(name)}
    return "/?" + urlencode({**kept, "sort": column.key, "order": order}, errors="replace")


def _first_order(key: str) -> str:
    return "down" if key in DESCENDING_FIRST else "up"


def _stored_report(run: RunDirectory) -> bytes | None:
    """Return the report.html of a run; None if there is none, or if it is not a plain file of its
    own: a hard link may name any file of the disk."""
    try:
        with open_plain_file(run.page_file) as file:
            status = os.fstat(file.fileno())
            if status.st_nlink != 1 or not 0 < status.st_size <= MAX_STORED_REPORT_BYTES:
                return None
            return file.read(MAX_STORED_REPORT_BYTES)
    except OSError:
        return None


def _newest_change_ns(run: RunDirectory) -> int:
    times = []
    for file in (run.run_file, run.summary_file, run.capture_file(), run.steps_file()):
        try:
            times.append(os.lstat(file).st_mtime_ns)
        except OSError:
            continue
    return max(times, default=0)


def _milliseconds(value: float) -> str:
    return units.seconds(value / 1000)


def _lines(text: str) -> Markup:
    """Return notes for a text field: unseen characters are spelled out, line ends are kept."""
    return Markup("\n").join(printable(line) for line in text.splitlines())


def _visible(value: Any) -> Any:
    """Spell out the unseen characters of whatever text a template prints."""
    return printable(value) if type(value) is str else value


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ridgeline.viewer", "assets"),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        age=age,
        bytes=lambda value: "" if value is None else units.bytes_(value),
        lines=_lines,
        link=run_link,
        ms=lambda value: "" if value is None else _milliseconds(value),
        searched=searched_text,
    )
    return environment
