"""The run a search begins with: the program as it is, recorded and concluded."""

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.errors import TargetError
from ridgeline.harness.trials import strays
from ridgeline.harness.trials.arm import IN_A_TRIAL, NO_INPUT
from ridgeline.harness.usercode.child_process import to_its_end
from ridgeline.optimization.ground_of import ground_of
from ridgeline.optimization.launcher import MODULE, behind, recorded
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory, restarted_name, run_name
from ridgeline.records.run_summary import RunSummary

DIAGNOSED = 60
"""Steps of the run that is diagnosed."""
LINGERS_S = 8.0
"""That it may take to end after the last of them."""


class Diagnosed(Struct, frozen=True, kw_only=True):
    directory: RunDirectory
    summary: RunSummary
    ground: Ground
    concluding_s: float = 0.0
    """How long reading the run took."""

    @property
    def findings(self) -> Sequence[Finding]:
        return self.summary.findings.findings


def diagnosed(target: Target, runs: Path, home: Path, *, again: bool, limit_s: float) -> Diagnosed:
    """By an earlier call where there was one: the run is kept like any other."""
    noted = home / "run"
    if not again and noted.is_file():
        directory = RunDirectory(runs / noted.read_text().strip())
        if directory.path.is_dir() and (known := _concluded(directory)) is not None:
            return known
    if target.kind == "module" and target.name == MODULE and behind(target) is None:
        raise TargetError(
            "torchrun was given no script that is there",
            "e.g. ridgeline optimize torchrun --nproc-per-node 2 train.py",
        )
    found = looked_at(target, runs, limit_s)
    home.mkdir(parents=True, exist_ok=True)
    noted.write_text(found.directory.path.name)
    return found


def looked_at(
    target: Target, runs: Path, limit_s: float, *, compiled: Path | None = None
) -> Diagnosed:
    """`compiled`: where what it would compile lies ready."""
    ready = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} if compiled is not None else {}
    directory = _run(target, runs, limit_s, ready)
    found = _concluded(directory)
    if found is None:
        summary, _ = concluded_case(directory)
        why = summary.verdict.sentence.removeprefix("unknown: ")
        raise TargetError(f"{target.name}: {why}", "see `ridgeline run`")
    return found


def _concluded(directory: RunDirectory) -> Diagnosed | None:
    began = time.monotonic()
    summary, case = concluded_case(directory)
    if case is None or not summary.step.median_ms:
        return None
    ground = ground_of(case, summary.findings.findings)
    return Diagnosed(
        directory=directory, summary=summary, ground=ground, concluding_s=time.monotonic() - began
    )


def _run(target: Target, runs: Path, limit_s: float, variables: Mapping[str, str]) -> RunDirectory:
    """Run the program in a directory made here, so that a run which another command makes in the
    same folder meanwhile is never taken for this one."""
    directory = RunDirectory.make(runs, run_name(target.kind, _program(target), datetime.now()))
    try:
        return _run_into(directory, target, limit_s, variables)
    finally:
        with contextlib.suppress(OSError):
            directory.path.rmdir()  # it is empty only if nothing could be recorded


def _run_into(
    directory: RunDirectory, target: Target, limit_s: float, variables: Mapping[str, str]
) -> RunDirectory:
    path = directory.path.absolute()
    ours = ["-q", "--run-dir", str(path), "--stop-after", str(DIAGNOSED), "--at-once"]
    mark = str(path)
    environment = os.environ | variables | {IN_A_TRIAL: mark}
    hung = Hung(directory)
    with strays.swept(IN_A_TRIAL, mark):
        ended = to_its_end(
            [sys.executable, *recorded(target, ours)], environment, limit_s, hung.look
        )
    name = "the code" if target.kind == "code" else target.name
    if ended.code is None:
        raise TargetError(
            f"the budget ended before {name} had taken {DIAGNOSED} steps: it ran for "
            f"{limit_s:.0f} s",
            "give it fewer data or a larger --budget",
        )
    made = hung.made()
    if not made or (ended.code and not hung.ended):
        why = f"ended with exit code {ended.code}" if ended.code else "could not be recorded"
        why = f"was killed by {ended.signal}" if ended.signal else why
        said = ended.said[-6:]
        why += ", and has no standard input here" * (NO_INPUT in said)
        raise TargetError(f"{name} {why}", "\n  ".join(["it said:", *said]) if said else "")
    return made[-1]


def _program(target: Target) -> str:
    """Return what the run is named after: the script behind a launcher, else the target itself."""
    place = behind(target)
    return target.name if place is None else Path(target.arguments[place]).stem


class Hung:
    """A program that goes on after it was told to stop: it waits for a thread of its own, or took
    the exception that was to end it for another."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._since = 0.0
        self.ended = False
        """By us."""

    def made(self) -> list[RunDirectory]:
        """Return the run and the runs of a launcher's further attempts, as far as they began."""
        path = self._directory.path
        attempts = itertools.count(1)
        again = (RunDirectory(path.with_name(restarted_name(path.name, n))) for n in attempts)
        begun = itertools.takewhile(lambda run: run.run_file.exists(), again)
        return [self._directory, *begun] if self._directory.run_file.exists() else []

    def look(self, pid: int) -> None:
        """While it runs."""
        if self.ended or not any(one.stopping_file.exists() for one in self.made()):
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since < LINGERS_S:
            return
        if any(capture.ended != "running" for one in self.made() for capture in one.captures()):
            return  # it waits until its record is written
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
