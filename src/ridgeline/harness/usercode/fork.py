"""Work done in a copy of this process: what it alters, takes and prints is gone with the copy."""

import os
import pickle
import select
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

PROTOCOL = 5


class Raised(Exception):
    """By the work, in the copy: its kind and its words."""


def told(error: BaseException) -> str:
    return str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {error}"


def in_a_copy(work: Callable[[], Any], patience_s: float, *, apart: bool = False) -> Any:
    """What it returns is pickled. `apart`: in a group of its own, so that what it starts ends with
    it. Raises TimeoutError, Raised, and OSError where no copy can be made."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as answer:
        try:
            child = _forked()
            if not child:
                _answer(work, writes, apart)
        finally:
            os.close(writes)
        well, value = _answered(child, answer, patience_s, apart)
    if not well:
        raise Raised(value)
    return value


def _forked() -> int:
    with warnings.catch_warnings():  # that there are threads: the copy starts its own
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _answer(work: Callable[[], Any], writes: int, apart: bool) -> None:
    """In the copy; does not return."""
    try:
        if apart:
            os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        try:
            pickled = pickle.dumps((True, work()), protocol=PROTOCOL)
        except Exception as error:
            pickled = pickle.dumps((False, told(error)))
        with os.fdopen(writes, "wb") as out:
            out.write(pickled)
    finally:
        os._exit(0)


def _answered(child: int, answer: BinaryIO, patience_s: float, apart: bool) -> tuple[bool, Any]:
    found = None
    waits = select.poll()  # select() knows the first 1,024 descriptors alone
    waits.register(answer, select.POLLIN)
    try:
        if not waits.poll(1e3 * patience_s):
            raise TimeoutError
        with suppress(EOFError, pickle.UnpicklingError):
            found = pickle.load(answer)  # piece by piece, each of them small
    finally:
        if found is None:
            _kill(child, apart)
        with suppress(ChildProcessError):  # the program waits for whatever it has started
            os.waitpid(child, 0)
    return found or (False, "a copy of the process, in which it was asked, died")


def _kill(child: int, apart: bool) -> None:
    """The copy, and whatever it started where it had a group of its own."""
    with suppress(ProcessLookupError):
        if apart:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
