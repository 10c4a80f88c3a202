"""`ridgeline run`: becomes the program, and leaves a watcher beside it."""

import os
import sys
from pathlib import Path

import click

from ridgeline.cli.target import Given, TargetCommand, target_of
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run import Settings

ENDINGS = (".json", ".md", ".html")


@click.command(cls=TargetCommand, name="run")
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Steps to time, besides warm-up.",
)
@click.option(
    "--trace-steps",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Steps to trace; 0: no trace.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(1),
    metavar="N",
    help="End the program after N steps, with exit code 0.",
)
@click.option(
    "--at-once",
    is_flag=True,
    hidden=True,
    help="With --stop-after: no `finally`, no saving at exit, as in a trial of `optimize`.",
)
@click.option("--full", is_flag=True, help="Time every step to the program's end.")
@click.option(
    "--python",
    is_flag=True,
    help="Also sample where Python spends its time, DataLoader workers included.",
)
@click.option(
    "--price",
    type=click.FloatRange(0),
    metavar="PER_HOUR",
    help="What the machine costs an hour: gives the cost of a million samples.",
)
@click.option(
    "--carbon",
    type=click.FloatRange(0),
    metavar="G_PER_KWH",
    help="Grams of CO₂ a kWh: gives the emissions of a million samples.",
)
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where runs are kept.  [default: .ridgeline/runs]",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    hidden=True,
    help="The run's own directory, which must exist: `optimize` finds its run by it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to a file; its ending picks the format: .json, .md, .html.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing at the end; the run is kept.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also answer: device busy? which kernels? which intensity? which gaps? where is the peak? "
    "And show tracebacks.",
)
@click.pass_context
def command(
    ctx: click.Context,
    steps: int,
    trace_steps: int,
    stop_after: int | None,
    at_once: bool,
    full: bool,
    python: bool,
    price: float | None,
    carbon: float | None,
    runs_dir: Path | None,
    run_dir: Path | None,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Run a program as it is, and say what holds it back.

    Put it in front of the command you already use. The program sees the same arguments, streams,
    signals and random numbers, and its exit code is yours; Ridgeline's words go to stderr when it
    has ended. Everything that was recorded is in a directory under .ridgeline/runs.

    \b
    Examples:
      ridgeline run train.py --epochs 1
      ridgeline run --stop-after 200 -o result.json train.py --epochs 1
      ridgeline run -m mypackage.train --lr 3e-4
      ridgeline run --python train.py                # slow Python by line, workers too
      torchrun --nproc-per-node 8 -m ridgeline run train.py
    """
    from ridgeline.cli.output import check_output

    given = target_of(ctx)
    if given is None:
        raise UsageError(
            "there is no program to run",
            "e.g. ridgeline run train.py --epochs 1, or ridgeline run -m package.train",
        )
    check_output(output, ENDINGS)
    if given.kind == "script" and given.name != "-" and not os.path.exists(given.name):
        raise command.no_such_file(ctx, given.name)
    settings = Settings(
        steps=steps,
        trace_steps=trace_steps,
        stop_after=stop_after or 0,
        at_once=at_once,
        full=full,
        python=python,
        price_per_hour=price,
        carbon_g_per_kwh=carbon,
        output=str(output.absolute()) if output else "",
        quiet=quiet,
        verbose=verbose,
    )
    _run(given, settings, runs_dir, run_dir)


def _run(given: Given, settings: Settings, runs_dir: Path | None, run_dir: Path | None) -> None:
    from ridgeline.cli.new_run import new_run
    from ridgeline.cli.watcher import start_watcher
    from ridgeline.harness.capture.launch import become
    from ridgeline.harness.capture.launch import command as as_typed
    from ridgeline.harness.capture.launch import environment as with_us

    words = as_typed(given.kind, given.name, given.arguments)
    try:
        directory, rank = new_run(given, settings, runs_dir, run_dir)
        start_watcher(directory, rank)
    except Exception as error:  # whatever broke is ours: the program is run all the same
        print(f"ridgeline: not recorded, the program runs alone: {_said(error)}", file=sys.stderr)
        become(words)
    else:
        become(words, with_us(directory.path, rank))


def _said(error: Exception) -> str:
    if isinstance(error, RidgelineError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else "") or repr(error)
