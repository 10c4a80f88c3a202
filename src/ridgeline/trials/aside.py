"""Work of ours in a copy of the program's process, which leaves the process as it was.

On a host the copy is a fork, and what it takes is gone with it. In the process itself a reference
in float64 would stay, in a way: the C library keeps memory for later by the largest piece that was
freed, so that steps after one that was twice as large ask the system for less. Measured: trials of
a model in bfloat16 took 11 ms a step, and the same program by itself 14.
"""

import contextvars
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

ASIDE = "aside"
"""A file that is there while a copy is: its memory is not the program's."""
PATIENCE_S = 30.0
"""A lock that another thread held stays locked in a copy."""
PROTOCOL = 5

T = TypeVar("T")


class Raised(Exception):
    """By the work, in the copy: its kind and its words."""


def told(error: BaseException) -> str:
    return str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {error}"


class Here:
    """In the process itself: on a device there is no other way, and a device's memory is kept by
    torch, whatever is freed."""

    def ask(self, work: Callable[[], T]) -> T:
        return work()


class Aside(Here):
    def __init__(self, torch: Any, mark: Path) -> None:
        """`mark`: the file that is there while a copy is."""
        self._torch = torch
        self._mark = mark
        self._able = sys.platform == "linux"

    def ask(self, work: Callable[[], T]) -> T:
        """What it returns is pickled; what it alters is not altered here."""
        if not self._able or self._elsewhere():
            return work()
        try:
            found = self._asked(work)
        except (OSError, RuntimeError):  # no memory for a copy; Python is about to end
            found = None
        finally:
            self._mark.unlink(missing_ok=True)
        if found is None:
            self._able = False
            return work()
        well, value = found
        if not well:
            raise Raised(value)
        return cast("T", value)

    def _asked(self, work: Callable[[], T]) -> tuple[bool, Any] | None:
        self._mark.touch()
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb") as answer:
            try:
                child = _forked()
                if not child:
                    _answer(self._torch, work, writes)
            finally:
                os.close(writes)
            return _answered(child, answer)

    def _elsewhere(self) -> bool:
        """A fork cannot use a device, nor what other ranks wait for."""
        torch = self._torch
        spread = torch.distributed.is_available() and torch.distributed.is_initialized()
        return bool(spread or torch.cuda.is_initialized() or torch.xpu.is_initialized())


class Shelf:
    """What work puts down for later work, here or in another copy: there in a file that has no
    name, in memory where the system can do that."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._held: list[Any] = []
        create = getattr(os, "memfd_create", None)
        file = os.fdopen(create("ridgeline"), "w+b") if create else None
        self._file: Any = file or tempfile.TemporaryFile()  # noqa: SIM115  # as long as this is

    def put(self, value: Any) -> None:
        if os.getpid() == self._pid:
            self._held.append(value)
            return
        self._file.seek(0, os.SEEK_END)
        pickle.dump(value, self._file, protocol=PROTOCOL)
        self._file.flush()

    def all(self) -> Iterator[Any]:
        yield from self._held
        self._file.seek(0)
        with suppress(EOFError):
            while True:
                yield pickle.load(self._file)

    def clear(self) -> None:
        self._held.clear()
        self._file.seek(0)
        self._file.truncate()


def _forked() -> int:
    with warnings.catch_warnings():  # that there are threads: the copy starts its own
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _answer(torch: Any, work: Callable[[], Any], writes: int) -> None:
    """In the copy; does not return. In a thread of its own: those that shared the work of this one
    are not in the copy, and would be waited for."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        inherited = contextvars.copy_context()
        state = _state(torch)
        with os.fdopen(writes, "wb") as out:

            def run() -> None:
                try:
                    with _as(torch, state):
                        answer = (True, inherited.run(work))
                        pickled = pickle.dumps(answer, protocol=PROTOCOL)
                except Exception as error:
                    pickled = pickle.dumps((False, told(error)))
                out.write(pickled)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    finally:
        os._exit(0)


def _answered(child: int, answer: BinaryIO) -> tuple[bool, Any] | None:
    """None: not in time."""
    late, found = True, (False, "a copy of the process, in which it was asked, died")
    waits = select.poll()  # select() knows the first 1,024 descriptors alone
    waits.register(answer, select.POLLIN)
    try:
        if waits.poll(1e3 * PATIENCE_S):
            late = False
            with suppress(EOFError, pickle.UnpicklingError):
                found = pickle.load(answer)  # piece by piece, each of them small
    finally:
        if late:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program waits for whatever it has started
            os.waitpid(child, 0)
    return None if late else found


def _state(torch: Any) -> tuple[Any, ...]:
    """Of this thread: what a new one would not have."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip


@contextmanager
def _as(torch: Any, state: tuple[Any, ...]) -> Iterator[None]:
    grad, inference, autocast, dtype = state
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(inference))
        if not inference:
            stack.enter_context(torch.set_grad_enabled(grad))
        if autocast:
            stack.enter_context(torch.autocast("cpu", dtype))
        yield
