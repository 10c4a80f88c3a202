"""The user's own lines on a stack: the frames that belong to no library and not to us."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from types import FrameType

_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(key))
    }
)
_OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir)) + os.sep
_PACKAGE_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_MAX_KNOWN_FILES = 10_000
_known: dict[str, bool] = {}


def is_user_file(file: str) -> bool:
    """Return whether a file is the user's: it belongs to no library, and not to us."""
    known = _known.get(file)
    if known is None:
        path = os.path.realpath(file)
        library = path.startswith((*_LIBRARIES, _OURS))
        packaged = any(folder in path for folder in _PACKAGE_FOLDERS)
        generated = file.startswith("<") and not file.startswith("<ipython")
        known = not (library or packaged or generated)
        if len(_known) < _MAX_KNOWN_FILES:
            _known[file] = known
    return known


def user_line() -> str:
    """Return file:line of the user's innermost frame, or "" if no frame is the user's."""
    return _innermost(sys._getframe(1))


def user_line_of_thread(thread: int | None) -> str:
    """Return file:line of the user's innermost frame in another thread, or ""."""
    return _innermost(sys._current_frames().get(thread)) if thread is not None else ""


def user_function() -> str:
    """Return file:line:function of the user's innermost frame, or "" if no frame is the user's."""
    return next(user_frames(sys._getframe(1)), "")


def user_functions(max_count: int) -> tuple[str, ...]:
    """Return up to `max_count` of the user's functions that led to the caller, innermost first."""
    return tuple(islice(user_frames(sys._getframe(1)), max_count))


def user_frames(frame: FrameType | None) -> Iterator[str]:
    """Yield the user's own functions on a stack, innermost first, as file:line:function."""
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            text = f"{code.co_filename[-1000:]}:{frame.f_lineno}:{code.co_qualname[-200:]}"
            # A file's name may hold bytes that are not text, which JSON cannot hold.
            yield text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
        frame = frame.f_back


def _innermost(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
