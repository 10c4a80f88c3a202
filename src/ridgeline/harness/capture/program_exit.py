"""The program's last moment: say how it ended, and wait until the watcher has had its word."""

import contextlib
import gc
import os
import sys
import tempfile
import warnings
import weakref
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import msgspec

from ridgeline.harness.capture import live
from ridgeline.harness.capture.watch_lock import wait_for
from ridgeline.harness.usercode.load import first_words
from ridgeline.records.run import Capture, Status
from ridgeline.records.run_directory import RunDirectory


def remove_temporary_files() -> None:
    """Those of this process that are still held, by a `with` or a name."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return  # a fork has the objects of its parent, whose folders are not its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are removed without a word of the program
        for one in (*_folders(), *_files()):
            with contextlib.suppress(Exception):
                one()


def _folders() -> list[Any]:
    """As finalizers."""
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    cleanup = getattr(tempfile.TemporaryDirectory, "_cleanup", None)
    return [one for one, told in list(registry.items()) if told.func == cleanup]


def _files() -> list[Any]:
    kind = getattr(tempfile, "_TemporaryFileWrapper", None)
    return [one.close for one in gc.get_objects() if type(one) is kind]


MAX_WATCHER_WAIT_S = 120.0
"""The longest wait for a watcher that shows signs of work: reading the trace of a large model takes
half a minute. Without such a sign the program leaves after `lock.EXIT_WAIT_S`."""
OTHER_RANKS_WAIT_S = 0.5
"""They may still be reading what this one sent for the same step."""


def farewell(directory: str, rank: str) -> None:
    """Write how the program ended, and wait for the watcher if that could be written.

    If it could not (the disk is full), the watcher waits for the program to be gone. Waiting for
    the watcher would then last until `MAX_WATCHER_WAIT_S` are over."""
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
        wait_for(run.lock_file(int(rank)), MAX_WATCHER_WAIT_S)


def exit_at_once(run: RunDirectory, rank: int, world: int) -> None:
    """Does not return. A checkpoint in a `finally`, a handler of everything that is raised, a
    loop that goes on after any exception: none of them sees that it was ended."""
    try:
        farewell(str(run.path), str(rank))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if world > 1:
            sleep(OTHER_RANKS_WAIT_S)
        remove_temporary_files()
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
