"""What a trial left behind. Processes in sessions of their own, where its group's end does not
reach them: a launcher's workers, a service some library started; found by the variable that every
descendant inherits. And the folders of sockets that loader workers make and, ended by a signal, do
not remove: one for each worker, 44 after an afternoon."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_SOCKETS = "pymp-*"
"""As Python's multiprocessing names them."""
PATIENCE_S = 0.5
"""That what was killed may take to be gone."""


@contextlib.contextmanager
def swept(variable: str, value: str) -> Iterator[None]:
    """While a program runs, with that variable in its environment."""
    before = set(_folders())
    try:
        yield
    finally:
        end(variable, value)
        remove(set(_folders()) - before)


def end(variable: str, value: str, proc: Path = _PROC) -> int:
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


def remove(folders: set[Path], proc: Path = _PROC) -> None:
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
