"""Scripts compared: each is run again and again, every time in a fresh process."""

import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.comparison.contenders import (
    Collected,
    Contender,
    Examined,
    Options,
    Peak,
    Say,
    Warmed,
    stand,
)
from ridgeline.comparison.functions import spent_s, without_broken
from ridgeline.comparison.preparation import CLOSING_S, Settling
from ridgeline.comparison.program_recorder import RecordPlan, run_recorded
from ridgeline.comparison.verdicts import assemble
from ridgeline.equality.scripts import ProgramRecord, compare_scripts
from ridgeline.errors import TargetError, UsageError
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.measure.clock import BudgetEnded, Reading
from ridgeline.measure.timing import Block, Rounds
from ridgeline.records.comparison import Comparison
from ridgeline.records.run import Target
from ridgeline.statistics.samples import pace, settled

MIN_STEP_INTERVALS = 8
"""Fewer intervals between steps cannot show where the warm-up ends."""
DEFAULT_TIMEOUT_S = 1800.0

By = Literal["step", "run"]


class ScriptRun(Struct, frozen=True, kw_only=True):
    """One run: what the script's process recorded, and what was measured from outside."""

    record: ProgramRecord
    wall_ns: float
    cpu_ns: float
    peak_rss_bytes: int


class ScriptRuns:
    """Runs one script, and keeps what each run left behind."""

    def __init__(self, script: str, options: Options, folder: Path) -> None:
        self.script = script
        self.runs: list[ScriptRun] = []
        self._options = options
        self._folder = folder
        folder.mkdir()

    def ask(self, method: str, **arguments: Any) -> Any:
        return getattr(self, method)(**arguments)

    def run(self) -> ScriptRun:
        """Run the script once more, from start to end."""
        options = self._options
        limit = options.timeout_s or DEFAULT_TIMEOUT_S
        left = math.inf if options.deadline is None else options.deadline.left_s()
        if left <= 0:
            raise BudgetEnded("run", self.script)
        ended, records = run_recorded(
            Target(kind="script", name=self.script, arguments=options.arguments),
            self._folder,
            RecordPlan(seed=options.seed, steps=True, max_steps=options.steps or 0),
            # Code that one variant compiled must not be found ready by another.
            compiled=self._folder / "inductor",
            limit_s=min(limit, left),
            device=options.device,
        )
        if ended.code is None and left < limit:
            raise BudgetEnded("run", self.script)
        if ended.code != 0:
            raise self._failed(ended, limit)
        run = ScriptRun(
            record=records[0] if records else ProgramRecord(),  # it may have no torch
            wall_ns=ended.wall_ns,
            cpu_ns=ended.cpu_ns,
            peak_rss_bytes=ended.peak_rss_bytes,
        )
        self.runs.append(run)
        return run

    def block(self, by: By) -> Block:
        """Take one sample of a round."""
        return Block(reading(self.run(), by), 1)

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
        hint = "\n  ".join(["it said:", *ended.last_lines]) if ended.last_lines else ""
        return TargetError(f"{self.script} {how}", hint)


def has_steps(run: ScriptRun) -> bool:
    return len(run.record.step_ns) >= MIN_STEP_INTERVALS


def reading(run: ScriptRun, by: By) -> Reading:
    """Return a run as one sample: its steady step, or the whole run."""
    if by == "run":
        return Reading(total_ns=run.wall_ns, wall_ns=run.wall_ns, cpu_ns=run.cpu_ns)
    steps = run.record.step_ns
    start = settled(steps)
    typical = pace(steps)
    cpu = run.record.step_cpu_ns[start:]
    plain = Reading(total_ns=typical, wall_ns=typical, cpu_ns=median(cpu) if cpu else 0.0)
    thread, sleeps = run.record.step_thread_ns[start:], run.record.step_sleeps[start:]
    if run.record.clock != "wall" or not thread or not sleeps:
        return plain
    return replace(plain, thread_ns=median(thread), sleeps=round(median(sleeps)))


