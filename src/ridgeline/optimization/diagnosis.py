"""The run a search begins with: the program as it is, recorded and concluded."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ridgeline.diagnose.conclusion import concluded_case
from ridgeline.errors import TargetError
from ridgeline.optimization.ground_of import ground_of
from ridgeline.optimization.launcher import MODULE, behind, recorded
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from ridgeline.trials import strays
from ridgeline.trials.arm import IN_A_TRIAL, NO_INPUT
from ridgeline.usercode.process import to_its_end

DIAGNOSED = 60
"""Steps of the run that is diagnosed."""
LINGERS_S = 8.0
"""That it may take to end after the last of them."""


class Diagnosed(Struct, frozen=True, kw_only=True):
    directory: RunDirectory
    summary: RunSummary
    ground: Ground

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
    summary, case = concluded_case(directory)
    if case is None or not summary.step.median_ms:
        return None
    ground = ground_of(case, summary.findings.findings)
    return Diagnosed(directory=directory, summary=summary, ground=ground)


def _run(target: Target, runs: Path, limit_s: float, variables: Mapping[str, str]) -> RunDirectory:
    before = set(runs.glob("*"))
    ours = ["-q", "--runs-dir", str(runs), "--stop-after", str(DIAGNOSED), "--at-once"]
    mark = str(runs.absolute() / f"look-{os.getpid()}")
    environment = os.environ | variables | {IN_A_TRIAL: mark}
    hung = Hung(runs, before)
    with strays.swept(IN_A_TRIAL, mark):
        ended = to_its_end(
            [sys.executable, *recorded(target, ours)], environment, limit_s, hung.look
        )
    name = "the code" if target.kind == "code" else target.name
    if ended.code is None:
        raise TargetError(
            f"{name} had not taken {DIAGNOSED} steps after {limit_s:.0f} s",
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


class Hung:
    """A program that goes on after it was told to stop: it waits for a thread of its own, or took
    the exception that was to end it for another."""

    def __init__(self, runs: Path, before: Collection[Path]) -> None:
        self._runs = runs
        self._before = before
        self._since = 0.0
        self.ended = False
        """By us."""

    def made(self) -> list[RunDirectory]:
        return [RunDirectory(path) for path in sorted(set(self._runs.glob("*")) - {*self._before})]

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
