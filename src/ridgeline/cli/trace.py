"""`ridgeline trace`: where a trace's time went, why the device idled, who was late."""

import glob
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ridgeline.cli.output import PAGE_ENDINGS, check_output, output_options
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.finding import Findings

if TYPE_CHECKING:
    from ridgeline.records.timeline import TracePage
    from ridgeline.records.trace import TraceStudy
    from ridgeline.report.views.trace_data import LeftOut
    from ridgeline.trace.trace import Trace

Say = Callable[[str], None]


class Destination(NamedTuple):
    """Where the answer goes: to stdout as JSON, to a file, or (neither) to the terminal."""

    as_json: bool
    output: Path | None
    ending: str
    """The ending of the output's name, which picks the format."""


class ReadOptions(NamedTuple):
    """How trace files are read."""

    cache: bool = True
    max_events: int | None = None


TRACE_ENDINGS = (".json", ".json.gz", ".json.zst")
TIMELINE_ENDINGS = (".speedscope.json", ".perfetto.json", ".perfetto.json.gz")
"""Formats that show one trace on a timeline. When a folder is read, files with such a name are
skipped: they are our own output."""
EVENT_ENDINGS = (".parquet", *TIMELINE_ENDINGS)
"""Formats that are made from the events themselves."""
REPORT_ENDINGS = PAGE_ENDINGS
ENDINGS = (*REPORT_ENDINGS, *EVENT_ENDINGS)
MAX_ROWS_PER_TABLE = 10_000
"""The terminal shows fewer rows. Only the table of operators by shape can have more, in a trace
whose shapes change with every call, and its smallest rows say nothing."""

EXAMPLES = """\b
Examples:
  ridgeline trace run.json.gz                          what holds it back, why it was idle
  ridgeline trace run/                                 a folder of ranks: who was late
  ridgeline trace run.json --steps 3-5 --full          only these steps, every table
  ridgeline trace after.json --compare before.json     what got slower, what faster
  ridgeline trace run.json.gz -o marked.perfetto.json.gz
                                                       the findings marked on the timeline
  ridgeline trace run.json --sql "select name, sum(dur_ns) from kernels group by 1"

\b
To record a trace that answers most questions:
  with torch.profiler.profile(
      record_shapes=True, profile_memory=True, with_stack=True,
      schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
      on_trace_ready=lambda prof: prof.export_chrome_trace("run.json.gz"),
  ) as prof:
      for batch in loader: step(batch); prof.step()
"""


