"""`ridgeline trace`: where a trace's time went, why the device idled, who was late."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ridgeline.cli.output import output_options
from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.records.finding import Findings
    from ridgeline.records.trace import TraceStudy
    from ridgeline.report.views.trace_data import LeftOut
    from ridgeline.trace.trace import Trace

Say = Callable[[str], None]


class Wanted(NamedTuple):
    """Where the person asked the answer to go."""

    as_json: bool
    output: Path | None
    ending: str
    """The ending of the output's name, which picks the format."""


class Reading(NamedTuple):
    """The options that say how files are read."""

    cache: bool = True
    max_events: int | None = None


ONE_TRACE = (".speedscope.json", ".perfetto.json", ".perfetto.json.gz")
EVENT_ENDINGS = (".parquet", *ONE_TRACE)
"""Formats that are made from the events themselves."""
REPORT_ENDINGS = (".json", ".md", ".csv", ".html")
ENDINGS = (*REPORT_ENDINGS, *EVENT_ENDINGS)
MAX_ROWS_PER_TABLE = 10_000
"""Views show fewer. Only operators by shape can have more rows, in a trace whose shapes change with
every call, and the smallest of these say nothing."""

EXAMPLES = """\b
Examples:
  ridgeline trace run.json.gz                          what holds it back, why it was idle
  ridgeline trace run/                                 a folder of ranks: who was late
  ridgeline trace run.json --steps 3-5 --full          only these steps, every table
  ridgeline trace after.json --compare before.json     what got slower, what faster
  ridgeline trace run.json.gz -o marked.perfetto.json.gz
                                                       our findings on the timeline
  ridgeline trace run.json --sql "select name, sum(dur_ns) from kernels group by 1"

\b
Record a trace that answers most:
  with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
      for batch in loader: step(batch); prof.step()
  prof.export_chrome_trace("run.json.gz")
"""


