"""From rounds to a verdict on each candidate: the record that everything is printed from."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline.comparison.arms import Standing
from ridgeline.comparison.options import Options
from ridgeline.comparison.payback import payback
from ridgeline.comparison.prepare import goal_of
from ridgeline.comparison.settle import Settling, events_agree, kept
from ridgeline.comparison.validity import floor_of_candidate, validity
from ridgeline.errors import RidgelineError
from ridgeline.measure.rounds import Round, Stopped
from ridgeline.records.comparison import (
    Arm,
    Candidate,
    Comparison,
    Goal,
    Guard,
    Results,
    Surroundings,
)
from ridgeline.records.facts import Verdict
from ridgeline.statistics.outliers import classify
from ridgeline.statistics.rounds import Analysis
from ridgeline.statistics.summary import summarize

UNCHECKED = Results(
    status="not compared", method="none", strength="none", detail="results were not compared"
)


class Trial(Struct, kw_only=True):
    """All that was measured."""

    standings: Sequence[Standing]
    rounds: Sequence[Round]
    rounds_s: float
    """What the rounds alone took."""
    settling: Settling
    stopped: Stopped
    surroundings: Surroundings
    mode: Literal["one process", "isolated processes", "scripts"]
    unit: Literal["call", "run", "step"]
    options: Options
    spent_s: float
    notes: tuple[str, ...] = ()


def assemble(trial: Trial) -> Comparison:
    if not trial.rounds:
        raise RidgelineError(
            "UNDECIDED: the budget ended before the first round was over"
            if trial.stopped == "budget"
            else "stopped before the first round was over",
            "allow more time with --budget",
        )
    rounds, discarded, heat = kept(trial.rounds)
    options, standings = trial.options, trial.standings
    found = trial.settling.analysis(rounds, trial.stopped)
    samples = trial.settling.per_call(rounds)
    arms = [
        _arm(standing, samples[:, at].tolist(), rounds, at, discarded, trial.settling)
        for at, standing in enumerate(standings)
    ]
    goal = goal_of(standings, options)
    candidates = [
        _candidate(trial, found, arms, goal, number) for number in range(len(standings) - 2)
    ]
    return Comparison(
        baseline=arms[0],
        control=found.control,
        control_arm=arms[1],
        candidates=tuple(candidates),
        unit=trial.unit,
        mode=trial.mode,
        cache="cold" if options.cold else "warm",
        goal=goal,
        threshold=options.threshold,
        alpha=options.alpha,
        looks=trial.settling.looks.rounds,
        stopped=trial.stopped,
        rounds=len(rounds),
        budget_s=options.budget,
        spent_s=trial.spent_s,
        rounds_s=trial.rounds_s,
        seed=options.seed,
        drift=found.drift,
        order=found.order,
        surroundings=trial.surroundings,
        notes=(*trial.notes, heat) if heat else trial.notes,
    )


def _arm(
    standing: Standing,
    samples: list[float],
    rounds: Sequence[Round],
    at: int,
    discarded: int,
    settling: Settling,
) -> Arm:
    blocks = [r.blocks[at] for r in rounds]
    warmed, opened, collected = standing.warmed, standing.opened, standing.collected
    clock = warmed.clock if warmed else "wall"
    if clock != "wall" and not settling.by_events:
        clock = "wall, device-wide wait"
    return Arm(
        name=standing.name,
        samples_ns=tuple(samples),
        summary=summarize(samples),
        outliers=classify(samples),
        block_calls=blocks[0].calls,
        cpu_median_ns=median(b.reading.cpu_ns / b.calls for b in blocks),
        clock=clock,
        first_call_ns=collected.call_ns[0] if collected and collected.call_ns else None,
        warmup_ns=warmed.excess_ns if warmed else None,
        warmup_calls=warmed.calls if warmed else 0,
        steady=warmed.steady if warmed else True,
        recompiles=standing.recompiles,
        peak_bytes=standing.peak.bytes if standing.peak else None,
        peak_method=standing.peak.method if standing.peak else "",
        items=opened.items if opened else None,
        discarded=discarded,
    )


def _candidate(
    trial: Trial, found: Analysis, arms: Sequence[Arm], goal: Goal, number: int
) -> Candidate:
    standing, base = trial.standings[2 + number], trial.standings[0]
    baseline, arm = arms[0], arms[2 + number]
    estimate = found.estimates[number]
    second = found.processor_estimates[number] if found.processor_estimates else None
    deciding = second if second and found.decided_by[number] == "processor_time" else estimate
    results = standing.examined.results if standing.examined else UNCHECKED
    guards = standing.examined.guards if standing.examined else ()
    floor = floor_of_candidate(base.floor, standing.floor)
    guards += tuple(g for g in (_streams(standing), floor) if g is not None)
    verdict, why = validity(found.verdicts[number], found.whys[number], results, guards)
    memory = _ratio(baseline.peak_bytes, arm.peak_bytes)
    by_item = goal == "throughput" and bool(baseline.items and arm.items)
    pays_after, pays = payback(base.warmed, standing.warmed, verdict, trial.unit)
    return Candidate(
        arm=arm,
        verdict=verdict,
        why=why,
        estimate=estimate,
        results=results,
        guards=guards,
        cpu_ratio=_ratio(baseline.cpu_median_ns, arm.cpu_median_ns),
        memory_ratio=memory,
        decided_by="" if verdict == "INVALID" else found.decided_by[number],
        processor_estimate=second,
        throughput_ratio=deciding.ratio if by_item else None,
        pays_after=pays_after,
        pays=pays,
        goal_met=_goal_met(goal, verdict, memory, trial.options.threshold),
    )


def _streams(standing: Standing) -> Guard | None:
    warmed = standing.warmed
    if warmed is None or warmed.clock == "wall":
        return None
    if events_agree([warmed.events_share]):
        return Guard(name="work on another stream", outcome="passed")
    return Guard(
        name="work on another stream",
        outcome="warned",
        detail=f"device events saw {warmed.events_share:.0%} of the time until the device was "
        "idle: timed by the wall clock and a device-wide wait instead",
    )


def _goal_met(goal: Goal, verdict: Verdict, memory: float | None, threshold: float) -> bool | None:
    if verdict == "INVALID":
        return False
    if goal == "memory":
        return None if memory is None else memory > 1 + threshold
    return {"FASTER": True, "SLOWER": False, "SAME": False}.get(verdict)


def _ratio(baseline: float | None, candidate: float | None) -> float | None:
    if not baseline or not candidate:
        return None
    ratio = baseline / candidate
    return ratio if math.isfinite(ratio) else None
