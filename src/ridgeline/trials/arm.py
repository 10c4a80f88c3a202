"""One trial, seen from outside: the program started with a plan, waited for, and read back."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.capture import launch
from ridgeline.errors import RidgelineError
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Plan, Trial
from ridgeline.trials.begin import PLAN, RESULT
from ridgeline.usercode.process import Ended, to_its_end


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a trial: a record, or why there is none."""

    trial: Trial | None = None
    failed: str = ""
    said: tuple[str, ...] = ()
    """The last lines it wrote."""
    wall_s: float = 0.0

    @property
    def out_of_memory(self) -> bool:
        return "OutOfMemoryError" in self.failed or "out of memory" in self.failed


def run(
    target: Target,
    plan: Plan,
    home: Path,
    *,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
) -> Outcome:
    """`home` is made, and keeps what the trial compiled: a second one there starts faster."""
    home.mkdir(parents=True, exist_ok=True)
    directory = home / "trial"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / PLAN).write_bytes(msgspec.json.encode(plan))
    environment = launch.environment(directory, 0, "ridgeline.trials.begin")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(home / "inductor")
    environment.update(variables or {})
    command = launch.command(target.kind, target.name, target.arguments)
    ended = to_its_end(command, environment, timeout_s)
    if ended.code == 0:
        return _read(directory, plan, ended)
    return Outcome(failed=_why(ended, timeout_s), said=ended.said, wall_s=ended.wall_ns / 1e9)


def _why(ended: Ended, timeout_s: float) -> str:
    if ended.code is None:
        return f"it had not ended after {timeout_s:g} s"
    if ended.signal:
        return f"it was killed by {ended.signal}"
    raised = [line for line in ended.said if "Error" in line or "Exception" in line]
    return raised[-1][:300] if raised else f"it ended with exit code {ended.code}"


def _read(directory: Path, plan: Plan, ended: Ended) -> Outcome:
    wall = ended.wall_ns / 1e9
    try:
        trial = msgspec.json.decode((directory / RESULT).read_bytes(), type=Trial)
        steps = RunDirectory(directory).steps()
    except (OSError, msgspec.DecodeError, RidgelineError) as error:
        lost = isinstance(error, OSError)
        why = "it left no record" if lost else f"its record is damaged: {error}"
        return Outcome(failed=why, said=ended.said, wall_s=wall)
    timed = [step for step in steps if step.index > plan.watch and not step.compile_ns]
    device = bool(timed) and all(step.device_ns for step in timed)
    return Outcome(
        trial=replace(
            trial,
            step_ns=tuple((step.device_ns or 0) if device else step.dur_ns for step in timed),
            peak_bytes=trial.peak_bytes or ended.peak_rss_bytes,
            compile_s=sum(step.compile_ns for step in steps) / 1e9,
            ended="" if len(steps) >= plan.steps else f"the program ended after {len(steps)} steps",
        ),
        said=ended.said,
        wall_s=wall,
    )