@click.command("trace", epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE… | FOLDER")
@click.option(
    "--compare",
    "before",
    metavar="BEFORE",
    help="An earlier trace of the program: show what got slower and what got faster since.",
)
@click.option(
    "--steps",
    metavar="3-5",
    help="Study only these steps, by their numbers in the trace, e.g. 3-5 or 4.  [default: all]",
)
@click.option(
    "--top",
    type=click.IntRange(min=1, max=100_000),
    metavar="N",
    help="Show at most N rows of each table.",
)
@click.option("--full", is_flag=True, help="Show every section and every row.")
@click.option(
    "--sql",
    metavar="QUERY",
    help="Answer an SQL query (DuckDB) instead. The views are events, kernels, device_ops, ops, "
    "annotations, calls, frames, memory and syncs; times are in nanoseconds. Rows of ops and "
    "frames nest: add up self_ns, not dur_ns.",
)
@click.option(
    "--max-events",
    type=click.IntRange(min=1),
    metavar="N",
    help="Refuse a file with more than N events.  [default: as many as fit into half of the free "
    "memory, at 400 bytes each]",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache beside the trace.")
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
    """Show what holds a traced program back, where its time went, and which lines did it.

    FILE is a trace that torch.profiler's export_chrome_trace wrote: JSON, plain or compressed with
    gzip or zstd, from any version of torch, from an NVIDIA or AMD GPU or a CPU. A trace that was
    cut off is read up to the cut. Several files, or a FOLDER of them, are the ranks of one job:
    then the report also says which rank came late to the collectives, and with what work.

    Exit codes: 0 answered; 2 usage; 4 no file could be read.
    """
    left_out: list[LeftOut] = []
    destination = Destination(as_json=as_json, output=output, ending=_ending(output, sql, before))
    with _printable_errors():
        paths = trace_files(files)
        earlier = () if before is None else trace_files([before])
        _refuse(destination, (*paths, *earlier), len(paths))
        options = ReadOptions(cache=not no_cache, max_events=max_events)
        if sql is not None:
            _answer(paths, sql, options, quiet, destination, full, left_out)
        elif before is not None:
            with _progress(quiet) as say:
                both = [
                    _studied(p, steps or "all", None, options, say, left_out)[0]
                    for p in (earlier, paths)
                ]
            _compare(both[0], both[1], destination, full, top, left_out)
        else:
            from ridgeline.diagnosis.trace_findings import diagnose_trace

            with _progress(quiet) as say:
                study, traces = _studied(paths, steps, MAX_ROWS_PER_TABLE, options, say, left_out)
                causes = diagnose_trace(study, traces, paths, steps, options.cache, say)
                for problem in causes.problems:
                    _warn(problem)
                is_written = _export(study, traces, causes, destination, say)
            page = partial(_page, traces, study, causes, steps)
            _report(study, causes, destination, full, top, left_out, is_written, page)
    _say_refusal()


def _say_refusal() -> None:
    """Say why the slower reader was used, if a compiled one was refused and not just missing."""
    from ridgeline.trace.reading.compiled import refusal

    if why := refusal():
        _warn(
            f"the compiled reader was not used, because {why}; "
            "the portable reader gives the same figures, but takes longer"
        )


@contextmanager
def _progress(quiet: bool) -> Iterator[Say]:
    """Show progress on stderr; the name of a file is no markup there."""
    from ridgeline.cli.output import progress
    from ridgeline.report.plain import printable

    with progress(quiet) as say:
        yield lambda text: say(printable(text).replace("[", "\\["))


def _refuse(destination: Destination, inputs: Sequence[Path], traces: int) -> None:
    """Refuse to overwrite a trace with its own report, and to write several ranks into a format
    that holds one trace."""
    output = destination.output
    if output is None:
        return
    if destination.ending in TIMELINE_ENDINGS and traces > 1:
        raise UsageError(
            f"-o {output}: this format holds one trace, and {traces} were given", "name one of them"
        )
    if output.exists() and any(output.samefile(path) for path in inputs if path.exists()):
        raise UsageError(f"-o {output}: this is the trace itself", "give the report another name")


def _ending(output: Path | None, sql: str | None, before: str | None) -> str:
    """Return the format that -o asks for; refuse an unknown one before the work."""
    if sql is not None and before is not None:
        raise UsageError("--sql and --compare cannot be given together")
    endings = REPORT_ENDINGS if sql is not None or before else ENDINGS
    return check_output(output, endings, ENDINGS)


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


def trace_files(named: Iterable[str]) -> tuple[Path, ...]:
    """Return the trace files that the words of a command line name: files, folders, and patterns
    the shell did not expand. Each file is returned once, in the order given; the files of a folder
    are ordered by name, rank2 before rank10."""
    files: dict[Path, Path] = {}
    for text in named:
        try:
            matched = _named_files(text)
        except OSError as error:  # a folder that may not be read, a name too long
            raise RidgelineError(f"{text}: {error.strerror or error}") from error
        for path in matched:
            files.setdefault(path.absolute(), path)
    return tuple(files.values())


def _named_files(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        inside = sorted((p for p in path.iterdir() if _is_trace(p)), key=lambda p: _order(p.name))
        if (path / "run.json").is_file():  # a run has other records beside its traces
            inside = [p for p in inside if p.name.startswith("trace-rank")]
        if not inside:
            raise RidgelineError(
                f"{text}: no trace in this folder",
                f"traces end in {', '.join(TRACE_ENDINGS)}",
            )
        return inside
    if path.exists():
        return [path]
    if glob.has_magic(text):
        matched = [Path(p) for p in glob.glob(text, recursive=True) if Path(p).is_file()]
        if not matched:
            raise RidgelineError(f"{text}: no file has such a name", "ls shows what is there")
        return sorted(matched, key=lambda p: _order(str(p)))
    raise RidgelineError(f"{text}: there is no such file", "give a trace, or a folder of traces")


def _is_trace(path: Path) -> bool:
    name = path.name.lower()
    return (
        name.endswith(TRACE_ENDINGS)
        and not name.endswith(TIMELINE_ENDINGS)
        and not name.startswith(".")
        and path.is_file()
    )


def _order(name: str) -> tuple[int, str]:
    """Return a key that sorts rank2 before rank10."""
    return len(name), name


def _studied(
    paths: Sequence[Path],
    steps: str | None,
    rows: int | None,
    options: ReadOptions,
    say: Say,
    left_out: "list[LeftOut]",
) -> "tuple[TraceStudy, tuple[Trace, ...]]":
    """Study the files. Of several, those that cannot be read are left out and named on stderr."""
    from ridgeline.trace.study import ALL_ROWS, study

    limit = ALL_ROWS if rows is None else rows
    try:
        return study(paths, steps=steps, limit=limit, on_progress=say, **options._asdict())
    except UsageError:
        raise
    except RidgelineError:
        readable = _readable(paths, options, left_out) if len(paths) > 1 else paths
        if len(readable) == len(paths):
            raise
        return study(readable, steps=steps, limit=limit, on_progress=say, **options._asdict())


def _readable(paths: Sequence[Path], options: ReadOptions, left_out: "list[LeftOut]") -> list[Path]:
    readable, first = [], ""
    for path in paths:
        try:
            _opened(path, options)
            readable.append(path)
        except RidgelineError as error:
            first = first or error.message
            left_out.append((str(path), error.message))
            _warn(f"left out: {error.message}")
    if not readable:
        raise RidgelineError(f"none of the {len(paths)} files could be read", first)
    return readable


def _opened(path: Path, options: ReadOptions) -> "Trace":
    from ridgeline.trace.study import open_trace

    opened = open_trace(path, **options._asdict())
    if opened.writing is not None:
        opened.writing.join()
    return opened.trace


def _answer(
    paths: Sequence[Path],
    sql: str,
    options: ReadOptions,
    quiet: bool,
    destination: Destination,
    full: bool,
    left_out: "list[LeftOut]",
) -> None:
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.trace import trace_query_report
    from ridgeline.trace.exports.sql import MAX_ROWS, query

    with _progress(quiet) as say:
        say("reading the trace")
        readable = _readable(paths, options, left_out) if len(paths) > 1 else paths
        traces = [_opened(path, options) for path in readable]
        say("running the query")
        columns, rows = query(traces, sql)
    truncated = len(rows) > MAX_ROWS
    if truncated:
        rows = rows[:MAX_ROWS]
        _warn(f"the query gave more than {MAX_ROWS:,} rows; only the first {MAX_ROWS:,} are shown")
    report = trace_query_report(columns, rows, truncated=truncated, left_out=left_out)
    deliver(
        report, destination.as_json, destination.output, full=full or destination.output is not None
    )


def _compare(
    before: "TraceStudy",
    after: "TraceStudy",
    destination: Destination,
    full: bool,
    top: int | None,
    left_out: "list[LeftOut]",
) -> None:
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.trace_comparison import trace_comparison_report
    from ridgeline.trace.differences import differences

    report = trace_comparison_report(differences(before, after), left_out)
    deliver(report, destination.as_json, destination.output, full=full, max_rows=top)


def _warn(text: str) -> None:
    """Print a sentence on stderr. It may hold the content of a damaged file, or any file's name."""
    from ridgeline.report.plain import printable

    click.echo(f"ridgeline: {printable(text)}", err=True)


def _export(
    study: "TraceStudy",
    traces: "tuple[Trace, ...]",
    causes: "Findings",
    destination: Destination,
    say: Say,
) -> bool:
    """Write a format that is made from the events themselves; return whether the output has one."""
    output, ending = destination.output, destination.ending
    if output is None or ending not in EVENT_ENDINGS:
        return False
    say(f"writing {output.name}")
    if ending == ".parquet":
        from ridgeline.trace.exports.sql import write_parquet

        write_parquet(traces, output)
    else:
        from ridgeline.report.views.trace import headline

        write_timeline(traces[0], study, causes, output, ending, headline(study))
    return True


def write_timeline(
    trace: "Trace", study: "TraceStudy", causes: Findings, output: Path, ending: str, headline: str
) -> None:
    """Write a format of TIMELINE_ENDINGS: one trace to look at, with the headline and the findings
    where the format has room for them."""
    if ending == ".speedscope.json":
        import msgspec

        from ridgeline.cli.output import write_whole
        from ridgeline.trace.exports.speedscope import speedscope

        write_whole(output, msgspec.json.encode(speedscope(trace, study)))
    else:
        from ridgeline.report.views.findings import shown_findings
        from ridgeline.trace.exports.perfetto import mark

        mark(trace, study, output, shown_findings(causes), headline)


def _page(
    traces: "Sequence[Trace]", study: "TraceStudy", causes: Findings, steps: str | None
) -> "TracePage":
    """Return what a page shows beside the tables. If it cannot be made, the page has the tables."""
    from ridgeline.diagnosis.recorded_run import Attempts
    from ridgeline.diagnosis.run_page import trace_page
    from ridgeline.records.timeline import TracePage

    attempts = Attempts()
    page = attempts.part("the timeline", lambda: trace_page(traces, study, causes, steps))
    for failure in attempts.failures:
        _warn(failure)
    return page or TracePage()


def _report(
    study: "TraceStudy",
    causes: "Findings",
    destination: Destination,
    full: bool,
    top: int | None,
    left_out: "list[LeftOut]",
    is_written: bool,
    page: "Callable[[], TracePage]",
) -> None:
    from ridgeline.cli.output import deliver, say_written
    from ridgeline.report.views.trace import longest_table, trace_report

    if longest_table(study) >= MAX_ROWS_PER_TABLE and (
        full or destination.as_json or destination.output
    ):
        _warn(f"tables end after {MAX_ROWS_PER_TABLE:,} rows, the largest first")
    report = trace_report(
        study, causes, left_out=left_out, full=full, max_rows=top, typed=sys.argv[1:], page=page
    )
    if not is_written:
        deliver(report, destination.as_json, destination.output, full=full, max_rows=top)
    elif destination.as_json:
        deliver(report, True, None)
    elif destination.output is not None:
        say_written([destination.output])
