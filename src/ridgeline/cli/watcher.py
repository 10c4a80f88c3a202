"""The watcher's life: forked beside the program, it samples, and has the last word.

Forked twice, into a session of its own: the program, which this process becomes, has no child it
did not make, and what is sent to its group does not reach the watcher.
"""

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

RANKS_PATIENCE_S = 10.0
"""How long rank 0's watcher waits for the last words of the others."""
PROGRAM_EXIT_S = 60.0
"""How long the watcher waits for the program's process to end after its goodbye, so that it can
note the exit code. On a busy machine torch takes several seconds to shut down."""


def start_watcher(directory: RunDirectory, rank: int) -> None:
    """Returns in the process that will be the program; the lock is held from now on."""
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
    except BaseException as error:  # nobody is left to tell but the person at the terminal
        _say(f"ridgeline: the run could not be concluded: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _live(directory: RunDirectory, rank: int, pid: int, lock: Lock) -> None:
    from ridgeline.harness.capture.watching import Watched, deafen, watch
    from ridgeline.records.run_directory import started

    deafen()
    _keep_stderr_only()
    program = Watched(pid, started(pid) or None)
    ending = watch(directory, rank, pid, program=program)
    speaks = int(os.environ.get("LOCAL_RANK", "0") or 0) == 0
    if speaks:
        _await_ranks(directory)
        with lock.showing_life():
            conclude_and_say(directory, ending)
    lock.release()
    if speaks and ending.kind == "goodbye" and program.gone(PROGRAM_EXIT_S):
        _note_exit(directory, program.exit_code())


def conclude_and_say(directory: RunDirectory, ending: "Ending") -> None:
    """Everything that is done once a run is over."""
    from ridgeline.integrations.run_lifecycle import finish_run

    settings = directory.run().settings
    say = (lambda text: None) if settings.quiet else _say
    summary = finish_run(
        directory, ending.at_ns, ending.exit_code, ending.problem, say, ending.oom_kills
    )
    if settings.output:
        _write_output(Path(settings.output), summary, say)
    elif not settings.quiet:
        _print(summary, settings.verbose)


def _write_output(path: Path, summary: "RunSummary", say: Callable[[str], None]) -> None:
    from ridgeline.cli.output import formatted, write_whole
    from ridgeline.report.views.run import run_report

    try:
        write_whole(path, formatted(run_report(summary), path.suffix.lower()))
    except RidgelineError as error:
        _say(f"ridgeline: {error.message}")
    else:
        say(f"wrote {path}")


def _print(summary: "RunSummary", full: bool) -> None:
    from ridgeline.cli.output import report_console
    from ridgeline.report.renderers import terminal
    from ridgeline.report.views.run import document

    with contextlib.suppress(OSError, ValueError):
        terminal.render(document(summary), report_console(sys.stderr), full=full)
        sys.stderr.flush()


def _await_ranks(directory: RunDirectory) -> None:
    """Until each rank that began here has said its last word, or is dead."""
    end = time.monotonic() + RANKS_PATIENCE_S
    while directory.open_ranks() and time.monotonic() < end:
        time.sleep(0.05)


def _note_exit(directory: RunDirectory, code: int | None) -> None:
    """Known when the program is gone, a moment after its goodbye."""
    with contextlib.suppress(OSError, RidgelineError):
        run = replace(directory.run(), exit_code=code)
        directory.write_whole(directory.run_file.name, msgspec.json.encode(run))


def _keep_stderr_only() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    with contextlib.suppress(OSError):
        os.nice(5)  # what it does beside the program must not slow it


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
