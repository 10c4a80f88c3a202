"""Work done in a fork of the program's process, which leaves the process as it was.

Whatever the work allocates is gone with the fork. In the process itself a float64 reference would
leave a trace: the C library keeps freed memory for reuse up to the size of the largest freed piece,
so that later steps ask the system for less. Measured: trials of a model in bfloat16 took 11 ms a
step, and the same program by itself 14.
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
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

FORK_MARK = "forked"
"""Name of a file that exists while a fork does: the fork's memory is not the program's."""
FORK_TIMEOUT_S = 30.0
"""A fork is given up after this time. A lock that another thread held stays locked in it."""
_PROTOCOL = 5

T = TypeVar("T")


class RaisedInFork(Exception):
    """Says what the work raised in the fork: the kind of the error and its message."""


def error_text(error: BaseException) -> str:
    """Return `KeyError: 'x'`. An error that came out of a fork says so already."""
    return str(error) if isinstance(error, RaisedInFork) else f"{type(error).__name__}: {error}"


def run_in_fork(work: Callable[[], Any], timeout_s: float, *, own_group: bool = False) -> Any:
    """Run `work` in a fork of this process and return its pickled result. With `own_group` the fork
    leads a process group, so that processes it starts end with it.

    Raise TimeoutError, RaisedInFork, or OSError if the process cannot be forked.
    """
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as answer:
        try:
            with warnings.catch_warnings():  # about threads: the fork starts its own
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                _answer_and_exit(work, writes, own_group)
        finally:
            os.close(writes)
        succeeded, value = _read_answer(child, answer, timeout_s, own_group)
    if not succeeded:
        raise RaisedInFork(value)
    return value


def _answer_and_exit(work: Callable[[], Any], writes: int, own_group: bool) -> None:
    """Do the work in the fork and write its result to the pipe. This does not return."""
    try:
        if own_group:
            os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        try:
            pickled = pickle.dumps((True, work()), protocol=_PROTOCOL)
        except Exception as error:
            pickled = pickle.dumps((False, error_text(error)))
        with os.fdopen(writes, "wb") as out:
            out.write(pickled)
    finally:
        os._exit(0)


def _read_answer(
    child: int, answer: BinaryIO, timeout_s: float, own_group: bool
) -> tuple[bool, Any]:
    """Return whether the work succeeded, and its result or the text of its error."""
    result = None
    poll = select.poll()  # select() handles the first 1,024 descriptors only
    poll.register(answer, select.POLLIN)
    try:
        if not poll.poll(1e3 * timeout_s):
            raise TimeoutError
        with suppress(EOFError, pickle.UnpicklingError):
            result = pickle.load(answer)
    finally:
        if result is None:
            with suppress(ProcessLookupError):
                if own_group:
                    with suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program waits for every child it has
            os.waitpid(child, 0)
    return result or (False, "a copy of the process, in which it was asked, died")


class DirectWork:
    """Runs work in the process itself. On a device there is no other way, and torch keeps a
    device's memory, whatever is freed."""

    def run(self, work: Callable[[], T]) -> T:
        return work()


class ForkedWork(DirectWork):
    """Runs work in a fork where that is possible, and directly where it is not."""

    def __init__(self, torch: Any, mark: Path) -> None:
        """`mark` is the file that exists while a fork does."""
        self._torch = torch
        self._mark = mark
        self._can_fork = sys.platform == "linux"

    def run(self, work: Callable[[], T]) -> T:
        """Return the pickled result of `work`; what it changes in the fork is not changed here."""
        if not self._can_fork or self._must_stay():
            return work()
        try:
            self._mark.touch()
            return cast("T", run_in_fork(lambda: _in_new_thread(self._torch, work), FORK_TIMEOUT_S))
        except (OSError, RuntimeError):  # timeout; no memory for it; Python is about to end
            self._can_fork = False
        finally:
            self._mark.unlink(missing_ok=True)
        return work()

    def _must_stay(self) -> bool:
        """Return whether the work must run here: a fork cannot use a device, nor take part in what
        other ranks wait for."""
        torch = self._torch
        spread = torch.distributed.is_available() and torch.distributed.is_initialized()
        return bool(spread or torch.cuda.is_initialized() or torch.xpu.is_initialized())


class SharedStore:
    """Values that outlive a fork: kept in memory by the process that made the store, and written
    by a fork to an anonymous file, in memory where the system has such files."""

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
        pickle.dump(value, self._file, protocol=_PROTOCOL)
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


def _in_new_thread(torch: Any, work: Callable[[], T]) -> T:
    """Run `work` in a new thread of the fork. The OpenMP pool of the calling thread does not
    survive a fork; reusing it would wait forever."""
    inherited, modes = contextvars.copy_context(), _torch_modes(torch)
    answer: Future[T] = Future()

    def run() -> None:
        try:
            with _with_torch_modes(torch, modes):
                answer.set_result(inherited.run(work))
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer.result(timeout=0)


def _torch_modes(torch: Any) -> tuple[Any, ...]:
    """Return the modes that torch keeps per thread, which a new thread would not have."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip


@contextmanager
def _with_torch_modes(torch: Any, modes: tuple[Any, ...]) -> Iterator[None]:
    grad, inference, autocast, dtype = modes
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(inference))
        if not inference:
            stack.enter_context(torch.set_grad_enabled(grad))
        if autocast:
            stack.enter_context(torch.autocast("cpu", dtype))
        yield
