"""Turns rounds into a verdict on each candidate: the record that everything is printed from."""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from ridgeline.comparison.contenders import Contender, Options, Warmed
from ridgeline.comparison.preparation import Settling, events_agree, goal_of, kept
from ridgeline.errors import RidgelineError
from ridgeline.measure.timing import Round, Rounds, Stopped
from ridgeline.records.comparison import (
    Candidate,
    Comparison,
    Goal,
    Guard,
    PairFolder,
    Results,
    Skipped,
    Surroundings,
    Variant,
    VerdictCode,
)
from ridgeline.records.facts import Reason, Verdict, because
from ridgeline.statistics.analysis import Analysis
from ridgeline.statistics.samples import classify, summarize

UNCHECKED = Results(
    status="not compared", method="none", strength="none", detail="results were not compared"
)


def assemble(
    contenders: Sequence[Contender],
    rounds: Rounds,
    settling: Settling,
    options: Options,
    *,
    stopped: Stopped,
    surroundings: Surroundings,
    mode: Literal["one process", "isolated processes", "scripts"],
    unit: Literal["call", "run", "step"],
    spent_s: float,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Make the record of a comparison whose rounds are over."""
    if not rounds.taken:
        raise RidgelineError(
            "UNDECIDED: the budget ended before the first round was over"
            if stopped == "budget"
            else "stopped before the first round was over",
            "allow more time with --budget",
        )
    usable, discarded, heat = kept(rounds.taken)
    found = settling.analysis(usable, stopped)
    samples = settling.per_call(usable)
    variants = [
        _variant(contender, samples[:, i].tolist(), usable, i, discarded, settling)
        for i, contender in enumerate(contenders)
    ]
    goal = goal_of(contenders, options)
    candidates = (
        _candidate(contenders, variants, found, i, goal, unit, options.threshold)
        for i in range(len(contenders) - 2)
    )
    return Comparison(
        baseline=variants[0],
        control=found.control,
        control_variant=variants[1],
        candidates=tuple(candidates),
        unit=unit,
        mode=mode,
        cache="cold" if options.cold else "warm",
        goal=goal,
        threshold=options.threshold,
        alpha=options.alpha,
        looks=settling.looks.rounds,
        stopped=stopped,
        rounds=len(usable),
        budget_s=options.budget,
        spent_s=spent_s,
        rounds_s=rounds.elapsed_ns / 1e9,
        seed=options.seed,
        drift=found.drift,
        order=found.order,
        surroundings=surroundings,
        notes=(*notes, heat) if heat else notes,
    )


def _variant(
    contender: Contender,
    samples: list[float],
    rounds: Sequence[Round],
    place: int,
    discarded: int,
    settling: Settling,
) -> Variant:
    blocks = [r.blocks[place] for r in rounds]
    warmed, opened, collected = contender.warmed, contender.opened, contender.collected
    clock = warmed.clock if warmed else "wall"
    if clock != "wall" and not settling.by_events:
        clock = "wall, device-wide wait"
    return Variant(
        name=contender.name,
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
        recompiles=contender.recompiles,
        peak_bytes=contender.peak.bytes if contender.peak else None,
        peak_method=contender.peak.method if contender.peak else "",
        items=opened.items if opened else None,
        discarded=discarded,
    )


def _candidate(
    contenders: Sequence[Contender],
    variants: Sequence[Variant],
    found: Analysis,
    number: int,
    goal: Goal,
    unit: str,
    threshold: float,
) -> Candidate:
    contender, base = contenders[2 + number], contenders[0]
    baseline, variant = variants[0], variants[2 + number]
    estimate = found.estimates[number]
    second = found.processor_estimates[number] if found.processor_estimates else None
    deciding = second if second and found.decided_by[number] == "processor_time" else estimate
    results = contender.examined.results if contender.examined else UNCHECKED
    guards = contender.examined.guards if contender.examined else ()
    floor = floor_of_candidate(base.floor, contender.floor)
    guards += tuple(g for g in (_streams(contender), floor) if g is not None)
    verdict, reason = validity(found.verdicts[number], found.reasons[number], results, guards)
    memory = _ratio(baseline.peak_bytes, variant.peak_bytes)
    by_item = goal == "throughput" and bool(baseline.items and variant.items)
    pays_after, pays = payback(base.warmed, contender.warmed, verdict, unit)
    return Candidate(
        variant=variant,
        verdict=verdict,
        reason=reason,
        estimate=estimate,
        results=results,
        guards=guards,
        cpu_ratio=_ratio(baseline.cpu_median_ns, variant.cpu_median_ns),
        memory_ratio=memory,
        decided_by="" if verdict == "INVALID" else found.decided_by[number],
        processor_estimate=second,
        throughput_ratio=deciding.ratio if by_item else None,
        pays_after=pays_after,
        pays=pays,
        goal_met=_goal_met(goal, verdict, memory, threshold),
    )


def _streams(contender: Contender) -> Guard | None:
    warmed = contender.warmed
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


def validity(
    verdict: Verdict, reason: Reason, results: Results, guards: Sequence[Guard]
) -> tuple[Verdict, Reason]:
    """Return the verdict and its reason, or INVALID and what forbids a verdict."""
    if results.status == "different":
        return "INVALID", because(VerdictCode.RESULTS_DIFFER, detail=results.detail)
    failed = next((guard for guard in guards if guard.outcome == "failed"), None)
    if failed is not None:
        detail = failed.detail or "it failed"
        return "INVALID", because(VerdictCode.GUARD_FAILED, guard=failed.name, detail=detail)
    return verdict, reason


def floor_of_candidate(baseline: Guard | None, candidate: Guard | None) -> Guard | None:
    """Return the candidate's check against its roofline floor, given the baseline's. A baseline
    that is itself faster than its floor shows that the ceiling is too low, so that the ceiling says
    nothing about the candidate."""
    if baseline is None or candidate is None:
        return candidate
    if baseline.outcome != "failed" or candidate.outcome != "failed":
        return candidate
    return Guard(
        name=candidate.name,
        outcome="not looked for",
        detail="the ceiling is too low: the baseline is faster than it as well",
    )


MIN_COSTLY_START_NS = 50e6
"""A start that costs less than this more than the baseline's is chance, not compilation."""


def payback(
    baseline: Warmed | None, candidate: Warmed | None, verdict: Verdict, unit: str
) -> tuple[int | None, str]:
    """Return after how many calls the candidate has overtaken the baseline, as a number and in
    words. The number is None if it never does, or is not known to be faster."""
    if baseline is None or candidate is None:
        return None, ""
    extra_ns = candidate.excess_ns - baseline.excess_ns
    gain_ns = baseline.steady_ns - candidate.steady_ns
    if extra_ns < max(MIN_COSTLY_START_NS, 5 * candidate.steady_ns):
        return (0, "at once") if verdict == "FASTER" else (None, "")
    if verdict == "UNDECIDED":
        return None, "not known"
    if verdict != "FASTER" or gain_ns <= 0:
        return None, "never"
    calls = math.ceil(extra_ns / gain_ns)
    return calls, f"after {calls:,} {unit}{'' if calls == 1 else 's'}"


GATE_FAILED, NOT_MEASURED = 3, 4


def failures(found: Comparison | PairFolder, conditions: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each candidate that trips the gate. An INVALID one trips any gate."""
    if not conditions:
        return ()
    return tuple(
        f"{candidate.variant.name} is {candidate.verdict}"
        for comparison in _comparisons(found)
        for candidate in comparison.candidates
        if _trips(candidate, conditions, comparison.goal)
    )


def exit_code(found: Comparison | PairFolder, conditions: Sequence[str]) -> int:
    """Return 3 if the gate failed, 4 if something could not be measured or is not valid, else 0."""
    if failures(found, conditions):
        return GATE_FAILED
    if any(row.status == "BROKEN" for row in _unmeasured(found)):
        return NOT_MEASURED
    candidates = list(_candidates(found))
    if not candidates or any(c.verdict == "INVALID" for c in candidates):
        return NOT_MEASURED
    return 0


def _trips(candidate: Candidate, conditions: Sequence[str], goal: Goal) -> bool:
    verdict = candidate.verdict
    if goal == "memory" and candidate.goal_met:
        return False  # it reached its goal; the price is printed
    return (
        verdict == "INVALID"
        or ("slower" in conditions and verdict == "SLOWER")
        or ("undecided" in conditions and verdict == "UNDECIDED")
        or ("not-faster" in conditions and not _proven(candidate))
    )


def _proven(candidate: Candidate) -> bool:
    """Return whether a candidate is faster and its results were compared."""
    return candidate.verdict == "FASTER" and candidate.results.ok


def _comparisons(found: Comparison | PairFolder) -> Iterable[Comparison]:
    if isinstance(found, Comparison):
        return (found,)
    return (row.comparison for row in found.pairs if not isinstance(row, Skipped))


def _candidates(found: Comparison | PairFolder) -> Iterable[Candidate]:
    return (c for comparison in _comparisons(found) for c in comparison.candidates)


def _unmeasured(found: Comparison | PairFolder) -> Iterable[Skipped]:
    for comparison in _comparisons(found):
        yield from comparison.broken
    if isinstance(found, PairFolder):
        yield from (row for row in found.pairs if isinstance(row, Skipped))
