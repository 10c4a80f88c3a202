"""One script, run again and again, each time in a fresh process."""

import math
import os
import sys
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
from msgspec.structs import replace

from ridgeline.comparison.options import Options
from ridgeline.comparison.scripts.record import ScriptRecord, ScriptRun
from ridgeline.errors import TargetError
from ridgeline.harness.usercode.process import Ended, to_its_end
from ridgeline.measure.clock import Reading
from ridgeline.measure.deadline import BudgetEnded
from ridgeline.measure.rounds import Block
from ridgeline.statistics.pace import pace
from ridgeline.statistics.steady import settled

LEAST_STEPS = 8
"""Fewer intervals cannot show where warming up ends."""
DEFAULT_TIMEOUT_S = 1800.0

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
        limit = options.timeout_s or DEFAULT_TIMEOUT_S
        left = math.inf if options.deadline is None else options.deadline.left_s()
        if left <= 0:
            raise BudgetEnded("run", self.script)
        ended = to_its_end(command, self._environment(), min(limit, left))
        if ended.code is None and left < limit:
            raise BudgetEnded("run", self.script)
        if ended.code != 0:
            raise self._failed(ended, limit)
        run = ScriptRun(
            record=_read(result),
            wall_ns=ended.wall_ns,
            cpu_ns=ended.cpu_ns,
            peak_rss_bytes=ended.peak_rss_bytes,
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

    def _failed(self, ended: Ended, limit: float) -> TargetError:
        if ended.code is None:
            return TargetError(
                f"{self.script} has not ended in {limit:g} s",
                "allow it more with --timeout, or end it early with --steps N",
            )
        how = (
            f"was killed by {ended.signal}"
            if ended.signal
            else f"ended with exit code {ended.code}"
        )
        hint = "\n  ".join(["it said:", *ended.said]) if ended.said else ""
        return TargetError(f"{self.script} {how}", hint)


def has_steps(run: ScriptRun) -> bool:
    return len(run.record.step_ns) >= LEAST_STEPS


def reading(run: ScriptRun, by: By) -> Reading:
    """A run as one sample: its steady step, or all of it."""
    if by == "run":
        return Reading(total_ns=run.wall_ns, wall_ns=run.wall_ns, cpu_ns=run.cpu_ns)
    steps = run.record.step_ns
    start = settled(steps)
    typical = pace(steps)
    cpu = run.record.step_cpu_ns[start:]
    told = Reading(total_ns=typical, wall_ns=typical, cpu_ns=median(cpu) if cpu else 0.0)
    thread, sleeps = run.record.step_thread_ns[start:], run.record.step_sleeps[start:]
    if run.record.clock != "wall" or not thread or not sleeps:
        return told
    return replace(told, thread_ns=median(thread), sleeps=round(median(sleeps)))


def _read(path: Path) -> ScriptRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScriptRecord)
    except OSError:  # os._exit(0): it ended well, and told us nothing
        return ScriptRecord()
