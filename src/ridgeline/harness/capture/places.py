"""The user's own line behind a call: the innermost frame that is in no library."""

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
_PACKAGED = ("site-packages", "dist-packages")
_known: dict[str, bool] = {}


def own(file: str) -> bool:
    """Whether a file is the user's: in no library, and not ours."""
    found = _known.get(file)
    if found is None:
        path = os.path.realpath(file)
        library = path.startswith((*_LIBRARIES, _OURS))
        packaged = (
            f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
        )
        found = not (
            library or packaged or (file.startswith("<") and not file.startswith("<ipython"))
        )
        if len(_known) < 10_000:
            _known[file] = found
    return found


def here() -> str:
    """file:line, or "" where no frame is the user's."""
    return _innermost(sys._getframe(1))


def function_here() -> str:
    """Return file:line:function of the innermost frame of the user's, or "" if there is none."""
    return next(own_frames(sys._getframe(1)), "")


def frames_here(most: int) -> tuple[str, ...]:
    """Return up to `most` of the user's own functions that led here, innermost first."""
    return tuple(islice(own_frames(sys._getframe(1)), most))


def own_frames(frame: FrameType | None) -> Iterator[str]:
    """Yield the user's own functions on a stack, innermost first, as file:line:function."""
    while frame is not None:
        code = frame.f_code
        if own(code.co_filename):
            text = f"{code.co_filename[-1000:]}:{frame.f_lineno}:{code.co_qualname[-200:]}"
            # A file's name may hold bytes that are not text, which JSON cannot hold.
            yield text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
        frame = frame.f_back


def there(thread: int | None) -> str:
    """The same, of another thread."""
    return _innermost(sys._current_frames().get(thread)) if thread is not None else ""


def _innermost(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if own(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
