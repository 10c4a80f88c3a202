"""The program's last moment: say how it ended, and wait until the watcher has had its word."""

import os
import sys
from pathlib import Path
from time import perf_counter_ns, sleep

import msgspec

from ridgeline.harness.capture import live
from ridgeline.harness.capture.lock import wait_for
from ridgeline.harness.usercode.temporary import remove_own
from ridgeline.harness.usercode.words import first_words
from ridgeline.records.run import Capture, Status
from ridgeline.records.run_directory import RunDirectory

PATIENCE_S = 120.0
"""The longest wait for a watcher that shows signs of work: reading the trace of a large model takes
half a minute. Without such a sign the program leaves after `lock.EXIT_WAIT_S`."""
FOR_OTHER_RANKS_S = 0.5
"""They may still be reading what this one sent for the same step."""


def farewell(directory: str, rank: str) -> None:
    """Write how the program ended, and wait for the watcher if that could be written.

    If it could not (the disk is full), the watcher waits for the program to be gone. Waiting for
    the watcher would then last until `PATIENCE_S` are over."""
    run = RunDirectory(Path(directory))
    ended, why = ending()
    if live.session is not None:
        written = live.session.farewell(ended, why)
    else:
        capture = Capture(
            rank=int(rank), torch_imported=False, ended=ended, why=why, ended_ns=perf_counter_ns()
        )
        run.write_whole(run.capture_file(int(rank)).name, msgspec.json.encode(capture))
        written = True
    if written:
        wait_for(run.lock_file(int(rank)), PATIENCE_S)


def at_once(run: RunDirectory, rank: int, world: int) -> None:
    """Does not return. A checkpoint in a `finally`, a handler of everything that is raised, a
    loop that goes on after any exception: none of them sees that it was ended."""
    try:
        farewell(str(run.path), str(rank))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if world > 1:
            sleep(FOR_OTHER_RANKS_S)
        remove_own()
    finally:
        os._exit(0)


def ending() -> tuple[Status, str]:
    """From what Python itself keeps of an exception nobody caught; sys.exit leaves nothing."""
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return "finished", ""
    if issubclass(kind, KeyboardInterrupt):
        return "interrupted", ""
    try:
        said = first_words(getattr(sys, "last_value", ""))
    except Exception:  # its own words raise
        said = ""
    return "raised", f"{kind.__name__}: {said[:200]}" if said else kind.__name__
