"""`ridgeline report`: makes files of a recorded run, as often as wanted, without running it."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ridgeline.cli.output import PAGE_ENDINGS, check_folder, check_output
from ridgeline.cli.runs import is_busy, runs_dir_option, runs_folder, say
from ridgeline.cli.trace import TIMELINE_ENDINGS, write_timeline
from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.diagnosis.recorded_run import Attempts
    from ridgeline.records.run_directory import RunDirectory
    from ridgeline.records.run_steps import RunSteps
    from ridgeline.records.run_summary import RunSummary
    from ridgeline.report.document import Report

ENDINGS = (*PAGE_ENDINGS, *TIMELINE_ENDINGS)
CURVES = "/"
"""The ending of a folder, in which event files of TensorBoard are written."""
EXAMPLES = """\b
Examples:
  ridgeline report -o report.html                 the newest run as a page
  ridgeline report train -o report.pdf            the run whose name has "train" in it, on paper
  ridgeline report latest -o comment.md           short, for a pull request or an issue
  ridgeline report latest -o steps.csv            one row a step, for a spreadsheet or pandas
  ridgeline report latest -o run.perfetto.json.gz
                                                  the traced steps, for ui.perfetto.dev
  ridgeline report latest -o tensorboard/         curves; then: tensorboard --logdir tensorboard
  ridgeline report latest -o a.html -o a.json     several at once

\b
The ending picks the format:
  .html             a page that needs nothing else     .pdf .png  the page, printed by Chromium
  .md               short, for a pull request          .json      every figure, for programs
  .csv              one row a step                     NAME/      TensorBoard's event files
  .speedscope.json  the trace, for speedscope.app      .perfetto.json[.gz]  for ui.perfetto.dev
"""


Say = Callable[[str], None]


class Wanted(NamedTuple):
    """A file, or a folder of curves, that is to be made."""

    path: Path
    ending: str


@click.command("report", epilog=EXAMPLES)
@click.argument("name", default="latest", metavar="[RUN]")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="What to write; its ending picks the format. May be given several times.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="Whose trace goes into a timeline, if several ranks ran.  [default: the first with one]",
)
@runs_dir_option
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
def command(
    name: str,
    outputs: tuple[str, ...],
    rank: int | None,
    root: Path | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Make files of a recorded run: a page, a note, a table, curves, a timeline.

    RUN is a run's name, a part of it that no other run has, "latest" (the default), or a path.
    `ridgeline runs` lists the runs. Nothing is run again: everything comes from the run's
    directory, which stays as it is.

    Exit codes: 0 written; 2 usage; 4 the run, or the part of it that was asked for, does not exist
    or is damaged. Of a damaged run everything that can be read is written.
    """
    from ridgeline.cli.output import progress, say_written
    from ridgeline.records.runs import find

    if not outputs:
        raise UsageError(
            "what is to be written? -o names it, e.g. ridgeline report -o report.html",
            "ridgeline runs show prints a run at the terminal",
        )
    wanted = [_wanted(text) for text in outputs]
    run = find(runs_folder(root), name)
    _refuse_records(run, wanted)
    with progress(quiet) as show:
        problems = _written(run, wanted, rank, show)
    say_written([Path(text) for text in outputs])
    if is_busy(run):
        say(f"{run.name} is still running: this is what it recorded until now")
    for sentence in problems:
        say(sentence)
    return 4 if problems else 0


def _wanted(text: str) -> Wanted:
    path = Path(text)
    if not text.endswith(("/", os.sep)):
        try:
            return Wanted(path, check_output(path, ENDINGS))
        except UsageError as error:
            if path.is_dir() or not path.suffix:
                error.hint = f"{error.hint}; for TensorBoard in a slash: {text}/"
            raise
    if path.exists() and not path.is_dir():
        raise UsageError(f"-o {text}: this is a file and no folder", "name another folder")
    if not path.is_dir():
        check_folder(path)
    return Wanted(path, CURVES)


