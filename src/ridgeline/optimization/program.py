"""A program optimized: diagnosed first, then its changes tried."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnose.conclusion import concluded_case
from ridgeline.errors import TargetError
from ridgeline.optimization.attention import rewritten
from ridgeline.optimization.bench import ProgramBench
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.ground_of import ground_of
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.patching import write
from ridgeline.records.optimized import Optimized
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory

LEAST_STEPS, MOST_STEPS = 24, 60
"""Of a trial: eight watched, and enough to time."""
TRIAL_S = 3.0
"""Of timed steps: longer ones tell no more."""
WATCHED = 8
DIAGNOSED = 80


class Wishes(Struct, frozen=True, kw_only=True):
    budget_s: float = 600.0
    keep_exact: bool = False
    seed: int = 0


def optimize(target: Target, wishes: Wishes, say: Callable[[str], None]) -> Optimized:
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        home = Path(folder)
        say("looking at the program as it is")
        directory = _diagnosed(target, home)
        summary, case = concluded_case(directory)
        if case is None or not summary.step.median_ms:
            raise TargetError(f"{target.name}: {summary.verdict.sentence}", "see `ridgeline run`")
        ground = ground_of(case, summary.findings.findings)
        edits, why = rewritten(summary.findings.findings)
        bench = ProgramBench(
            target, home / "trials", budget_s=wishes.budget_s, watch=WATCHED,
            steps=_steps(summary.step.median_ms), trains=ground.trains, seed=wishes.seed,
            functions={"sdpa": edits},
        )  # fmt: skip
        tried = [
            replace(one, unable=why) if why and one.change.id == "sdpa" else one
            for one in candidates(ground, summary.findings.findings)
        ]
        ladder = Ladder(bench, tried, keep_exact=wishes.keep_exact, say=say)
        began = time.monotonic()
        found = ladder.climb(summary.command)
        written = None
        if found.total is not None and target.kind == "script":
            say("writing it into a copy of the source")
            written = write(target, found, bench)
        return replace(
            found, device=summary.device, trials=bench.taken, written=written,
            spent_s=time.monotonic() - began,
        )  # fmt: skip


def _steps(step_ms: float) -> int:
    return WATCHED + min(max(round(1e3 * TRIAL_S / step_ms), LEAST_STEPS - WATCHED), MOST_STEPS)


def _diagnosed(target: Target, home: Path) -> RunDirectory:
    typed = {"module": ["-m", target.name], "code": ["-c", target.name]}.get(
        target.kind, [target.name]
    )
    command = [sys.executable, "-m", "ridgeline", "run", "-q", "--runs-dir", str(home / "runs")]
    command += ["--stop-after", str(DIAGNOSED), "--", *typed, *target.arguments]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    made = sorted((home / "runs").glob("*"))
    if ended.returncode or not made:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        raise TargetError(
            f"{target.name} ended with exit code {ended.returncode}",
            "\n  ".join(["it said:", *lines[-6:]]),
        )
    return RunDirectory(made[-1])