@click.command("trace", epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE… | FOLDER")
@click.option("--compare", "before", metavar="BEFORE", help="Set this earlier trace beside it.")
@click.option("--steps", metavar="3-5", help="Only these steps, by the numbers of their marks.")
@click.option(
    "--top", type=click.IntRange(min=1, max=100_000), metavar="N", help="Rows of each table."
)
@click.option("--full", is_flag=True, help="Every section and every row.")
@click.option(
    "--sql",
    metavar="QUERY",
    help="Ask it in SQL. Views: events, kernels, device_ops, ops, annotations, calls, frames, "
    "memory, syncs; times in nanoseconds. Rows of ops and frames nest: add up self_ns, not dur_ns.",
)
@click.option(
    "--max-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Refuse a file with more than N events. By default N is the number of events that fit "
    "into half of the free memory, at 400 bytes each.",
)
@click.option("--no-cache", is_flag=True, help="Neither use nor write the cache beside the trace.")
@output_options(ENDINGS)
def command(
    files: tuple[str, ...],
    before: str | None,
    steps: str | None,
    top: int | None,
    full: bool,
    sql: str | None,
    max_events: int | None,
    no_cache: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Where a trace's time went, why the device idled, and which of your lines did it.

    Reads what torch.profiler's export_chrome_trace writes: JSON, plain, gzip or zstd, of any age,
    NVIDIA, AMD or CPU only, also when it was cut off. Works offline. Several files are the ranks of
    one job: then it also says who was late to the collectives, and with what.

    Exit codes: 0 answered; 2 usage; 4 nothing could be read.
    """
    from ridgeline.cli.trace_files import trace_files

    left_out: list[LeftOut] = []
    wanted = Wanted(as_json=as_json, output=output, ending=_ending(output, sql, before))
    with _printable_errors():
        paths = trace_files(files)
        earlier = () if before is None else trace_files([before])
        _refuse(wanted, (*paths, *earlier), len(paths))
        reading = Reading(cache=not no_cache, max_events=max_events)
        if sql is not None:
            _answer(paths, sql, reading, quiet, wanted, full, left_out)
        elif before is not None:
            with _progress(quiet) as say:
                both = [
                    _studied(p, steps or "all", None, reading, say, left_out)[0]
                    for p in (earlier, paths)
                ]
            _compare(both[0], both[1], wanted, full, top, left_out)
        else:
            with _progress(quiet) as say:
                found, traces = _studied(paths, steps, MAX_ROWS_PER_TABLE, reading, say, left_out)
                causes = _diagnosed(found, traces, paths, steps, reading.cache, say)
                is_written = _export(found, traces, causes, wanted, say)
            _report(found, causes, wanted, full, top, left_out, is_written)
    _say_refusal()


def _say_refusal() -> None:
    """Say why the slower reader was used, if a compiled one was refused and not just missing."""
    from ridgeline.report.plain import printable
    from ridgeline.trace.reading.compiled import refusal

    if why := refusal():
        click.echo(
            f"ridgeline: the compiled reader was not used, because {printable(why)}; "
            "the portable reader gives the same figures, but takes longer",
            err=True,
        )


@contextmanager
def _progress(quiet: bool) -> Iterator[Say]:
    """Show progress on stderr; the name of a file is no markup there."""
    from ridgeline.cli.output import progress
    from ridgeline.report.plain import printable

    with progress(quiet) as say:
        yield lambda text: say(printable(text).replace("[", "\\["))


def _refuse(wanted: Wanted, inputs: Sequence[Path], traces: int) -> None:
    """Refuse to overwrite a trace by its own report, and to leave out ranks."""
    output = wanted.output
    if output is None:
        return
    if wanted.ending in ONE_TRACE and traces > 1:
        raise UsageError(
            f"-o {output}: made from one trace, and there are {traces}", "name one of them"
        )
    if output.exists() and any(output.samefile(path) for path in inputs if path.exists()):
        raise UsageError(f"-o {output}: this is the trace itself", "give the report another name")


def _ending(output: Path | None, sql: str | None, before: str | None) -> str:
    """Return the format that -o asks for; refuse an unknown one before the work."""
    if sql is not None and before is not None:
        raise UsageError("--sql and --compare cannot be had together")
    if output is None:
        return ""
    allowed = REPORT_ENDINGS if sql is not None or before else ENDINGS
    name = output.name.lower()
    ending = max((e for e in ENDINGS if name.endswith(e)), key=len, default="")
    if ending not in allowed:
        raise UsageError(
            f"-o {output}: no format is known for {ending or output.suffix or 'this name'}"
            f"{' here' if ending else ''}",
            f"end the name in one of: {', '.join(allowed)}",
        )
    if not output.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    return ending


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Make errors printable: names of files and the content of damaged ones end up in them."""
    try:
        yield
    except RidgelineError as error:
        from ridgeline.report.plain import printable

        error.message = printable(error.message)
        error.hint = "\n".join(printable(line) for line in error.hint.splitlines())
        raise


def _studied(
    paths: Sequence[Path],
    steps: str | None,
    rows: int | None,
    reading: Reading,
    say: Say,
    left_out: "list[LeftOut]",
) -> "tuple[TraceStudy, tuple[Trace, ...]]":
    """Study the files. Of several, those that cannot be read are left out and named on stderr."""
    from ridgeline.trace.study import ALL_ROWS, study

    limit = ALL_ROWS if rows is None else rows
    try:
        return study(paths, steps=steps, limit=limit, on_progress=say, **reading._asdict())
    except UsageError:
        raise
    except RidgelineError:
        readable = _readable(paths, reading, left_out) if len(paths) > 1 else paths
        if len(readable) == len(paths):
            raise
        return study(readable, steps=steps, limit=limit, on_progress=say, **reading._asdict())


def _readable(paths: Sequence[Path], reading: Reading, left_out: "list[LeftOut]") -> list[Path]:
    from ridgeline.report.plain import printable

    readable, first = [], ""
    for path in paths:
        try:
            _opened(path, reading)
            readable.append(path)
        except RidgelineError as error:
            first = first or error.message
            left_out.append((str(path), error.message))
            click.echo(f"ridgeline: left out: {printable(error.message)}", err=True)
    if not readable:
        raise RidgelineError(f"none of the {len(paths)} files could be read", first)
    return readable


def _opened(path: Path, reading: Reading) -> "Trace":
    from ridgeline.trace.study import open_trace

    opened = open_trace(path, **reading._asdict())
    if opened.writing is not None:
        opened.writing.join()
    return opened.trace


def _answer(
    paths: Sequence[Path],
    sql: str,
    reading: Reading,
    quiet: bool,
    wanted: Wanted,
    full: bool,
    left_out: "list[LeftOut]",
) -> None:
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.trace_query import trace_query_report
    from ridgeline.trace.exports.sql import MAX_ROWS, query

    with _progress(quiet) as say:
        say("reading")
        kept = _readable(paths, reading, left_out) if len(paths) > 1 else paths
        traces = [_opened(path, reading) for path in kept]
        say("asking")
        columns, rows = query(traces, sql)
    truncated = len(rows) > MAX_ROWS
    if truncated:
        rows = rows[:MAX_ROWS]
        note = f"more than {MAX_ROWS:,} rows; the first {MAX_ROWS:,} were taken"
        click.echo(f"ridgeline: {note}", err=True)
    report = trace_query_report(columns, rows, truncated=truncated, left_out=left_out)
    deliver(report, wanted.as_json, wanted.output, full=full or wanted.output is not None)


def _compare(
    before: "TraceStudy",
    after: "TraceStudy",
    wanted: Wanted,
    full: bool,
    top: int | None,
    left_out: "list[LeftOut]",
) -> None:
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.trace_comparison import trace_comparison_report
    from ridgeline.trace.differences import differences

    report = trace_comparison_report(differences(before, after), left_out)
    deliver(report, wanted.as_json, wanted.output, full=full, max_rows=top)


def _diagnosed(
    found: "TraceStudy",
    traces: "tuple[Trace, ...]",
    paths: Sequence[Path],
    steps: str | None,
    cache: bool,
    say: Say,
) -> "Findings":
    from ridgeline.cli.trace_findings import drawn

    causes = drawn(found, traces, paths, steps, cache, say)
    for problem in causes.problems:
        from ridgeline.report.plain import printable

        click.echo(f"ridgeline: {printable(problem)}", err=True)
    return causes


def _export(
    study: "TraceStudy",
    traces: "tuple[Trace, ...]",
    causes: "Findings",
    wanted: Wanted,
    say: Say,
) -> bool:
    """Write a format that is made from the events themselves; return whether one was asked for."""
    output, ending = wanted.output, wanted.ending
    if output is None or ending not in EVENT_ENDINGS:
        return False
    say(f"writing {output.name}")
    if ending == ".parquet":
        from ridgeline.trace.exports.sql import write_parquet

        write_parquet(traces, output)
    elif ending == ".speedscope.json":
        import msgspec

        from ridgeline.cli.output import write_whole
        from ridgeline.trace.exports.speedscope import speedscope

        write_whole(output, msgspec.json.encode(speedscope(traces[0], study)).decode())
    else:
        from ridgeline.report.views.findings import shown_findings
        from ridgeline.trace.exports.perfetto import mark

        mark(traces[0], study, output, shown_findings(causes))
    return True


def _report(
    found: "TraceStudy",
    causes: "Findings",
    wanted: Wanted,
    full: bool,
    top: int | None,
    left_out: "list[LeftOut]",
    is_written: bool,
) -> None:
    from ridgeline.cli.output import deliver, say_written
    from ridgeline.report.views.trace import longest_table, trace_report

    if longest_table(found) >= MAX_ROWS_PER_TABLE and (full or wanted.as_json or wanted.output):
        limit = f"{MAX_ROWS_PER_TABLE:,} rows"
        click.echo(f"ridgeline: tables end after {limit}, the largest first", err=True)
    report = trace_report(
        found, causes, left_out=left_out, full=full, max_rows=top, typed=sys.argv[1:]
    )
    if not is_written:
        deliver(report, wanted.as_json, wanted.output, full=full, max_rows=top)
    elif wanted.as_json:
        deliver(report, True, None)
    elif wanted.output is not None:
        say_written([wanted.output])