def _refuse_records(run: "RunDirectory", wanted: Sequence[Wanted]) -> None:
    from ridgeline.records.runs import is_record

    for path, _ in wanted:
        if is_record(run, path):
            raise UsageError(f"-o {path}: this is a file of the run itself", "name another file")


def _written(
    run: "RunDirectory", wanted: Sequence[Wanted], rank: int | None, show: Say
) -> tuple[str, ...]:
    """Write all files. Return a sentence for each part of the run that could not be read. What the
    run does not have is refused before the first file is written."""
    from ridgeline.cli.output import write_report
    from ridgeline.diagnosis.conclusion import recorded_summary
    from ridgeline.diagnosis.recorded_run import Attempts

    show("reading the run")
    damage = run.damage()
    attempts = Attempts()
    endings = {ending for _, ending in wanted}
    trace = _stored_trace(run, rank) if endings.intersection(TIMELINE_ENDINGS) else None
    summary = recorded_summary(run)
    report = recorded_report(run, summary, attempts)
    steps = endings & {CURVES, ".csv"}
    if steps and report.figures is not None and not report.figures().rows:
        raise RidgelineError(
            f"{run.name} has no recorded step, so that there is no table and no curve of its steps",
            "it still runs: ask again later" if is_busy(run) else "ridgeline runs show says why",
        )
    for path, ending in wanted:
        show(f"writing {path.name}")
        if ending == CURVES:
            _write_curves(report, path)
        elif trace is not None and ending in TIMELINE_ENDINGS:
            _write_timeline(trace, summary, path, ending)
        else:
            write_report(path, report, ending)
    return tuple(dict.fromkeys((*damage, *attempts.failures)))


def recorded_report(
    run: "RunDirectory", summary: "RunSummary", attempts: "Attempts | None" = None
) -> "Report":
    """Return the report of a run. What a page, a table and scalars need beside the summary is read
    when one of them is made. What cannot be read of it is noted in `attempts`."""
    from functools import cache

    from ridgeline.diagnosis.recorded_run import Attempts
    from ridgeline.diagnosis.run_page import run_page
    from ridgeline.diagnosis.run_steps import run_steps
    from ridgeline.report.views.run import run_report

    noted = Attempts() if attempts is None else attempts

    @cache
    def steps() -> "RunSteps":
        return run_steps(run, noted)

    return run_report(summary, lambda: run_page(run, summary), steps)


def _write_curves(report: "Report", folder: Path) -> None:
    from ridgeline.cli.output import write_whole
    from ridgeline.report.renderers import tensorboard

    assert report.scalars is not None
    scalars = report.scalars()
    if (stride := tensorboard.stride(scalars)) > 1:
        say(f"{folder} has one of {stride} steps, because the run is long; -o steps.csv has all")
    for name, content in tensorboard.render(scalars).items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RidgelineError(f"{path.parent} could not be made: {error.strerror}") from error
        write_whole(path, content)


def _stored_trace(run: "RunDirectory", rank: int | None) -> Path:
    """Return the trace of a rank. Raise RidgelineError if there is none."""
    ranks = run.ranks() or (0,)
    if rank is not None and rank not in ranks:
        raise UsageError(f"{run.name} has no rank {rank}", f"it has: {_listed(ranks)}")
    paths = (run.stored_trace(r) for r in (ranks if rank is None else (rank,)))
    path = next((path for path in paths if path is not None), None)
    if path is None:
        whose = f"rank {rank} of {run.name}" if rank is not None else run.name
        raise RidgelineError(
            f"{whose} has no trace, and a timeline is made from one",
            "ridgeline runs show says why; a run of 20 steps or more records one, unless it is "
            "told --trace-steps 0",
        )
    return path


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _write_timeline(trace_file: Path, summary: "RunSummary", path: Path, ending: str) -> None:
    from ridgeline.report.reasons import verdict_sentence
    from ridgeline.trace.study import study

    studied, traces = study([trace_file], cache=False)  # the run's directory stays as it is
    headline = verdict_sentence(summary.verdict)
    write_timeline(traces[0], studied, summary.findings, path, ending, headline)