def compare_script_files(scripts: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare scripts, the first one the baseline."""
    for script in scripts:
        if not Path(script).is_file():
            raise UsageError(f"there is no file {script}")
    return without_broken(scripts, lambda left: _compare(left, options, say))


def _compare(scripts: Sequence[str], options: Options, say: Say) -> Comparison:
    import torch

    from ridgeline.machine.surroundings import DisturbanceWatch

    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        began = perf_counter_ns()
        home = Path(folder)
        contenders = stand(scripts, lambda variant, name: ScriptRuns(name, options, home / variant))
        first = _first_runs(contenders, say)
        by, why = _unit(options, first)
        settling = _plan(options, contenders, by)
        watch = DisturbanceWatch(torch.device("cpu"))
        rounds = Rounds(options.seed, perf_counter_ns)
        stopped = rounds.run(
            [partial(contender.ask, "block", by=by) for contender in contenders],
            until=settling.looks.rounds,
            limit_ns=settling.limit_ns,
            decide=settling.decided,
            on_round=settling.reporter(say),
        )
        for contender in contenders:
            _describe(contender, by)
        if options.checked:
            _examine(contenders, options)
        return assemble(
            contenders,
            rounds,
            settling,
            options,
            stopped=stopped,
            surroundings=watch.surroundings(),
            mode="scripts",
            unit=by,
            spent_s=spent_s(options, began),
            notes=(why,),
        )


def _first_runs(contenders: Sequence[Contender], say: Say) -> list[ScriptRun]:
    """Run each script once before the rounds, which fills the caches of bytecode, files and
    kernels."""
    runs = []
    for contender in contenders:
        say(f"{contender.name}: first run")
        runs.append(contender.ask("run"))
    return runs


def _unit(options: Options, runs: Sequence[ScriptRun]) -> tuple[By, str]:
    if options.by == "run":
        return "run", "timed by the whole run, start-up included"
    if all(has_steps(run) for run in runs):
        return "step", "timed by the steady step, from one optimizer step to the next"
    fewest = min(run.record.steps for run in runs)
    seen = f"{fewest} optimizer steps in a run" if fewest else "no optimizer steps in a run"
    if options.by == "step" or options.steps:
        raise TargetError(
            f"{seen}: {MIN_STEP_INTERVALS + 1} are needed to time steps",
            "time whole runs with --by run, and leave --steps out",
        )
    return "run", f"{seen}: timed by the whole run, start-up included"


def _plan(options: Options, contenders: Sequence[Contender], by: By) -> Settling:
    round_ns = sum(contender.host.runs[0].wall_ns for contender in contenders)
    left_s = options.left_s(0.0)
    if options.deadline is not None:
        left_s -= CLOSING_S
    limit_ns = options.limit_ns(left_s, round_ns)
    names = [contender.name for contender in contenders]
    return Settling(options, names=names, round_ns=round_ns, limit_ns=limit_ns)


def _describe(contender: Contender, by: By) -> None:
    """Fill in what is known of a variant from its runs."""
    first, *later = contender.host.runs
    runs = later or [first]
    steady_ns = median(reading(run, by).total_ns for run in runs)
    # Start-up and compiling: all of the first run that was no steady step (or no steady run).
    excess_ns = first.wall_ns - (first.record.steps if by == "step" else 1) * steady_ns
    contender.collected = Collected(call_ns=(first.wall_ns,), changed=())
    contender.warmed = Warmed(
        block_calls=1,
        block_ns=first.wall_ns,
        steady=True,
        steady_ns=steady_ns,
        excess_ns=max(excess_ns, 0.0),
        calls=1,
        events_share=1.0,
        clock=first.record.clock if by == "step" else "wall",
    )
    on_device = max(run.record.device_peak_bytes for run in runs)
    if on_device:
        contender.peak = Peak(bytes=on_device, method="CUDA caching allocator, whole run")
    else:
        resident = round(median(run.peak_rss_bytes for run in runs))
        contender.peak = Peak(bytes=resident, method="largest resident size of the process")


def _examine(contenders: Sequence[Contender], options: Options) -> None:
    baseline, control = (contenders[at].host.runs for at in (0, 1))
    for contender in contenders[2:]:
        results = compare_scripts(
            baseline[0].record, control[0].record, contender.host.runs[0].record, options.rtol
        )
        contender.examined = Examined(results=results, guards=())
