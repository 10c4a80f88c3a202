"""One trial, seen from outside: the program started with a plan, waited for, and read back."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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

_LOOK_EVERY_S = 0.01
_LINES_SHOWN = 6


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
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            code, usage = _wait(process, began + timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # workers it left behind
        wall = time.perf_counter() - began
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    last = tuple(line[:300] for line in lines if line.strip())[-_LINES_SHOWN:]
    if code is None:
        return Outcome(failed=f"it had not ended after {timeout_s:g} s", said=last, wall_s=wall)
    if code != 0:
        return Outcome(failed=_ended(code, last), said=last, wall_s=wall)
    return _read(directory, plan, usage, last, wall)


def _wait(
    process: "subprocess.Popen[bytes]", deadline: float
) -> tuple[int | None, "resource.struct_rusage | None"]:
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.perf_counter() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, None
        time.sleep(_LOOK_EVERY_S)


def _ended(code: int, lines: tuple[str, ...]) -> str:
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    raised = next((line for line in reversed(lines) if "Error" in line or "Exception" in line), "")
    return raised or f"it ended with exit code {code}"


def _read(
    directory: Path,
    plan: Plan,
    usage: "resource.struct_rusage | None",
    said: tuple[str, ...],
    wall: float,
) -> Outcome:
    run = RunDirectory(directory)
    try:
        trial = msgspec.json.decode((directory / RESULT).read_bytes(), type=Trial)
        steps = run.steps()
    except (OSError, msgspec.DecodeError, RidgelineError) as error:
        why = (
            "it left no record" if isinstance(error, OSError) else f"its record is damaged: {error}"
        )
        return Outcome(failed=why, said=said, wall_s=wall)
    timed = [step for step in steps if step.index > plan.watch and not step.compile_ns]
    device = bool(timed) and all(step.device_ns for step in timed)
    scale = 1 if sys.platform == "darwin" else 1024
    resident = usage.ru_maxrss * scale if usage is not None else 0
    return Outcome(
        trial=replace(
            trial,
            step_ns=tuple((step.device_ns or 0) if device else step.dur_ns for step in timed),
            peak_bytes=trial.peak_bytes or resident,
            compile_s=sum(step.compile_ns for step in steps) / 1e9,
            ended="" if len(steps) >= plan.steps else f"the program ended after {len(steps)} steps",
        ),
        said=said,
        wall_s=wall,
    )
