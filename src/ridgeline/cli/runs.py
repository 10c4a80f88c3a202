"""`ridgeline runs`: list the recorded runs, show one again, remove some."""

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.units import parse_seconds

if TYPE_CHECKING:
    from ridgeline.records.run_directory import RunDirectory

EXAMPLES = """\b
Examples:
  ridgeline runs                            list the runs, newest first
  ridgeline runs show latest                show the newest run again
  ridgeline runs rm 1115-123042-train       remove one, by its name or the beginning of it
  ridgeline runs rm --keep 10               remove all but the ten newest
  ridgeline runs rm --older 7d              remove those that began more than 7 days ago
"""

UNFINISHED_AGE_S = 60.0
"""An unfinished file of this age has lost its writer: writing takes milliseconds."""

runs_dir_option = click.option(
    "--runs-dir",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="The folder that holds the runs.  [default: .ridgeline/runs]",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")


@click.group("runs", epilog=EXAMPLES, invoke_without_command=True)
@runs_dir_option
@_json
@_verbose
@click.pass_context
def command(context: click.Context, root: Path | None, as_json: bool, verbose: bool) -> None:
    """List the recorded runs, newest first: when each began, how it ended, what limited it.

    A run whose files are damaged is listed with the reason. A run whose program ended without a
    message is "killed"; what it recorded can still be shown.

    Exit codes: 0 ok; 2 usage; 4 a run could not be read or removed.
    """
    context.obj = root
    if context.invoked_subcommand is not None:
        return
    from ridgeline.cli.output import deliver
    from ridgeline.records.runs import all_runs, remove_unfinished, shown_folder
    from ridgeline.report.views.runs import run_line, runs_report

    folder = runs_folder(root)
    runs = all_runs(folder)
    for run in runs:
        if not is_busy(run):
            remove_unfinished(run, UNFINISHED_AGE_S)
    lines = [run_line(run) for run in runs]
    deliver(runs_report(str(folder), shown_folder(folder), lines), as_json, None)


@command.command("show")
@click.argument("name", default="latest")
@runs_dir_option
@_json
@click.option(
    "-v", "--verbose", is_flag=True, help="Show everything, the five questions too; tracebacks."
)
@click.pass_context
def show(context: click.Context, name: str, root: Path | None, as_json: bool, verbose: bool) -> int:
    """Show a run again: what limits it, its findings, its phases.

    NAME is a run's name, the beginning or the end of it, a path, or "latest", which is the default.

    A killed run is shown from what it recorded. If a run is damaged, each file that cannot be read
    is named and the rest is shown, with exit code 4. A run that a newer version wrote is refused.
    """
    from ridgeline.cli.output import deliver
    from ridgeline.diagnosis.conclusion import recorded_summary
    from ridgeline.records.runs import find
    from ridgeline.report.views.run import run_report

    run = find(runs_folder(root or context.obj), name)
    damage = run.damage()
    deliver(run_report(recorded_summary(run)), as_json, None, full=verbose)
    for sentence in damage:
        say(sentence)
    return 4 if damage else 0


@command.command("rm")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Remove all but the N newest runs."
)
@click.option(
    "--older", metavar="TIME", help="Remove runs that began longer ago than TIME: 7d, 12h, 30min."
)
@click.option("--all", "everything", is_flag=True, help="Remove all runs, after asking.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask.")
@click.option("--force", is_flag=True, help="Also remove runs that are still running.")
@runs_dir_option
@_json
@_verbose
@click.pass_context
def remove(
    context: click.Context,
    names: tuple[str, ...],
    keep: int | None,
    older: str | None,
    everything: bool,
    yes: bool,
    force: bool,
    root: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Remove runs, and say how much space that freed.

    Only directories of runs are removed, and nothing outside them. --keep and --older together
    remove the runs that are neither among the N newest nor younger than TIME.
    """
    chosen = _chosen(runs_folder(root or context.obj), names, keep, older, everything)
    busy = [] if force else [run for run in chosen if is_busy(run)]
    if busy and names:
        raise RidgelineError(
            f"{busy[0].name} is still running, and nothing was removed",
            "--force removes it all the same",
        )
    chosen = [run for run in chosen if run not in busy]
    if everything and chosen and not (yes or _user_agrees(chosen, as_json)):
        click.echo("nothing was removed", err=True)
        return 0
    removed, freed_bytes, failed = _removed(chosen)
    left = [*((run.name, "still running; --force removes it") for run in busy), *failed]
    if as_json:
        from ridgeline.report.renderers import json

        click.echo(json.render({
            "schema": "ridgeline.runs.rm/1",
            "removed": removed,
            "freed_bytes": freed_bytes,
            "left": [{"name": name, "why": why} for name, why in left],
        }))  # fmt: skip
    else:
        from ridgeline.units import bytes_, plural

        for name, why in left:
            say(f"left {name}: {why}")
        click.echo(f"removed {plural(len(removed), 'run')}, {bytes_(freed_bytes)} freed")
    return 4 if failed else 0


def _user_agrees(runs: "Sequence[RunDirectory]", as_json: bool) -> bool:
    """Ask whether to remove `runs`. Raise UsageError if there is no terminal to ask at."""
    from ridgeline.units import bytes_, plural

    total = f"{plural(len(runs), 'run')}, {bytes_(sum(run.size() for run in runs))}"
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"--all would remove {total}; nothing was removed", "--yes removes them")
    return click.confirm(f"Remove {total}?", err=True)


def _chosen(
    folder: Path,
    names: Sequence[str],
    keep: int | None,
    older: str | None,
    everything: bool,
) -> "list[RunDirectory]":
    from ridgeline.records.runs import all_runs, began, find

    by_rule = everything or keep is not None or older is not None
    if bool(names) == by_rule or (everything and (keep is not None or older is not None)):
        raise UsageError(
            "which runs? Name them, or say --keep N, --older 7d, or --all alone",
            "ridgeline runs lists them",
        )
    if names:
        named = [find(folder, name) for name in names]
        return list({run.path.absolute(): run for run in named}.values())
    runs = list(all_runs(folder))[keep or 0 :]
    if older is None:
        return runs
    if not older.strip()[-1:].isalpha():  # a number alone: days or seconds?
        raise UsageError(f"--older {older!r} has no unit", "write 7d, 12h or 30min")
    since = time.time() - parse_seconds("--older", older)
    return [run for run in runs if began(run) < since]


def _removed(runs: "Sequence[RunDirectory]") -> tuple[list[str], int, list[tuple[str, str]]]:
    """Remove runs. Return the names removed, the bytes freed, and (name, why) of what failed."""
    removed, freed_bytes, failed = [], 0, []
    for run in runs:
        try:
            freed_bytes += run.remove()
            removed.append(run.name)
        except RidgelineError as error:
            failed.append((run.name, error.message))
    return removed, freed_bytes, failed


def say(sentence: str) -> None:
    """Print a sentence on stderr. Names of directories and damaged files may contain anything."""
    from ridgeline.report.plain import printable

    click.echo(f"ridgeline: {printable(sentence)}", err=True)


def is_busy(run: "RunDirectory") -> bool:
    """Return whether the program of a run still runs."""
    with contextlib.suppress(RidgelineError):  # a damaged run does not say
        return run.busy()
    return False


def runs_folder(root: Path | None) -> Path:
    """Return the folder that holds the runs; `root` if the person named one."""
    from ridgeline.records.run_directory import runs_root

    return runs_root() if root is None else root
