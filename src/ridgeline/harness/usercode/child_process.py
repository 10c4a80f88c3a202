"""A program of the user's in a process and a session of its own, waited for to its end; whatever it
leaves running is ended with it."""

import contextlib
import os
import pickle
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

_LOOK_EVERY_S = 0.005
_LINES = 6


class Ended(Struct, frozen=True, kw_only=True):
    code: int | None
    """None: it had not ended in time and was killed."""
    wall_ns: int
    cpu_ns: float = 0.0
    peak_rss_bytes: int = 0
    said: tuple[str, ...] = ()
    """The last lines it wrote, of both streams."""

    @property
    def signal(self) -> str:
        """SIGKILL; "" where it ended by itself."""
        return signal.Signals(-self.code).name if self.code is not None and self.code < 0 else ""


def to_its_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    look: Callable[[int], None] | None = None,
) -> Ended:
    """`look` is called with its process id again and again while it runs."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter_ns()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            code, usage = _wait(process, time.monotonic() + limit_s, look)
            wall_ns = time.perf_counter_ns() - began
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # workers it left behind
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    scale = 1 if sys.platform == "darwin" else 1024
    return Ended(
        code=code,
        wall_ns=wall_ns,
        cpu_ns=1e9 * (usage.ru_utime + usage.ru_stime) if usage is not None else 0.0,
        peak_rss_bytes=usage.ru_maxrss * scale if usage is not None else 0,
        said=tuple(line for line in lines if line.strip())[-_LINES:],
    )


def _wait(
    process: "subprocess.Popen[bytes]", deadline: float, look: Callable[[int], None] | None
) -> tuple[int | None, "resource.struct_rusage | None"]:
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, None
        if look is not None:
            look(process.pid)
        time.sleep(_LOOK_EVERY_S)


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


_PROC = Path("/proc")
_SOCKETS = "pymp-*"
"""As Python's multiprocessing names them."""
PATIENCE_S = 0.5
"""That what was killed may take to be gone."""


@contextlib.contextmanager
def no_leftovers(variable: str, value: str) -> Iterator[None]:
    """While a program runs, with that variable in its environment."""
    before = set(_folders())
    try:
        yield
    finally:
        end_leftovers(variable, value)
        remove_sockets(set(_folders()) - before)


def end_leftovers(variable: str, value: str, proc: Path = _PROC) -> int:
    """How many were ended. Elsewhere than on Linux nobody can be asked: none."""
    wanted = f"{variable}={value}".encode()
    ended = 0
    for pid, environment in _environments(proc):
        if wanted in environment.split(b"\0") and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    return ended


def _environments(proc: Path) -> Iterator[tuple[int, bytes]]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(proc):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                    yield int(entry.name), Path(entry.path, "environ").read_bytes()


def remove_sockets(folders: set[Path], proc: Path = _PROC) -> None:
    """Those with sockets in them of which none is listened to: another program's are."""
    deadline = time.monotonic() + PATIENCE_S
    while folders:
        dead = {folder for folder in folders if _is_dead(folder, proc)}
        for folder in dead:
            shutil.rmtree(folder, ignore_errors=True)
        folders = folders - dead
        if not folders or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _folders() -> Iterator[Path]:
    return Path(tempfile.gettempdir()).glob(_SOCKETS)


def _is_dead(folder: Path, proc: Path) -> bool:
    try:
        inside = list(folder.iterdir())
        heard = {line.split()[-1] for line in (proc / "net/unix").read_text().splitlines()}
        ours = folder.stat().st_uid == os.getuid()
        return (
            ours
            and bool(inside)
            and all(one.is_socket() and str(one) not in heard for one in inside)
        )
    except OSError:  # gone meanwhile; elsewhere than on Linux nobody can be asked
        return False
