"""`ridgeline run`: makes a run's directory, leaves a watcher beside it, and becomes the program."""

import contextlib
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.cli.output import PAGE_ENDINGS
from ridgeline.cli.target import Given, TargetCommand, target_of
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run import Settings

if TYPE_CHECKING:
    from ridgeline.records.run import Target
    from ridgeline.records.run_directory import RunDirectory

MAX_CODE_LENGTH = 200
"""Characters of a program given by -c that are kept in run.json."""
MAX_WAIT_FOR_RANK_0_S = 10.0
"""How long other ranks on a machine wait for the first to write run.json. It takes milliseconds."""


@click.command(cls=TargetCommand, name="run")
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="How many steps to time after the warm-up.",
)
@click.option(
    "--trace-steps",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="How many steps to trace; 0 records no trace.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(1),
    metavar="N",
    help="End the program after N steps, with exit code 0.",
)
@click.option(
    "--stop-after-s",
    type=click.FloatRange(0),
    hidden=True,
    help="End the program once it has run for so long and the trace is recorded.",
)
@click.option(
    "--at-once",
    is_flag=True,
    hidden=True,
    help="With --stop-after: no `finally`, no saving at exit, as in a trial of `optimize`.",
)
@click.option("--full", is_flag=True, help="Time every step to the end of the program.")
@click.option(
    "--python",
    is_flag=True,
    help="Also sample which lines of Python take the time, in DataLoader workers too.",
)
@click.option(
    "--price",
    type=click.FloatRange(0),
    metavar="PER_HOUR",
    help="What the machine costs per hour, in any currency: adds the cost of a million samples.",
)
@click.option(
    "--carbon",
    type=click.FloatRange(0),
    metavar="G_PER_KWH",
    help="Grams of CO₂ per kWh of your electricity: adds the emissions of a million samples.",
)
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="The folder in which runs are kept.  [default: .ridgeline/runs]",
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
    metavar="FILE",
    help="Write the report to a file; its ending picks the format: "
    f"{', '.join(PAGE_ENDINGS)}. `ridgeline report` makes more of them later.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing at the end; the run is kept.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also answer five questions: is the device busy, which kernels, which intensity, which "
    "gaps, where is the memory's peak? And show tracebacks.",
)
@click.pass_context
def command(
    ctx: click.Context,
    steps: int,
    trace_steps: int,
    stop_after: int | None,
    stop_after_s: float | None,
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
    """Run a program unchanged, and say what holds it back.

    Put it in front of the command you already use. The program sees the same arguments, streams,
    signals and random numbers, and you get its exit code. When it has ended, Ridgeline prints its
    report to stderr. Everything that was recorded is in a directory under .ridgeline/runs.

    \b
    Examples:
      ridgeline run train.py --epochs 1
      ridgeline run --stop-after 200 -o report.html train.py --epochs 1
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
    check_output(output, PAGE_ENDINGS)
    if given.kind == "script" and given.name != "-" and not os.path.exists(given.name):
        raise command.no_such_file(ctx, given.name)
    settings = Settings(
        steps=steps,
        trace_steps=trace_steps,
        stop_after=stop_after or 0,
        stop_after_s=stop_after_s or 0.0,
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
    from ridgeline.cli.watcher import start_watcher
    from ridgeline.harness.capture.launch import command as program_command
    from ridgeline.harness.capture.launch import environment as recording_environment
    from ridgeline.harness.capture.launch import replace_process

    words = program_command(given.kind, given.name, given.arguments)
    try:
        directory, rank = new_run(given, settings, runs_dir, run_dir)
        start_watcher(directory, rank)
    except Exception as error:  # the fault is ours: the program runs all the same
        why = error.message if isinstance(error, RidgelineError) else ""
        why = why or (error.strerror if isinstance(error, OSError) else "") or repr(error)
        print(f"ridgeline: the program runs, but is not recorded: {why}", file=sys.stderr)
        replace_process(words)
    else:
        replace_process(words, recording_environment(directory.path, rank))


def new_run(
    given: Given, settings: Settings, runs_dir: Path | None, own_dir: Path | None = None
) -> "tuple[RunDirectory, int]":
    """Return the run's directory, with run.json written, and this process's rank. `own_dir` is the
    run's directory if the caller has already made it; otherwise one is made in `runs_dir`. If
    `.ridgeline` cannot be made, the run is kept in the cache folder, and the report names that
    place. All ranks on a machine share a directory, and rank 0 of them writes run.json."""
    from ridgeline.integrations.run_lifecycle import begin_run
    from ridgeline.machine.cache_folder import folder
    from ridgeline.records.run_directory import RunDirectory, restarted_name, runs_root

    rank = _integer("RANK")
    world = max(_integer("WORLD_SIZE", 1), 1)
    name = own_dir.name if own_dir is not None else _run_name(given, world)
    name = restarted_name(name, _integer("TORCHELASTIC_RESTART_COUNT") if world > 1 else 0)
    root = runs_dir if runs_dir is not None else runs_root()
    if own_dir is not None:
        runs_dir = root = own_dir.parent
    try:
        directory = RunDirectory.make(root, name, shared=world > 1 or own_dir is not None)
    except (OSError, RidgelineError):
        if runs_dir is not None:
            raise
        directory = RunDirectory.make(folder() / "runs", name, shared=world > 1)
    if _integer("LOCAL_RANK") == 0:
        try:
            begin_run(directory, _target(given), settings, world)
        except OSError:
            with contextlib.suppress(OSError):
                directory.path.rmdir()  # an empty folder would be listed as a damaged run
            raise
    else:
        end = time.monotonic() + MAX_WAIT_FOR_RANK_0_S
        while not directory.run_file.exists() and time.monotonic() < end:
            time.sleep(0.01)
    return directory, rank


def _run_name(given: Given, world: int) -> str:
    """Return the name of the run, such as 1115-120301-train. All ranks derive the same name from
    the time at which their common parent began."""
    from ridgeline.records.run_directory import run_name

    if world == 1:
        return run_name(given.kind, given.name, datetime.now())
    import psutil

    began = datetime.fromtimestamp(psutil.Process(os.getppid()).create_time())
    name = run_name(given.kind, given.name, began)
    several = _integer("GROUP_WORLD_SIZE", 1) > 1
    return f"{name}-node{_integer('GROUP_RANK')}" if several else name


def _target(given: Given) -> "Target":
    from ridgeline.harness.capture.environment import redacted, redacted_text
    from ridgeline.records.run import Target

    is_code = given.kind == "code"
    return Target(
        kind=given.kind,
        name=redacted_text(given.name[:MAX_CODE_LENGTH]) if is_code else given.name,
        arguments=redacted(given.arguments),
    )


def _integer(variable: str, default: int = 0) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        return default
