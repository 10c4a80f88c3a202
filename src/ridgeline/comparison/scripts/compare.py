"""Whole scripts compared: alternating child processes, one run a sample."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from ridgeline.comparison.arms import Standing, stand
from ridgeline.comparison.assemble import Trial, assemble
from ridgeline.comparison.functions import without_broken
from ridgeline.comparison.hosting.answers import Collected, Examined, Peak, Warmed
from ridgeline.comparison.options import Options, Say
from ridgeline.comparison.prepare import CLOSING_S
from ridgeline.comparison.scripts.arm import LEAST_STEPS, By, ScriptArm, has_steps, reading
from ridgeline.comparison.scripts.record import ScriptRun
from ridgeline.comparison.scripts.results import compare_scripts
from ridgeline.comparison.settle import Settling
from ridgeline.comparison.together import spent_s
from ridgeline.errors import TargetError, UsageError
from ridgeline.measure.rounds import Block, Rounds
from ridgeline.records.comparison import Comparison


def compare_script_files(scripts: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare scripts, the first one the baseline."""
    for script in scripts:
        if not Path(script).is_file():
            raise UsageError(f"there is no file {script}")
    return without_broken(scripts, lambda left: _compare(left, options, say))


def _compare(scripts: Sequence[str], options: Options, say: Say) -> Comparison:
    from ridgeline.machine.surroundings import Watch

    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        began = perf_counter_ns()
        home = Path(folder)
        standings = stand(scripts, lambda arm, name: ScriptArm(name, options, home / arm))
        first = _first_runs(standings, say)
        by, why = _unit(options, first)
        settling = _plan(options, standings, by)
        watch = Watch(_cpu())
        rounds = Rounds(options.seed, perf_counter_ns)
        stopped = rounds.run(
            [_shot(standing, by) for standing in standings],
            until=settling.looks.rounds,
            limit_ns=settling.limit_ns,
            decide=settling.decided,
            on_round=settling.reporter(say),
        )
        for standing in standings:
            _describe(standing, by)
        if options.checked:
            _examine(standings, options)
        return assemble(
            Trial(
                standings=standings,
                rounds=rounds.taken,
                rounds_s=rounds.elapsed_ns / 1e9,
                settling=settling,
                stopped=stopped,
                surroundings=watch.surroundings(),
                mode="scripts",
                unit=by,
                options=options,
                spent_s=spent_s(options, began),
                notes=(why,),
            )
        )


def _first_runs(standings: Sequence[Standing], say: Say) -> list[ScriptRun]:
    """One run of each before the rounds: bytecode, file caches and compiled kernels."""
    found = []
    for standing in standings:
        say(f"{standing.name}: first run")
        found.append(standing.ask("run"))
    return found


def _unit(options: Options, runs: Sequence[ScriptRun]) -> tuple[By, str]:
    if options.by == "run":
        return "run", "timed by the whole run, start-up included"
    if all(has_steps(run) for run in runs):
        return "step", "timed by the steady step, from one optimizer step to the next"
    fewest = min(run.record.steps for run in runs)
    seen = f"{fewest} optimizer steps in a run" if fewest else "no optimizer steps in a run"
    if options.by == "step" or options.steps:
        raise TargetError(
            f"{seen}: {LEAST_STEPS + 1} are needed to time steps",
            "time whole runs with --by run, and leave --steps out",
        )
    return "run", f"{seen}: timed by the whole run, start-up included"


def _plan(options: Options, standings: Sequence[Standing], by: By) -> Settling:
    round_ns = sum(standing.host.runs[0].wall_ns for standing in standings)
    left_s = options.left_s(0.0)
    if options.deadline is not None:
        left_s -= CLOSING_S
    limit_ns = options.limit_ns(left_s, round_ns)
    names = [standing.name for standing in standings]
    return Settling(options, names=names, round_ns=round_ns, limit_ns=limit_ns)


def _shot(standing: Standing, by: By) -> Any:
    def shot() -> Block:
        block: Block = standing.ask("block", by=by)
        return block

    return shot


def _describe(standing: Standing, by: By) -> None:
    """The runs of an arm in the words every arm is described with."""
    first, *later = standing.host.runs
    runs = later or [first]
    steady_ns = median(reading(run, by).total_ns for run in runs)
    # Start-up and compiling: all of the first run that was no steady step (or no steady run).
    excess_ns = first.wall_ns - (first.record.steps if by == "step" else 1) * steady_ns
    standing.collected = Collected(call_ns=(first.wall_ns,), changed=())
    standing.warmed = Warmed(
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
        standing.peak = Peak(bytes=on_device, method="CUDA caching allocator, whole run")
    else:
        resident = round(median(run.peak_rss_bytes for run in runs))
        standing.peak = Peak(bytes=resident, method="largest resident size of the process")


def _examine(standings: Sequence[Standing], options: Options) -> None:
    baseline, control = (standings[at].host.runs for at in (0, 1))
    for standing in standings[2:]:
        results = compare_scripts(
            baseline[0].record, control[0].record, standing.host.runs[0].record, options.rtol
        )
        standing.examined = Examined(results=results, guards=())


def _cpu() -> Any:
    import torch

    return torch.device("cpu")
