"""Work of ours in a copy of the program's process, which leaves the process as it was.

On a host the copy is a fork, and what it takes is gone with it. In the process itself a reference
in float64 would stay, in a way: the C library keeps memory for later by the largest piece that was
freed, so that steps after one that was twice as large ask the system for less. Measured: trials of
a model in bfloat16 took 11 ms a step, and the same program by itself 14.
"""

import contextvars
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from ridgeline.harness.usercode.child_process import PROTOCOL, in_a_copy

ASIDE = "aside"
"""A file that is there while a copy is: its memory is not the program's."""
PATIENCE_S = 30.0
"""A lock that another thread held stays locked in a copy."""

T = TypeVar("T")


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
            self._mark.touch()
            return cast("T", in_a_copy(lambda: _in_a_thread(self._torch, work), PATIENCE_S))
        except (OSError, RuntimeError):  # not in time; no memory for it; Python is about to end
            self._able = False
        finally:
            self._mark.unlink(missing_ok=True)
        return work()

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


def _in_a_thread(torch: Any, work: Callable[[], T]) -> T:
    """Of its own, in the copy: those that shared the work of this one are not there, and would be
    waited for."""
    inherited, state = contextvars.copy_context(), _state(torch)
    answer: Future[T] = Future()

    def run() -> None:
        try:
            with _as(torch, state):
                answer.set_result(inherited.run(work))
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer.result(timeout=0)


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
