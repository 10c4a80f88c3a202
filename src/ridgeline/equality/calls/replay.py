"""Answers that were remembered: by a workload that ignores its inputs, or that keeps results by
their content. Timing the same call over and over would time the remembering."""

from collections.abc import Sequence

import numpy as np

from ridgeline.equality.calls.error import same_outputs
from ridgeline.equality.calls.observed import Evidence, Fresh
from ridgeline.equality.calls.outputs import Outputs
from ridgeline.equality.calls.pairing import fresh_named
from ridgeline.records.comparison import Guard

NAME = "cached replay"
LESS_ON_REPEAT = 0.5
"""On content seen before a workload does the work it does on other content, or it remembers."""
SLOWER_FRESH, SLOWER_THAN_BASELINE = 2.0, 1.5
_HOWS = ("inputs rolled", "inputs scaled", "all rolled", "all scaled")


def cached_replay(baseline: Evidence, candidate: Evidence) -> Guard:
    """Three witnesses: what comes out on other content, the work done on content seen before, and
    the time it takes."""
    if not any(leaf.values is not None for leaf in candidate.outputs[0].leaves):
        why = "the candidate returns nothing that could be compared"
        return Guard(name=NAME, outcome="not looked for", detail=why)
    fixed = _fixed_answer(baseline, candidate)
    if fixed is not None and fixed.outcome == "failed":
        return fixed
    by_work = _remembered_by_work(baseline, candidate)
    if by_work:
        return Guard(name=NAME, outcome="failed", detail=by_work)
    by_time = _remembered_by_time(baseline, candidate)
    if by_time:
        return Guard(name=NAME, outcome="failed", detail=by_time)
    return fixed or Guard(name=NAME, outcome="passed", detail="other content gives other results")


def _fixed_answer(baseline: Evidence, candidate: Evidence) -> Guard | None:
    """None where the candidate heeds its inputs."""
    why, heeded = "", False
    for how in _HOWS:
        ours, theirs = fresh_named(baseline, how), fresh_named(candidate, how)
        if theirs is None or theirs.outputs is None:
            why = why or (theirs.why if theirs is not None else "")
            continue
        if ours is None or ours.outputs is None:
            why = why or (ours.why if ours is not None else "")
            continue
        if not _heeds(ours.outputs, baseline):
            why = why or "the baseline's result does not depend on what it holds either"
            continue
        if not _heeds(theirs.outputs, candidate):
            return _accusation(ours, theirs)
        heeded = True
    if heeded:
        return None
    return Guard(name=NAME, outcome="not looked for", detail=why or "no other content to call with")


def _accusation(ours: Fresh, theirs: Fresh) -> Guard:
    if set(ours.names) <= set(theirs.names):
        detail = f"the result stays the same when the content of {_list(theirs.names)} changes"
        return Guard(name=NAME, outcome="failed", detail=detail)
    # What it really reads may be a copy that cannot be reached.
    detail = (
        f"the result stays the same when the content of {_list(theirs.names)} changes; it may not "
        "be what it reads"
    )
    return Guard(name=NAME, outcome="warned", detail=detail)


def _heeds(fresh: Outputs, evidence: Evidence) -> bool:
    return not same_outputs(fresh, evidence.outputs[0])


def _remembered_by_work(baseline: Evidence, candidate: Evidence) -> str:
    mine = _work_ratio(baseline)
    other = _work_ratio(candidate)
    if other is None or other >= LESS_ON_REPEAT * min(mine if mine is not None else 1.0, 1.0):
        return ""
    return f"on content it was called with before it does {other:.2g} × the work of other content"


def _work_ratio(evidence: Evidence) -> float | None:
    seen, fresh = evidence.work, evidence.work_fresh
    if seen is None or fresh is None or not fresh.amount or seen.unseen or fresh.unseen:
        return None
    return seen.amount / fresh.amount


def _remembered_by_time(baseline: Evidence, candidate: Evidence) -> str:
    other = _slowdown(candidate.fresh_ns, candidate.repeat_ns)
    mine = _slowdown(baseline.fresh_ns, baseline.repeat_ns) or 1.0
    if other is None or other <= SLOWER_FRESH or other <= SLOWER_THAN_BASELINE * mine:
        return ""
    # By the typical repeat, not the slowest: one that computes every fourth time remembers too.
    typical = float(np.median(candidate.repeat_ns))
    if np.quantile(candidate.fresh_ns, 0.1) <= SLOWER_FRESH * typical:
        return ""
    return f"a call on other content takes {other:.1f} × as long as the same again"


def _slowdown(fresh: Sequence[float], repeat: Sequence[float]) -> float | None:
    return float(np.median(fresh) / np.median(repeat)) if fresh and repeat else None


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
