"""Runs a program of the user's in a child process and a session of its own, waits for its end, and
removes whatever it leaves behind."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

_LOOK_EVERY_S = 0.005
_KEPT_LINES = 6
_PROC = Path("/proc")
_SOCKET_FOLDERS = "pymp-*"
"""Folders of sockets, as Python's multiprocessing names them."""
SOCKETS_TIMEOUT_S = 0.5
"""How long killed processes may take to be gone, before their sockets can be removed."""


class Ended(Struct, frozen=True, kw_only=True):
    """Says how a child process ended."""

    code: int | None
    """None: it had not ended in time and was killed."""
    wall_ns: int
    cpu_ns: float = 0.0
    peak_rss_bytes: int = 0
    last_lines: tuple[str, ...] = ()
    """The last lines it wrote, of both streams."""

    @property
    def signal(self) -> str:
        """The signal that killed it, such as SIGKILL; "" if it ended by itself."""
        return signal.Signals(-self.code).name if self.code is not None and self.code < 0 else ""


class Child:
    """A program in a session of its own, so that Ctrl-C is not its business. What it writes to both
    streams is kept, in `output` or in a temporary file."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        # The file is open as long as the child runs.
        self._output = open(output, "w+b") if output else tempfile.TemporaryFile()  # noqa: SIM115
        self.began_ns = time.perf_counter_ns()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
            env=environment, start_new_session=True, pass_fds=pass_fds,
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def last_lines(self) -> tuple[str, ...]:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return tuple(line for line in lines if line.strip())[-_KEPT_LINES:]

    def printed_lines(self) -> int:
        """Return how many lines it has written so far."""
        self._output.seek(0)
        return sum(chunk.count(b"\n") for chunk in iter(lambda: self._output.read(1 << 20), b""))

    def wait(
        self, limit_s: float, look: Callable[[int], None] | None = None
    ) -> tuple[int | None, "resource.struct_rusage | None"]:
        """Return its exit code and what it used. A child that has not ended after `limit_s` is
        killed, and has neither."""
        deadline = time.monotonic() + limit_s
        while True:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return self.process.returncode, usage
            if time.monotonic() > deadline:
                self.kill()
                return None, None
            if look is not None:
                look(self.process.pid)
            time.sleep(_LOOK_EVERY_S)

    def kill(self) -> None:
        """Kill it with its whole process group, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, patience_s: float = 0.0) -> None:
        """Give it this time to end by itself; then kill it, and the workers it left behind."""
        if patience_s and self.is_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.kill()
        self._output.close()


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    look: Callable[[int], None] | None = None,
    keep_output: Path | None = None,
) -> Ended:
    """Run a command to its end, but no longer than `limit_s`. `look` is called with its process id
    again and again while it runs. What it writes to both streams is kept in `keep_output`."""
    child = Child(command, environment, output=keep_output)
    try:
        code, usage = child.wait(limit_s, look)
        wall_ns = time.perf_counter_ns() - child.began_ns
        lines = child.last_lines()
    finally:
        child.end()
    scale = 1 if sys.platform == "darwin" else 1024
    return Ended(
        code=code,
        wall_ns=wall_ns,
        cpu_ns=1e9 * (usage.ru_utime + usage.ru_stime) if usage is not None else 0.0,
        peak_rss_bytes=usage.ru_maxrss * scale if usage is not None else 0,
        last_lines=lines,
    )


def visible_device(device: str | None) -> dict[str, str]:
    """Return the variable that shows a child only this device: "cpu" hides the GPUs, "cuda:1" shows
    one of them. There is none if no device was asked for."""
    if device is None:
        return {}
    kind, _, index = device.partition(":")
    return {"CUDA_VISIBLE_DEVICES": "" if kind == "cpu" else index or "0"}


@contextlib.contextmanager
def no_leftovers(variable: str, value: str) -> Iterator[None]:
    """Remove what a program leaves behind that runs inside this context with `variable` set to
    `value` in its environment.

    Processes in sessions of their own (a launcher's workers, a service that some library started)
    do not end with the program's group; they are found by the variable, which every descendant
    inherits. Loader workers that a signal ends leave the folders of their sockets: one for each
    worker, 44 after an afternoon.
    """
    before = set(_socket_folders())
    try:
        yield
    finally:
        end_leftovers(variable, value)
        remove_dead_sockets(set(_socket_folders()) - before)


def end_leftovers(variable: str, value: str, proc: Path = _PROC) -> int:
    """Kill the processes that have this variable in their environment, and return how many there
    were. Only Linux shows the environment of a process."""
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


def remove_dead_sockets(folders: set[Path], proc: Path = _PROC) -> None:
    """Remove the folders of sockets on which no process listens."""
    deadline = time.monotonic() + SOCKETS_TIMEOUT_S
    while folders:
        dead = {folder for folder in folders if _is_dead(folder, proc)}
        for folder in dead:
            shutil.rmtree(folder, ignore_errors=True)
        folders = folders - dead
        if not folders or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _socket_folders() -> Iterator[Path]:
    return Path(tempfile.gettempdir()).glob(_SOCKET_FOLDERS)


def _is_dead(folder: Path, proc: Path) -> bool:
    try:
        inside = list(folder.iterdir())
        listening = {line.split()[-1] for line in (proc / "net/unix").read_text().splitlines()}
        dead = all(file.is_socket() and str(file) not in listening for file in inside)
        return bool(inside) and dead and folder.stat().st_uid == os.getuid()
    except OSError:  # gone meanwhile; only Linux shows who listens
        return False
