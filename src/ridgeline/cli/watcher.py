"""The watcher of a run: a process beside the program. It samples telemetry, waits until the
program ends, and then concludes the run and prints the report."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.harness.capture.watch_lock import Lock
from ridgeline.records.run_directory import RunDirectory

if TYPE_CHECKING:
    from ridgeline.harness.capture.watching import Ending
    from ridgeline.records.run_summary import RunSummary

MAX_WAIT_FOR_RANKS_S = 10.0
"""How long the watcher that prints the report waits for the other ranks to end."""
MAX_PROGRAM_EXIT_S = 60.0
"""How long the watcher waits for the program's process to end after its goodbye, so that it can
note the exit code. On a busy machine torch takes several seconds to shut down."""
WATCHER_NICENESS = 5
"""The watcher's work must not slow the program beside it."""


def start_watcher(directory: RunDirectory, rank: int) -> None:
    """Fork the watcher; return in the process that will become the program. The lock is held from
    here on.

    The watcher is forked twice and has a session of its own. So the program has no child that it
    did not start, and signals to its process group do not reach the watcher."""
    lock = Lock(directory.lock_file(rank))
    lock.take()
    pid = os.getpid()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _live(directory, rank, pid, lock)
    except BaseException as error:  # only the person at the terminal can be informed
        _say(f"ridgeline: the run could not be concluded: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _live(directory: RunDirectory, rank: int, pid: int, lock: Lock) -> None:
    from ridgeline.harness.capture.watching import Watched, ignore_signals, watch
    from ridgeline.records.run_directory import started

    ignore_signals()
    _keep_stderr_only()
    program = Watched(pid, started(pid) or None)
    ending = watch(directory, rank, pid, program=program)
    is_reporting = int(os.environ.get("LOCAL_RANK", "0") or 0) == 0
    if is_reporting:
        end = time.monotonic() + MAX_WAIT_FOR_RANKS_S
        while directory.open_ranks() and time.monotonic() < end:
            time.sleep(0.05)
        with lock.showing_life():
            conclude_and_report(directory, ending)
    lock.release()
    if is_reporting and ending.kind == "goodbye" and program.gone(MAX_PROGRAM_EXIT_S):
        with contextlib.suppress(OSError, RidgelineError):
            run = replace(directory.run(), exit_code=program.exit_code())
            directory.write_whole(directory.run_file.name, msgspec.json.encode(run))


def conclude_and_report(directory: RunDirectory, ending: "Ending") -> None:
    """Conclude a run that is over, and print the report or write it to the requested file."""
    from ridgeline.integrations.run_lifecycle import finish_run

    settings = directory.run().settings
    say = _silent if settings.quiet else _say
    summary = finish_run(
        directory, ending.at_ns, ending.exit_code, ending.problem, say, ending.oom_kills
    )
    if settings.output:
        _write_report(Path(settings.output), directory, summary, say)
    elif not settings.quiet:
        _print_report(summary, full=settings.verbose)
    if not settings.at_once:  # else it is a look of `optimize`, which nobody opens
        # With an output file, the one line that names it is all that is printed.
        _write_page(directory, summary, _silent if settings.output else say)


def _write_report(
    path: Path, directory: RunDirectory, summary: "RunSummary", say: Callable[[str], None]
) -> None:
    from ridgeline.cli.output import write_report
    from ridgeline.cli.report import recorded_report

    try:
        write_report(path, recorded_report(directory, summary), path.suffix.lower())
    except RidgelineError as error:
        _say(f"ridgeline: {error.message}{f'; {error.hint}' if error.hint else ''}")
    else:
        say(f"wrote {path}")


def _write_page(directory: RunDirectory, summary: "RunSummary", say: Callable[[str], None]) -> None:
    """Write the run's page. The run is concluded already, so that a fault here costs the page
    alone."""
    from ridgeline.cli.output import formatted
    from ridgeline.cli.report import recorded_report

    try:
        report = recorded_report(directory, summary)
        directory.write_whole(directory.page_file.name, formatted(report, ".html").encode())
    except Exception as error:
        say(f"ridgeline: the run has no page: {type(error).__name__}: {error}")
    else:
        say(f" page       {directory.page_file}")


def _print_report(summary: "RunSummary", *, full: bool) -> None:
    from ridgeline.cli.output import report_console
    from ridgeline.report.renderers import terminal
    from ridgeline.report.views.run import document

    with contextlib.suppress(OSError, ValueError):
        terminal.render(document(summary), report_console(sys.stderr), full=full)
        sys.stderr.flush()


def _keep_stderr_only() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    with contextlib.suppress(OSError):
        os.nice(WATCHER_NICENESS)


def _silent(text: str) -> None:
    pass


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
