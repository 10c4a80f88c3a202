"""Delivers what a command prints: results to stdout or a file, progress to stderr. The options that
every command has for this are defined here too."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.report.document import Report

F = TypeVar("F", bound=Callable[..., Any])

ENDINGS = (".json", ".md", ".csv")
PRINTED_ENDINGS = (".pdf", ".png")
"""Formats that a browser of this machine prints from the page."""
PAGE_ENDINGS = (*ENDINGS, ".html", *PRINTED_ENDINGS)
PIPE_COLUMNS = 140
"""The width used for a pipe without COLUMNS. At this width no path of a module is cut."""
MIN_COLUMNS = 40
"""On a narrower terminal no table has room for a name and two figures."""


def output_options(endings: tuple[str, ...] = ENDINGS) -> Callable[[F], F]:
    """Add --json, -o, -q and -v, as `as_json`, `output`, `quiet` and `verbose`."""
    options = (
        click.option(
            "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            default=None,
            metavar="FILE",
            help=f"Write to a file; its ending picks the format: {', '.join(endings)}.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        click.option("-v", "--verbose", is_flag=True, help="Show tracebacks."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):  # the innermost decorator comes last in the help
            command = option(command)
        return command

    return decorate


def check_output(
    output: Path | None, endings: tuple[str, ...] = ENDINGS, others: tuple[str, ...] = ()
) -> str:
    """Refuse a file that cannot be written before the work, and not after it. Return the ending
    that picks its format, "" if there is no file. `others` are endings of formats that there are,
    but not for this result: x.perfetto.json is no report in JSON."""
    if output is None:
        return ""
    name = output.name.lower()
    ending = max((e for e in (*endings, *others) if name.endswith(e)), key=len, default="")
    if ending not in endings:
        unknown = f"{ending} here" if ending else output.suffix or "a name without ending"
        raise UsageError(
            f"-o {output}: no format is known for {unknown}",
            f"end the name in one of: {', '.join(endings)}",
        )
    if output.is_dir():
        raise UsageError(f"-o {output}: this is a folder", "give the name of a file")
    check_folder(output)
    if ending in PRINTED_ENDINGS:
        from ridgeline.report.renderers.browser import find_browser

        find_browser()
    return ending


def check_folder(output: Path) -> None:
    """Refuse a file or folder that cannot be made because of the folder that it is to be in."""
    folder = output.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"-o {output}: the folder {output.parent} may not be written to")


def claim_stdout() -> None:
    """Keep stdout for the result: whatever else writes to its descriptor (the user's code, its C
    libraries, its child processes) is sent to stderr from here on."""
    if sys.__stdout__ is None or sys.stdout is not sys.__stdout__:
        return  # a test or a notebook has replaced stdout and decides what goes where
    try:
        own = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return  # stdout or stderr is closed: nothing to keep apart
    sys.stdout = os.fdopen(own, "w", encoding=sys.__stdout__.encoding, errors="replace")


def deliver(
    report: "Report",
    as_json: bool,
    output: Path | None,
    *,
    full: bool = False,
    max_rows: int | None = None,
    also: Sequence[Path] = (),
    max_columns: int | None = None,
) -> None:
    """Write the requested file and name it in one line on stderr. JSON goes to stdout; so does the
    report if no file was requested, in at most `max_columns`. `full` and `max_rows` choose the rows
    of tables; `also` are other files that were written."""
    if output is not None:
        write_report(output, report, output.suffix.lower(), full=full, max_rows=max_rows)
    if as_json:
        from ridgeline.report.renderers import json

        try:
            click.echo(json.render(report.data()))
        except BrokenPipeError:
            _end_quietly()
    elif output is None:
        from ridgeline.report.renderers import terminal

        console = report_console(sys.stdout)
        console.width = min(console.width, max_columns or console.width)
        terminal.render(report.document(), console, full=full, max_rows=max_rows)
    asked_for = [output] if output is not None and not as_json else []
    say_written([*asked_for, *also])


def write_report(
    output: Path, report: "Report", ending: str, *, full: bool = False, max_rows: int | None = None
) -> None:
    """Write the file in the format of this ending, whole or not at all. If the browser fails to
    print the page, the page itself is written, so that no result is lost."""
    if ending not in PRINTED_ENDINGS:
        write_whole(output, formatted(report, ending, full=full, max_rows=max_rows))
        return
    from ridgeline.report.renderers import browser

    page = formatted(report, ".html", full=full, max_rows=max_rows)
    try:
        printed = browser.render_pdf(page) if ending == ".pdf" else browser.render_png(page)
    except RidgelineError as error:
        instead = output.with_suffix(".html")
        if not instead.exists():
            write_whole(instead, page)
            error.hint = f"the page is in {instead}: print it from a browser"
        raise
    write_whole(output, printed)


def formatted(
    report: "Report", ending: str, *, full: bool = False, max_rows: int | None = None
) -> str:
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

        document = report.page or report.document
        return html.render(document(), full=full, max_rows=max_rows)
    from ridgeline.report.renderers import markdown

    return markdown.render(report.document(), full=full, max_rows=max_rows)


def report_console(stream: TextIO) -> Any:
    """Return a rich console on `stream` as wide as its terminal. A pipe has no width: it gets the
    one that COLUMNS names, or one at which few names are cut."""
    from rich.console import Console

    class ReportConsole(Console):
        def on_broken_pipe(self) -> None:
            _end_quietly()

    columns = os.environ.get("COLUMNS", "")
    has_width = stream.isatty() or (columns.isdigit() and int(columns))
    console = ReportConsole(file=stream, width=None if has_width else PIPE_COLUMNS, highlight=False)
    console.width = max(console.width, MIN_COLUMNS)
    return console


def _end_quietly() -> NoReturn:
    """End with exit code 0 when the reader of stdout has gone (`| head`); click and rich would end
    with 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def say_written(files: Sequence[Path]) -> None:
    """Name the files that were written, in one line on stderr."""
    from ridgeline.report.plain import printable

    if files:
        click.echo(f"wrote {' · '.join(printable(str(file)) for file in files)}", err=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears complete, by a rename, or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise RidgelineError(f"{path} could not be written: {error.strerror}") from error


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows in a line on stderr what is being done, if stderr is a
    terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("") as status:
        yield lambda text: status.update(f"[dim]{text}")
