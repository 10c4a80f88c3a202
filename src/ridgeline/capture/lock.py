"""A lock the watcher holds for its life, and the program's wait for it at its own end.

Taken by flock, so that the kernel gives it back however the watcher dies. Standard library only:
one half runs in the user's program. Where files cannot be locked (some network and user-space file
systems) nobody waits: then the watcher's words may come after the program's end.
"""

import fcntl
import os

# Bound now: programs replace time.sleep and time.monotonic with their own.
from time import monotonic as _monotonic
from time import sleep as _sleep

_LOOK_S = 0.005


class Lock:
    """Held from `take` until `release` or death.

    Take it before forking the watcher: the child then holds it from its first moment, and exec
    closes the parent's copy. Taken by the watcher itself, a program that ends at once might find it
    still free."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = -1

    def take(self) -> bool:
        """False where another holds it, or the file cannot be made or locked."""
        if self._file >= 0:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    @property
    def held(self) -> bool:
        return self._file >= 0

    def release(self) -> None:
        """For all who inherited it, not for this process alone."""
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:
            pass
        finally:
            os.close(file)


def wait_for(path: str | os.PathLike[str], timeout_s: float) -> bool:
    """Until nobody holds the lock; False when the time ran out, or at Ctrl-C.

    A file that is not there, or cannot be locked, is held by nobody."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    end = _monotonic() + timeout_s
    try:
        while not _free(file):
            left = end - _monotonic()
            if left <= 0:
                return False
            _sleep(min(_LOOK_S, left))
        return True
    except KeyboardInterrupt:  # somebody does not want to wait
        return False
    finally:
        os.close(file)


def _free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
