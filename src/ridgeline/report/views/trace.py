"""A trace: where its time went, why the device idled, what ran; or the answer to an SQL query."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from msgspec.structs import replace

from ridgeline import units
from ridgeline.records.facts import Check, Severity
from ridgeline.records.finding import Findings
from ridgeline.records.timeline import TracePage
from ridgeline.records.trace import TraceStudy
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Detail,
    Document,
    Figures,
    Item,
    KeyNumber,
    KeyNumbers,
    Labelled,
    Level,
    Paragraph,
    Part,
    Report,
    Row,
    Section,
    Span,
    SplitChart,
    Table,
    prose,
)
from ridgeline.report.numbers import share, share_text, time
from ridgeline.report.reasons import trace_verdict
from ridgeline.report.views import trace_time, trace_work
from ridgeline.report.views.findings import answers_section, findings_section, shown_findings
from ridgeline.report.views.timeline import timeline_section
from ridgeline.report.views.trace_data import (
    SCHEMA,
    LeftOut,
    SectionOrGap,
    all_devices,
    data,
    figures,
    left_out_files,
)

MAX_WARNINGS = 6
"""The largest number of warnings in the short view of a terminal."""
MAX_LOOKED_AT_ROWS = 200
"""The largest number of rows that are formatted for a short view: formatting 50,000 takes two
seconds."""
MAX_COMMAND_LENGTH = 160
_LEVELS: dict[Severity, Level] = {"error": "error", "warning": "warning", "note": "quiet"}


def trace_report(
    study: TraceStudy,
    findings: Findings | None = None,
    *,
    left_out: Sequence[LeftOut] = (),
    full: bool = False,
    max_rows: int | None = None,
    typed: Sequence[str] = (),
    page: Callable[[], TracePage] | None = None,
) -> Report:
    """`full` and `max_rows` say which rows will be shown; others are counted, not made into words.
    `typed` is the command line after `ridgeline`, for the command to type next. `page` reads what
    a page shows beside the study."""
    limit = None if full else max(max_rows or 0, MAX_LOOKED_AT_ROWS)
    asked_for = study if max_rows is None else first_rows(study, max_rows)

    def made(page: TracePage | None = None) -> Document:
        return document(study, findings, limit=limit, full=full, typed=typed, page=page)

    return Report(
        document=made,
        page=None if page is None else lambda: made(page()),
        data=lambda: data(asked_for, left_out, findings),
        figures=lambda: figures(asked_for, findings),
    )


def first_rows(study: TraceStudy, max_rows: int) -> TraceStudy:
    """Return the study with so many rows of what ran and of gaps. Ranks, devices and steps are no
    ranking, and stay."""
    return replace(
        study,
        idle=replace(study.idle, top=study.idle.top[:max_rows]),
        kernels=study.kernels[:max_rows],
        kernels_left_out=study.kernels_left_out + len(study.kernels[max_rows:]),
        ops=study.ops[:max_rows],
        shapes=study.shapes[:max_rows],
        modules=study.modules[:max_rows],
        roofline=replace(study.roofline, rows=study.roofline.rows[:max_rows]),
        regions=study.regions[:max_rows],
        critical_path=replace(study.critical_path, top=study.critical_path.top[:max_rows]),
    )


def longest_table(study: TraceStudy) -> int:
    """Return the rows of the longest table of what ran."""
    tables = (study.kernels, study.ops, study.shapes, study.modules, study.roofline.rows)
    return max(map(len, tables))


def document(
    study: TraceStudy,
    findings: Findings | None = None,
    *,
    limit: int | None = None,
    full: bool = False,
    typed: Sequence[str] = (),
    page: TracePage | None = None,
) -> Document:
    """Return the document; `limit` is how many rows of each table are formatted."""
    blocks: list[Block] = []
    if page is not None and (numbers := tuple(_key_numbers(study))):
        blocks.append(KeyNumbers(numbers))
    if study.window.note:
        blocks.append(Paragraph(study.window.note, "quiet"))
    blocks += _checks(study)
    blocks.append(SplitChart(parts=parts(study), title="Busy and idle by cause"))
    if findings is not None:
        blocks += [findings_section(findings), answers_section(findings)]
    if page is not None:
        named = findings.findings if findings is not None else ()
        blocks += timeline_section(page.timeline, page.source, named)
    gaps: list[Item] = []
    for section in _sections(study, limit):
        if isinstance(section, Section):
            blocks.append(section)
        else:
            gaps.append(section)
    if study.missing:
        missing = tuple(Paragraph(prose(text), "quiet") for text in study.missing)
        blocks.append(Section(title="not in this trace", blocks=missing))
    if gaps:
        nothing = Labelled(tuple(gaps))
        blocks.append(
            Section(title="nothing to show", blocks=(nothing,), detail="full", folded=True)
        )
    verdict = headline(study)
    return Document(
        answer=(Span(verdict, bold=True),),
        about=tuple(_about(study)),
        blocks=(*blocks, _next(study, findings, typed, full)),
        title=f"{study.label}: {verdict}",
        footer=SCHEMA,
    )


def _key_numbers(study: TraceStudy) -> Iterator[KeyNumber]:
    """Yield the numbers that matter most, as far as the trace tells them."""
    steps = [step.dur_ns for device in study.devices for step in device.steps]
    if steps:
        note = f"median of {len(steps):,}" if len(steps) > 1 else "the one that was recorded"
        yield KeyNumber("step", time(round(median(steps))), note)
    whole = all_devices(study)
    if whole.busy_ns is not None and whole.window_ns:
        yield KeyNumber("device busy", share(whole.busy_ns / whole.window_ns),
                        f"of {time(study.window.ns)}")  # fmt: skip
        if study.idle.causes and study.idle.causes[0].ns:
            cause = study.idle.causes[0]
            note = f"{share(cause.ns / whole.window_ns)} of the window"
            yield KeyNumber("largest idle cause", cause.cause, note)
    if study.categories:
        largest = max(study.categories, key=lambda one: one.device_ns)
        yield KeyNumber("largest kind of work", largest.category,
                        f"{share(largest.share)} of device time")  # fmt: skip
    exposed = sum(device.exposed_communication_ns for device in study.devices)
    if exposed and whole.window_ns:
        yield KeyNumber("exposed communication", share(exposed / whole.window_ns), "of the window")
    elif study.launch.per_step is not None:
        yield KeyNumber("launches", units.count(study.launch.per_step), "a step")
    if study.memory:
        peak = max(study.memory, key=lambda curve: curve.peak_bytes)
        yield KeyNumber("peak memory", units.bytes_(peak.peak_bytes), f"on {peak.device}")


def headline(study: TraceStudy) -> str:
    """Return the verdict, marked if a check makes it doubtful (the warnings say why)."""
    mark = "doubtful: " if study.trust.confidence == "doubtful" else ""
    return mark + trace_verdict(study)


def _about(study: TraceStudy) -> Iterator[str]:
    """Yield what was looked at: the file, the window and what chose it."""
    window = study.window
    yield study.label
    yield f"window {time(window.ns)}, {window.basis}"
    if window.steps and not window.by_steps:
        yield units.plural(window.steps, "step")
    if names := trace_work.device_names(study):
        yield names
    yield units.plural(study.events, "event")
    if len(study.files) > 1:
        yield units.plural(len(study.files), "file")
    if study.torch:
        yield f"torch {study.torch}"


def _checks(study: TraceStudy) -> Iterator[Block]:
    """Yield the checks that make a figure wrong or doubtful, errors first, and then the notes."""
    errors = [c for c in study.validation if c.severity == "error"]
    loud = [*errors, *(c for c in study.validation if c.severity == "warning")]
    yield from (check_paragraph(check) for check in loud[:MAX_WARNINGS])
    if more := loud[MAX_WARNINGS:]:
        yield Section(
            title="more warnings",
            blocks=tuple(check_paragraph(check) for check in more),
            line=f"{len(more)}, with --full",
        )
    notes = (check for check in study.validation if check.severity == "note")
    yield from (check_paragraph(check, "full") for check in notes)


def check_paragraph(check: Check, detail: Detail = "brief") -> Paragraph:
    """Return the claim of a check, and what it makes doubtful."""
    text = f"{check.claim} (touches: {', '.join(check.affects)})" if check.affects else check.claim
    if check.severity == "note":
        text = f"note: {text}"
    return Paragraph(text, _LEVELS[check.severity], detail)


def parts(study: TraceStudy) -> tuple[Part, ...]:
    """Return busy first, then idle by cause, the largest first; () if the time of the device cannot
    be trusted."""
    whole = all_devices(study)
    if whole.busy_ns is None or whole.idle_ns is None:
        return ()
    times = {"busy": whole.busy_ns}
    times |= {cause.cause: cause.ns for cause in study.idle.causes if cause.ns > 0}
    unexplained = whole.idle_ns - sum(cause.ns for cause in study.idle.causes)
    if unexplained > 0:
        times["not explained" if study.idle.causes else "idle"] = unexplained
    total = sum(times.values()) or 1
    return tuple(
        Part(name, ns, f"{share_text(ns / total)} {time(ns)}") for name, ns in times.items()
    )


def _sections(study: TraceStudy, limit: int | None) -> Iterator[SectionOrGap]:
    """Yield all sections in the order they are read: why the device idled before what ran."""
    yield trace_time.idle_causes(study)
    yield trace_time.longest_gaps(study, limit)
    yield trace_time.idle_lines(study)
    yield trace_time.gap_lengths(study)
    yield trace_work.ranks(study)
    yield trace_work.collectives(study)
    yield trace_time.devices(study)
    yield trace_time.streams(study)
    yield trace_time.steps(study)
    yield trace_work.kernels(study, limit)
    yield trace_work.operators(study, limit)
    yield trace_work.operators_by_shape(study, limit)
    yield trace_work.modules(study, limit)
    yield trace_work.roofline(study, limit)
    yield trace_work.regions(study)
    yield trace_time.critical_path(study)
    yield trace_work.categories(study)
    yield trace_time.phases(study)
    yield trace_time.launches(study)
    yield trace_time.overlap(study)
    yield trace_work.memory(study)


def _next(
    study: TraceStudy, findings: Findings | None, typed: Sequence[str], full: bool
) -> Commands:
    first = next(iter(shown_findings(findings)), None) if findings is not None else None
    explain = f"ridgeline explain {first.rule}" if first else ""
    commands = [Command("why, and the fix", explain)] if first else []
    commands += [Command(*pair) for pair in next_commands(study, typed, full)]
    return Commands(tuple(commands))


def next_commands(
    study: TraceStudy, typed: Sequence[str], full: bool
) -> tuple[tuple[str, str], ...]:
    """Return (why, command) pairs, at most three."""
    files = " ".join(map(shlex.quote, study.files)) if len(study.files) < 3 else "…"
    commands = []
    if not full:
        asked = _without_output(typed) or ["trace", *study.files]
        end = asked.index("--") if "--" in asked else len(asked)
        again = shlex.join(["ridgeline", *asked[:end], "--full", *asked[end:]])
        is_short = len(again) <= MAX_COMMAND_LENGTH
        commands.append(("everything", again if is_short else "ridgeline trace … --full"))
    if len(study.files) == 1:
        marked = f"ridgeline trace {files} -o marked.perfetto.json.gz"
        commands.append(("in ui.perfetto.dev", marked))
    # Kernels do not nest; operators do, and a sum of their durations counts inner ones twice.
    summed = "sum(dur_ns) from kernels" if study.kernels else "sum(self_ns) from ops"
    query = f"select name, {summed} group by 1 order by 2 desc limit 9"
    commands.append(("ask it anything", f'ridgeline trace {files} --sql "{query}"'))
    return tuple(commands)


_SHORT_OPTION = re.compile(r"-[qv]*(?:(o)(.*)|[qv])")
_FLAGS = ("--json", "--quiet", "--verbose", "--full")
_WITH_VALUE = ("--output", "--top")


def _without_output(typed: Sequence[str]) -> list[str]:
    """Return the typed words without the options that name an output or the rows to show."""
    kept: list[str] = []
    words = iter(typed)
    for word in words:
        short = _SHORT_OPTION.fullmatch(word)
        if word == "--":
            return [*kept, word, *words]
        if word in _WITH_VALUE or (short and short[1] and not short[2]):
            next(words, None)
        elif not (short or word in _FLAGS or word.startswith(tuple(f"{w}=" for w in _WITH_VALUE))):
            kept.append(word)
    return kept


QUERY_SCHEMA = "ridgeline.trace-query/1"
SHORT_QUERY_ROWS = 60

QueryRows = Sequence[tuple[Any, ...]]


def trace_query_report(
    columns: tuple[str, ...], rows: QueryRows, *, truncated: bool, left_out: Sequence[LeftOut] = ()
) -> Report:
    """Return the report. `truncated` means that there are more rows, an unknown number."""
    return Report(
        document=lambda: query_document(columns, rows, truncated=truncated),
        data=lambda: {
            "schema": QUERY_SCHEMA,
            "columns": list(columns),
            "rows": [[_plain(cell) for cell in row] for row in rows],
            "truncated": truncated,
            "left_out": left_out_files(left_out),
        },
        figures=lambda: Figures(columns, rows),
    )


def query_document(columns: tuple[str, ...], rows: QueryRows, *, truncated: bool) -> Document:
    answer = units.plural(len(rows), "row") if columns else "the query has no answer to show"
    blocks: list[Block] = []
    if columns and rows:
        blocks.append(
            Table(
                columns=_query_columns(columns, rows),
                rows=tuple(Row(tuple(Cell(_cell_text(cell)) for cell in row)) for row in rows),
                short=SHORT_QUERY_ROWS,
                hint="-o FILE.csv has them",
            )
        )
    if truncated:
        blocks.append(Paragraph(f"there are more than these {len(rows):,} rows", "doubt"))
    return Document(answer=(Span(answer, bold=True),), blocks=tuple(blocks), footer=QUERY_SCHEMA)


def _query_columns(columns: tuple[str, ...], rows: QueryRows) -> tuple[Column, ...]:
    return tuple(
        Column(name, "number" if _is_number(i, rows) else "name", spare=-1)
        for i, name in enumerate(columns)
    )


def _is_number(i: int, rows: QueryRows) -> bool:
    return all(isinstance(row[i], int | float) for row in rows if row[i] is not None)


def _cell_text(value: Any) -> str:
    """Return a cell as text. NULL is printed as null, because it is not an empty text."""
    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON has a form for; others become text."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_small = isinstance(value, int) and abs(value) < 2**63
    return value if value is None or is_small or isinstance(value, float) else str(value)
