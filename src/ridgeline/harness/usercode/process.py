"""A program of the user's in a process and a session of its own, waited for to its end; whatever it
leaves running is ended with it."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

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
