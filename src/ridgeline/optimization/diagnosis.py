"""The run a search begins with: the program as it is, recorded and concluded."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
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

DIAGNOSED = 60
"""Steps of the run that is diagnosed."""


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
    ours = ["-q", "--runs-dir", str(runs), "--stop-after", str(DIAGNOSED)]
    code, said = _ended([sys.executable, *recorded(target, ours)], limit_s, variables)
    name = "the code" if target.kind == "code" else target.name
    if code is None:
        raise TargetError(
            f"{name} had not taken {DIAGNOSED} steps after {limit_s:.0f} s",
            "give it fewer data or a larger --budget",
        )
    made = sorted(set(runs.glob("*")) - before)
    if code or not made:
        why = f"ended with exit code {code}" if code else "could not be recorded"
        raise TargetError(f"{name} {why}", "\n  ".join(["it said:", *said[-6:]]) if said else "")
    return RunDirectory(made[-1])


def _ended(
    command: list[str], limit_s: float, variables: Mapping[str, str]
) -> tuple[int | None, list[str]]:
    """Its exit code, None where it took too long, and what it wrote. Whoever keeps its streams open
    is waited for: the run is written by a watcher that outlives the program."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True, env=os.environ | variables,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, []
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, [line for line in said.splitlines() if line.strip()]
