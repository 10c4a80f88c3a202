"""`ridgeline runs`: the runs kept here, one of them again, and removing them."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.units import parse_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.records.run_directory import RunDirectory
    from ridgeline.records.run_summary import RunSummary

EXAMPLES = """\b
Examples:
  ridgeline runs                            newest first, with size and verdict
  ridgeline runs show latest                what the newest run said
  ridgeline runs rm 1115-123042-train       one, by its name or the beginning of it
  ridgeline runs rm --keep 10               all but the ten newest
  ridgeline runs rm --older 7d
"""

UNFINISHED_AGE_S = 60.0
"""An unfinished file of this age has lost its writer: writing takes milliseconds."""

_root = click.option(
    "--runs-dir",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Where the runs are.  [default: .ridgeline/runs]",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")


@click.group("runs", epilog=EXAMPLES, invoke_without_command=True)
@_root
@_json
@_verbose
@click.pass_context
def command(context: click.Context, root: Path | None, as_json: bool, verbose: bool) -> None:
    """The runs kept here, newest first: when, how they ended, what limited them, their size.

    A run whose files are damaged is listed with the reason. A run whose program died without a word
    is "killed", and what it left can still be shown.

    Exit codes: 0 ok; 2 usage; 4 a run could not be read or removed.
    """
    context.obj = root
    if context.invoked_subcommand is not None:
        return
    from ridgeline.cli import run_listing
    from ridgeline.records.runs import all_runs, remove_unfinished

    with _printable_errors():
        folder = _folder(root)
        runs = all_runs(folder)
        for run in runs:
            if not _busy(run):
                remove_unfinished(run, UNFINISHED_AGE_S)
        lines = [run_listing.listed(run) for run in runs]
    if as_json:
        _write_json(run_listing.document(folder, lines))
    elif lines:
        run_listing.show(_shown(folder), lines, _console(), time.time())
    else:
        click.echo(f"no runs in {_shown(folder)}; ridgeline run train.py makes one")


@command.command("show")
@click.argument("name", default="latest")
@_root
@_json
@_verbose
@click.pass_context
def show(context: click.Context, name: str, root: Path | None, as_json: bool, verbose: bool) -> int:
    """What a run said, again: its verdict, findings, phases. Also of one that was killed.

    If a run is damaged, what can be read is shown, each file that cannot be read is named, and the
    exit code is 4. A run that was written by a newer version is refused.

    NAME is a run's name, the beginning or the end of it, a path, or "latest". -v also shows how the
    five questions are answered.
    """
    from ridgeline.records.runs import find

    with _printable_errors():
        run = find(_folder(root or context.obj), name)
        damage = run.damage()
        summary = _summary(run)
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.run import run_report

    deliver(run_report(summary), as_json, None, full=verbose)
    for sentence in damage:
        _say(sentence)
    return 4 if damage else 0


@command.command("rm")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="All but the N newest.")
@click.option("--older", metavar="TIME", help="All that began longer ago: 7d, 12h, 30min.")
@click.option("--all", "everything", is_flag=True, help="All runs, after asking.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask.")
@click.option("--force", is_flag=True, help="Also those still running.")
@_root
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
    """Remove runs, and say how much that freed.

    Nothing outside a run's own directory is touched, and nothing that is not a run. --keep and
    --older together remove what is neither among the newest nor young.
    """
    with _printable_errors():
        folder = _folder(root or context.obj)
        chosen = _chosen(folder, names, keep, older, everything)
        busy = [] if force else [run for run in chosen if _busy(run)]
        if busy and names:
            raise RidgelineError(
                f"{busy[0].name} is still running, and nothing was removed",
                "--force removes it all the same",
            )
    chosen = [run for run in chosen if run not in busy]
    if everything and chosen and not (yes or _agreed(chosen, as_json)):
        click.echo("nothing was removed", err=True)
        return 0
    removed, freed, left = _removed(chosen)
    left = [*((run.name, "still running; --force removes it") for run in busy), *left]
    if as_json:
        _write_json({
            "schema": "ridgeline.runs.rm/1",
            "removed": removed,
            "freed_bytes": freed,
            "left": [{"name": name, "why": why} for name, why in left],
        })  # fmt: skip
    else:
        _say_removed(len(removed), freed, left)
    return 4 if len(left) > len(busy) else 0


def _agreed(runs: "Sequence[RunDirectory]", as_json: bool) -> bool:
    """Return whether the user agrees to remove `runs`. Raise UsageError if there is no terminal to
    ask at."""
    from ridgeline.units import bytes_, plural

    said = f"{plural(len(runs), 'run')}, {bytes_(sum(run.size() for run in runs))}"
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"--all would remove {said}; nothing was removed", "--yes removes them")
    return click.confirm(f"Remove {said}?", err=True)


def _chosen(
    folder: Path,
    names: Sequence[str],
    keep: int | None,
    older: str | None,
    everything: bool,
) -> "list[RunDirectory]":
    from ridgeline.records.runs import all_runs, began, find

    many = everything or keep is not None or older is not None
    if bool(names) == many or (everything and (keep is not None or older is not None)):
        raise UsageError(
            "which runs? Name them, or say --keep N, --older 7d, or --all alone",
            "ridgeline runs lists them",
        )
    if names:
        found = [find(folder, name) for name in names]
        return list({run.path.absolute(): run for run in found}.values())
    runs = list(all_runs(folder))[keep or 0 :]
    if older is None:
        return runs
    since = time.time() - _duration(older)
    return [run for run in runs if began(run) < since]


def _removed(runs: "Sequence[RunDirectory]") -> tuple[list[str], int, list[tuple[str, str]]]:
    """Names removed, bytes freed, and (name, why) of what could not be."""
    removed, freed, left = [], 0, []
    for run in runs:
        try:
            freed += run.remove()
            removed.append(run.name)
        except RidgelineError as error:
            left.append((run.name, error.message))
    return removed, freed, left


def _say_removed(removed: int, freed: int, left: Sequence[tuple[str, str]]) -> None:
    from ridgeline.units import bytes_, plural

    for name, why in left:
        _say(f"left {name}: {why}")
    click.echo(f"removed {plural(removed, 'run')}, {bytes_(freed)} freed")


def _say(sentence: str) -> None:
    """Print a sentence on stderr. Unprintable characters are replaced, because names of directories
    and damaged files may contain anything."""
    from ridgeline.report.plain import printable

    click.echo(f"ridgeline: {printable(sentence)}", err=True)


def _summary(run: "RunDirectory") -> "RunSummary":
    """As it was concluded; for one killed, running or damaged, from what it left."""
    from ridgeline.records.run_directory import NewerSchema

    try:
        kept = run.summary()
        if kept is not None:
            return kept
    except NewerSchema:
        raise
    except RidgelineError:
        pass  # damaged: it can be made again
    from ridgeline.diagnosis.conclusion import conclude

    return conclude(run)


def _busy(run: "RunDirectory") -> bool:
    try:
        return run.busy()
    except RidgelineError:
        return False  # damaged: nobody knows


def _folder(root: Path | None) -> Path:
    from ridgeline.records.run_directory import runs_root

    return runs_root() if root is None else root


def _shown(folder: Path) -> Path:
    """From here, where it is below."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _duration(text: str) -> float:
    if not text.strip()[-1:].isalpha():  # a number alone: days or seconds?
        raise UsageError(f"--older {text!r} has no unit", "write 7d, 12h or 30min")
    return parse_seconds("--older", text)


def _console() -> "Console":
    from rich.console import Console

    from ridgeline.cli.output import columns

    return Console(width=columns(sys.stdout.isatty()), highlight=False)


def _write_json(document: object) -> None:
    import msgspec

    from ridgeline.report.plain import json_text

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    click.echo(json_text(text))


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Names of directories, and what a damaged file holds, end up in sentences too."""
    try:
        yield
    except RidgelineError as error:
        from ridgeline.report.plain import printable

        error.message, error.hint = printable(error.message), printable(error.hint)
        raise
