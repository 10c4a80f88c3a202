"""Where a command's words go: results to stdout, progress to stderr, a file whole or not."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from ridgeline.cli.output_options import ENDINGS
from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.report.document import Report

PIPE_COLUMNS = 140
"""The width of a pipe: no path of a module is cut."""
MIN_COLUMNS = 40
"""On a narrower terminal no table has room for a name and two figures."""


def columns(is_terminal: bool) -> int | None:
    """Of a console: a terminal knows its own (None), a pipe has what COLUMNS says, else so many
    that no module path is cut."""
    told = os.environ.get("COLUMNS", "")
    return None if is_terminal or (told.isdigit() and int(told)) else PIPE_COLUMNS


def claim_stdout() -> None:
    """Keep stdout for ourselves: what else writes to the descriptor (a model's C code, its child
    processes, what it prints at exit) goes to stderr from here on."""
    if sys.__stdout__ is None or sys.stdout is not sys.__stdout__:
        return  # captured by somebody else, who decides
    try:
        own = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return  # closed descriptors: nothing to keep apart
    encoding = sys.__stdout__.encoding
    sys.stdout = os.fdopen(own, "w", encoding=encoding, errors="replace")


def check_output(output: Path | None, endings: tuple[str, ...] = ENDINGS) -> None:
    """Refuse a bad -o before the work, not after it."""
    if output is None:
        return
    if output.suffix.lower() not in endings:
        raise UsageError(
            f"-o {output}: no format is known for {output.suffix or 'a name without ending'}",
            f"end the name in one of: {', '.join(endings)}",
        )
    if not output.absolute().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")


def deliver(
    report: "Report",
    as_json: bool,
    output: Path | None,
    *,
    full: bool = False,
    most: int | None = None,
    also: Sequence[Path] = (),
    max_columns: int | None = None,
) -> None:
    """Write the requested file and name it in one line on stderr. JSON goes to stdout; so does the
    report if no file was requested, in at most `max_columns`. `full` and `most` choose the rows of
    tables; `also` are other files that were written."""
    if output is not None:
        write_whole(output, formatted(report, output.suffix.lower(), full=full, most=most))
    if as_json:
        from ridgeline.report.renderers import json

        _echo(json.render(report.data()))
    elif output is None:
        from ridgeline.report.renderers import terminal

        console = report_console()
        console.width = min(console.width, max_columns or console.width)
        terminal.render(report.document(), console, full=full, most=most)
    asked_for = [output] if output is not None and not as_json else []
    say_written([*asked_for, *also])


def formatted(report: "Report", ending: str, *, full: bool = False, most: int | None = None) -> str:
    """Return the text of a file with this ending."""
    if ending == ".json":
        from ridgeline.report.renderers import json

        return json.render(report.data()) + "\n"
    if ending == ".csv" and report.figures is not None:
        from ridgeline.report.renderers import csv

        return csv.render(report.figures())
    if ending == ".svg" and report.picture is not None:
        from ridgeline.report.renderers.charts import waterfall

        return waterfall(report.picture(), headed=True)
    if ending == ".html":
        from ridgeline.report.renderers import html

        return html.render(report.document(), full=full, most=most)
    from ridgeline.report.renderers import markdown

    return markdown.render(report.document(), full=full, most=most)


def report_console(stream: TextIO | None = None) -> Any:
    """Return a console on `stream` (stdout by default). A pipe has no width: it gets one at which
    few names are cut."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            _reader_left()

    stream = stream or sys.stdout
    console = Quiet(file=stream, width=columns(stream.isatty()), highlight=False)
    console.width = max(console.width, MIN_COLUMNS)
    return console


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        _reader_left()


def _reader_left() -> NoReturn:
    """End as usual when the reader has enough (`| head`), where click and rich exit with 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def say_written(files: Sequence[Path]) -> None:
    """Name the files that were written, in one line on stderr."""
    from ridgeline.report.plain import printable

    if files:
        click.echo(f"wrote {' · '.join(printable(str(file)) for file in files)}", err=True)


def write_whole(path: Path, text: str) -> None:
    """The file appears complete, by rename, or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise RidgelineError(f"{path} could not be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, where stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("") as status:
        yield lambda text: status.update(f"[dim]{text}")
