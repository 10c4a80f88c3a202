"""The program's exit: write how it ended, wait for the watcher's report, and remove temporary files
if the program is ended by force."""

import atexit
import contextlib
import gc
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
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
    """Remove the temporary files and folders of this process that are still in use."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return  # a forked child has copies of its parent's objects, and must not remove the files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tempfile warns of implicit removal
        for remove in (*_folder_finalizers(), *_file_closers()):
            with contextlib.suppress(Exception):
                remove()


def _folder_finalizers() -> list[Any]:
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    cleanup = getattr(tempfile.TemporaryDirectory, "_cleanup", None)
    return [finalizer for finalizer, info in list(registry.items()) if info.func == cleanup]


def _file_closers() -> list[Any]:
    kind = getattr(tempfile, "_TemporaryFileWrapper", None)
    return [item.close for item in gc.get_objects() if type(item) is kind]


MAX_WATCHER_WAIT_S = 120.0
"""Longest wait for a watcher that shows signs of work: reading the trace of a large model takes
half a minute. Without such a sign the program exits after `watch_lock.EXIT_WAIT_S`."""
OTHER_RANKS_WAIT_S = 0.5
"""Pause before a forced exit: other ranks may still be reading data that this rank sent for the
same step."""


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


def exit_at_once(
    *last_words: Callable[[], object], world: int = 1, leave: Callable[[int], object] = os._exit
) -> None:
    """End the process without running any more of the program's code, after `last_words`, which may
    fail. No exception is raised, because a `finally` that writes a checkpoint, an `except` clause,
    or a loop that goes on after exceptions would see it. This function does not return."""
    try:
        speak(*last_words)
        if world > 1:
            sleep(OTHER_RANKS_WAIT_S)
        with contextlib.suppress(Exception):
            remove_temporary_files()
    finally:
        leave(0)


def speak(*last_words: Callable[[], object]) -> None:
    """Do what is left to be done before a forced exit, and flush what the program printed."""
    for do in (*last_words, *(one.flush for one in (sys.stdout, sys.stderr) if one is not None)):
        with contextlib.suppress(Exception):  # a record that cannot be written is missed later
            do()


class LastWords:
    """Does a program's last work of ours, however it ends: by itself, by `os._exit`, which runs no
    exit handler, or at once. A fork that ends by itself does nothing."""

    def __init__(self, *words: Callable[[], object], world: int = 1) -> None:
        self._words = words
        self._world = world
        self._pid = os.getpid()
        self._exit = os._exit

    def install(self) -> None:
        atexit.register(self._first)
        os._exit = self._program_exits  # type: ignore[assignment]

    def at_once(self) -> None:
        """End the program. This does not return."""
        if os.getpid() == self._pid:
            exit_at_once(*self._words, world=self._world, leave=self._exit)
        self._exit(0)

    def _first(self) -> None:
        if os.getpid() == self._pid:
            self._words[0]()

    def _program_exits(self, status: int) -> None:
        if os.getpid() == self._pid:
            speak(*self._words)
        self._exit(status)


def ending() -> tuple[Status, str]:
    """Return how the program ended and, if it raised, the exception in words. Python keeps an
    uncaught exception in sys.last_type and sys.last_value; sys.exit leaves nothing there."""
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return "finished", ""
    if issubclass(kind, KeyboardInterrupt):
        return "interrupted", ""
    try:
        words = first_words(getattr(sys, "last_value", ""))
    except Exception:  # the exception's own __str__ raised
        words = ""
    return "raised", f"{kind.__name__}: {words[:200]}" if words else kind.__name__
