"""The lock that the watcher holds while it lives, and the program's wait for it at its exit.

The watcher takes the lock by flock, so that the kernel releases it however the watcher dies. While
the watcher works out the summary, it also sets the file's time a few times a second. The program
waits only as long as it sees this sign of life: a watcher that is stopped, or hangs on its disk,
holds the lock but shows no such sign. Where files cannot be locked (some network and user-space
file systems) the program does not wait, and the watcher may print after the program's end. This
module uses only the standard library, because half of it runs in the user's program.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Imported now, because programs replace time.sleep and time.monotonic with functions of their own.
from time import monotonic as _monotonic
from time import sleep as _sleep

EXIT_WAIT_S = 1.0
"""The longest that the program's exit waits without a sign that the watcher is at work."""
_SIGN_INTERVAL_S = 0.2
_POLL_INTERVAL_S = 0.005


class Lock:
    """A file lock, held from `take` until `release` or until its holders are dead.

    Take it before forking the watcher: the child then holds it from its first moment, and exec
    closes the parent's copy. If the watcher itself took it, a program that ends at once might find
    it still free."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = -1

    def take(self) -> bool:
        """Take the lock. Return False if another process holds it, or if the file cannot be made or
        locked."""
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

    @contextmanager
    def showing_life(self) -> Iterator[None]:
        """Set the file's time every `_SIGN_INTERVAL_S` seconds from a thread, so that a program
        which waits for the lock goes on waiting. Only the watcher's process may use this."""
        over = threading.Event()

        def show() -> None:
            while not over.is_set():
                try:
                    os.utime(self._file)  # needs no room on the disk
                except OSError:
                    return
                over.wait(_SIGN_INTERVAL_S)

        thread = threading.Thread(target=show, daemon=True)
        with suppress(Exception):  # without a thread the program just does not wait
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join(_SIGN_INTERVAL_S)  # wait no longer: the thread may hang on the disk

    def release(self) -> None:
        """Release the lock for all processes that inherited it, not only for this one."""
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:
            pass
        finally:
            os.close(file)


def wait_for(path: str | os.PathLike[str], timeout_s: float, idle_s: float = EXIT_WAIT_S) -> bool:
    """Wait until nobody holds the lock. Return False after `timeout_s`, after `idle_s` without a
    sign of life from its holder, or at Ctrl-C.

    A file that does not exist or cannot be locked is held by nobody."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    now = sign_seen_at = _monotonic()
    end = now + timeout_s
    try:
        sign = _sign(file)
        while not _free(file):
            now = _monotonic()
            if (latest := _sign(file)) != sign:
                sign, sign_seen_at = latest, now
            left = min(end, sign_seen_at + idle_s) - now
            if left <= 0:
                return False
            _sleep(min(_POLL_INTERVAL_S, left))
        return True
    except KeyboardInterrupt:  # the user does not want to wait
        return False
    finally:
        os.close(file)


def is_held(path: str | os.PathLike[str]) -> bool:
    """Return whether a watcher holds the lock: it lives, and may still write to the run."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _free(file)
    finally:
        os.close(file)


def _sign(file: int) -> int:
    """Return the file's time in ns, which a watcher at work changes; 0 if it is not known."""
    try:
        return os.fstat(file).st_mtime_ns
    except OSError:
        return 0


def _free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
