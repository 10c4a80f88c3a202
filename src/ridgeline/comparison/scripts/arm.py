"""One script, run again and again, each time in a fresh process."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from ridgeline.comparison.options import Options
from ridgeline.comparison.scripts.record import ScriptRecord, ScriptRun
from ridgeline.errors import TargetError
from ridgeline.measure.clock import Reading
from ridgeline.measure.rounds import Block
from ridgeline.statistics.steady import steady_start

LEAST_STEPS = 8
"""Fewer intervals cannot show where warming up ends."""
DEFAULT_TIMEOUT_S = 1800.0
_LINES_SHOWN = 6
_LOOK_EVERY_S = 0.005

By = Literal["step", "run"]


class ScriptArm:
    """Runs of one script, and what they left behind."""

    def __init__(self, script: str, options: Options, folder: Path) -> None:
        self.script = script
        self.runs: list[ScriptRun] = []
        self._options = options
        self._folder = folder
        folder.mkdir()

    def run(self) -> ScriptRun:
        """Once more, from start to end."""
        result = self._folder / "record.json"
        result.unlink(missing_ok=True)
        options = self._options
        command = [
            sys.executable, "-m", "ridgeline.comparison.scripts.child", str(result),
            str(options.seed), str(options.steps or 0), self.script, *options.arguments,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as said:
            began = time.perf_counter_ns()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
            try:
                status, usage = self._wait(process)
                wall_ns = time.perf_counter_ns() - began
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # workers it left behind
            if status != 0:
                said.seek(0)
                raise self._ended(status, said.read().decode(errors="replace"))
        run = ScriptRun(
            record=_read(result),
            wall_ns=wall_ns,
            cpu_ns=1e9 * (usage.ru_utime + usage.ru_stime),
            peak_rss_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        )
        self.runs.append(run)
        return run

    def block(self, by: By) -> Block:
        """One sample of a round."""
        return Block(reading(self.run(), by), 1)

    def _environment(self) -> dict[str, str]:
        # What one arm compiles must not be found ready by another.
        own = {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor")}
        device = self._options.device
        if device is not None:
            kind, _, index = device.partition(":")
            own["CUDA_VISIBLE_DEVICES"] = "" if kind == "cpu" else index or "0"
        return os.environ | own

    def _wait(self, process: "subprocess.Popen[bytes]") -> tuple[int, "resource.struct_rusage"]:
        """Exit status and what it used; a script that does not end is killed with its group."""
        limit = self._options.timeout_s or DEFAULT_TIMEOUT_S
        deadline = time.monotonic() + limit
        while True:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                process.returncode = code
                return code, usage
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                raise TargetError(
                    f"{self.script} has not ended in {limit:g} s",
                    "allow it more with --timeout, or end it early with --steps N",
                )
            time.sleep(_LOOK_EVERY_S)

    def _ended(self, code: int, said: str) -> TargetError:
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        lines = [line for line in said.splitlines() if line.strip()]
        hint = "\n  ".join(["it said:", *lines[-_LINES_SHOWN:]]) if lines else ""
        return TargetError(f"{self.script} {how}", hint)


def has_steps(run: ScriptRun) -> bool:
    return len(run.record.step_ns) >= LEAST_STEPS


def reading(run: ScriptRun, by: By) -> Reading:
    """A run as one sample: its steady step, or all of it."""
    if by == "run":
        return Reading(total_ns=run.wall_ns, wall_ns=run.wall_ns, cpu_ns=run.cpu_ns)
    steps = run.record.step_ns
    start = steady_start(steps)
    start = len(steps) // 2 if start is None else start
    typical = median(steps[start:])
    cpu = run.record.step_cpu_ns[start:]
    return Reading(total_ns=typical, wall_ns=typical, cpu_ns=median(cpu) if cpu else 0.0)


def _read(path: Path) -> ScriptRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScriptRecord)
    except OSError:  # os._exit(0): it ended well, and told us nothing
        return ScriptRecord()
