"""`ridgeline view`: all recorded runs in a browser, or a run under way in the terminal."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.records.run_directory import RunDirectory

EXAMPLES = """\b
Examples:
  ridgeline view                            all runs of this folder, in a browser
  ridgeline view latest                     the report of the newest run
  ridgeline view train                      the run whose name ends in "train"
  ridgeline view --live                     the run under way, in this terminal
  ridgeline view --no-browser --port 8765   on a server; then, on your own machine:
  ssh -N -L 8765:127.0.0.1:8765 server      and open the printed address there
"""


@click.command("view", epilog=EXAMPLES)
@click.argument("name", metavar="[RUN]", default="")
@click.option(
    "--live", is_flag=True, help="Show a run under way in this terminal, without a browser."
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    metavar="N",
    help="The port to listen on.  [default: a free one]",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--runs-dir",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="The folder that holds the runs.  [default: .ridgeline/runs]",
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
def command(
    name: str, live: bool, port: int | None, no_browser: bool, root: Path | None, verbose: bool
) -> int:
    """Look at the recorded runs in a browser: search and sort them, tag them, plot any number over
    them, put two side by side, open their reports. A run under way is shown while it runs.

    RUN is a run's name, the beginning or the end of it, a path, or "latest": its report is opened.

    The server listens on 127.0.0.1 alone and answers only with the secret in the printed address.
    Ctrl-C ends it.

    Exit codes: 0 ok; 2 usage; 4 there is no such run, or the port is taken.
    """
    from ridgeline.records.run_directory import runs_root
    from ridgeline.records.runs import find

    folder = runs_root() if root is None else root
    if live:
        return _watch(folder, name)
    run = find(folder, name) if name else None
    return _serve(folder if run is None else run.path.parent, run, port or 0, not no_browser)


def _serve(folder: Path, run: "RunDirectory | None", port: int, opens_browser: bool) -> int:
    from ridgeline.records.runs import shown_folder
    from ridgeline.report.plain import printable
    from ridgeline.viewer.library import Library
    from ridgeline.viewer.pages import run_link
    from ridgeline.viewer.server import Viewer

    try:
        server = Viewer(Library(folder), port)
    except OSError as error:
        raise RidgelineError(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror or error}",
            "leave --port out, and a free one is taken",
        ) from error
    path = "/" if run is None else run_link(run.name)
    with server:
        where = printable(shown_folder(folder))
        click.echo(f"ridgeline: the runs of {where} are at {server.address(path)}", err=True)
        click.echo("ridgeline: Ctrl-C ends this server", err=True)
        if opens_browser:
            address = server.address(path, single_use=True)
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    click.echo("ridgeline: the server has ended; the runs are kept", err=True)
    return 0


def _open_browser(address: str) -> None:
    """Open a browser that has a window. Without a display, Python would start one that draws in
    this terminal."""
    import webbrowser

    has_display = sys.platform != "linux" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if has_display:
        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(address)


def _watch(folder: Path, name: str) -> int:
    """Show a run in the terminal until it is over, then its report."""
    from ridgeline.cli.output import report_console
    from ridgeline.diagnosis.conclusion import recorded_summary
    from ridgeline.records.runs import all_runs, find
    from ridgeline.report.plain import printable
    from ridgeline.report.renderers import terminal
    from ridgeline.report.views.run import document
    from ridgeline.viewer.library import stage_of
    from ridgeline.viewer.terminal import show_live

    if not sys.stdout.isatty():
        raise UsageError("--live draws on a terminal, and stdout is none", "ridgeline runs show")
    under_way = (run for run in all_runs(folder) if stage_of(run) != "over")
    run = find(folder, name) if name else next(under_way, None)
    if run is None:
        raise RidgelineError(
            f"no run in {folder} is under way", "ridgeline runs show prints the newest report"
        )
    console = report_console(sys.stdout)
    try:
        show_live(run, console)
    except KeyboardInterrupt:
        click.echo(f"ridgeline: {printable(run.name)} runs on; only this view has ended", err=True)
        return 0
    terminal.render(document(recorded_summary(run)), console)
    return 0
