"""Kineto's own words, held back: it writes two lines to the program's stderr for each trace.

Its level of severity is a variable of the library, set while we start, stop or export. Turning
stderr itself away would lose what other threads of the program write in that time.
"""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_VARIABLE = "KINETO_LOG_LEVEL"
_SILENT = 100
_AFTER_INIT = 4
"""What torch itself sets when Kineto is first used."""


@contextlib.contextmanager
def held_back(torch: Any) -> Any:
    level = _level(torch)
    if level is None or _VARIABLE in os.environ:  # whoever set it wants to read it
        yield
        return
    before = level.value
    libc = ctypes.CDLL(None)
    # The first use reads this variable; os.environ, which the program sees, is left alone.
    libc.setenv(_VARIABLE.encode(), str(_SILENT).encode(), 1)
    level.value = _SILENT
    try:
        yield
    finally:
        libc.unsetenv(_VARIABLE.encode())
        level.value = before or _AFTER_INIT


def _level(torch: Any) -> Any:
    """None where this torch keeps it elsewhere: then the two lines are seen."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.c_int.in_dll(library, _LEVEL)
    except (OSError, ValueError):
        return None
