"""Guards: how a timing can mislead, as far as the evidence shows it. Each guard is one function."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec import Struct

from ridgeline.cost.study.placement import ceiling_dtype
from ridgeline.equality.calls.evidence import Evidence, Fresh, Work
from ridgeline.equality.calls.judge import Judged, Rule, judge, same_outputs
from ridgeline.equality.calls.outputs import Leaf, Outputs, sampled_alike
from ridgeline.equality.calls.pairing import fresh_named, on_other_content
from ridgeline.equality.calls.perturb import unwritten
from ridgeline.errors import RidgelineError
from ridgeline.machine import cached, measure
from ridgeline.machine.datasheet import DTYPES
from ridgeline.machine.identity import describe
from ridgeline.records.comparison import Guard
from ridgeline.records.machine import Device, Quantity

LESS_WORK_RATIO = 0.5
"""A candidate that does less than this share of the baseline's arithmetic gets a warning."""
_DEFERRED = ("generator", "coroutine", "async_generator", "Future", "Task", "function", "method",
             "builtin_function_or_method", "partial", "map", "filter", "zip", "Thread")  # fmt: skip


def guards_of(
    baseline: Evidence,
    candidate: Evidence,
    judged: Sequence[Judged],
    rule: Rule,
) -> tuple[Guard, ...]:
    return (
        cached_replay(baseline, candidate),
        other_content(baseline, candidate, judged, rule),
        mutated_inputs(baseline, candidate),
        lazy_outputs(baseline, candidate),
        reused_buffer(baseline, candidate),
        unwritten_memory(baseline, candidate),
        nan_wildcard(judged),
        threads_left_behind(baseline, candidate),
        less_work(baseline, candidate),
    )


def other_content(
    baseline: Evidence, candidate: Evidence, judged: Sequence[Judged], rule: Rule
) -> Guard:
    """Compare both on other values in the tensors they share. They agree unless one holds something
    it computed from the old values, rightly (packed weights) or not (the answer)."""
    name = "other content"
    pairs = on_other_content(baseline, candidate)
    if not pairs or not all(pair.ok for pair in judged):
        return _not_looked_for(name, "the two hold no equal tensors")
    wrong = [pair for pair in (judge(pair, rule) for pair in pairs) if not pair.ok]
    if wrong:
        return _warned(
            name,
            f"with other values in the tensors they disagree ({wrong[0].words}): the candidate may "
            "hold copies of the old values",
        )
    return _passed(name)


def mutated_inputs(baseline: Evidence, candidate: Evidence) -> Guard:
    """The candidate must not change what the baseline leaves alone: a second call on inputs that
    the first one sorted, zeroed or normalised has less to do."""
    name = "mutated inputs"
    ours = {changed.role for changed in baseline.state}
    changed = [c for c in candidate.state if c.role not in ours]
    inputs = [c.name for c in changed if c.role == "declared"]
    if inputs:
        detail = f"the candidate changes {_list(inputs)}; the baseline changes no input"
        return _failed(name, detail)
    weights = [c.name for c in changed if c.role == "parameter"]
    if weights:
        detail = f"the candidate changes {_list(weights)}; the baseline changes no parameter"
        return _failed(name, detail)
    others = [c.name for c in changed if c.role in ("captured", "buffer")]
    influential = [n for n in others if n in candidate.influential]
    if influential:
        return _failed(
            name,
            f"the candidate changes {_list(influential)}, which its next result depends on; the "
            "baseline changes no such tensor",
        )
    unsure = [n for n in others if n not in candidate.scratch]
    if unsure:
        return _warned(
            name,
            f"the candidate changes {_list(unsure)}; it is unknown whether its results depend on "
            "that",
        )
    unread = f"; not followed: {_list(candidate.unread)}" if candidate.unread else ""
    if others:
        return _passed(name, f"{_list(others)} is scratch: overwritten before it is read{unread}")
    return _passed(name, unread.removeprefix("; "))


def lazy_outputs(baseline: Evidence, candidate: Evidence) -> Guard:
    """Work that is deferred until the result is read is not in the measured time."""
    name = "lazy outputs"
    ours = {leaf.path: leaf for leaf in baseline.outputs[0].leaves}
    for leaf in ours.values():
        if leaf.kind == "opaque" and leaf.type in _DEFERRED:
            where = leaf.path or "the output"
            return _failed(
                name, f"{where} of the baseline is a {leaf.type}: its work is not done in the call"
            )
    kinds = {leaf.type for leaf in baseline.outputs[0].leaves}
    for leaf in candidate.outputs[0].leaves:
        mine = ours.get(leaf.path)
        where = leaf.path or "the output"
        if leaf.kind == "tensor" and not leaf.is_plain and leaf.type not in kinds:
            return _failed(
                name, f"{where} is a {leaf.type}, a tensor that may compute when it is looked at"
            )
        opaque = leaf.kind == "opaque" and (mine is None or mine.type != leaf.type)
        if opaque and (leaf.type in _DEFERRED or _has_values(mine)):
            return _failed(name, f"{where} is a {leaf.type}: the work is not done yet")
        elsewhere = leaf.device and (mine is None or mine.device != leaf.device)
        if elsewhere and leaf.device not in ("cpu", "cuda", "mps"):
            return _failed(name, f"{where} is on device {leaf.device}, which holds no result")
        if mine is not None and leaf.device and mine.device and leaf.device != mine.device:
            return _warned(
                name,
                f"{where} stays on {leaf.device} where the baseline brings it to {mine.device}: "
                "the transfer is not in the candidate's time",
            )
    return _passed(name)


def reused_buffer(baseline: Evidence, candidate: Evidence) -> Guard:
    name = "reused output buffer"
    new = [path for path in candidate.overwritten if path not in baseline.overwritten]
    if new and not baseline.overwritten:
        return _warned(
            name,
            f"{_list(new)} of one call is written over by the next: a caller who keeps it sees it "
            "change",
        )
    return _passed(name)


def unwritten_memory(baseline: Evidence, candidate: Evidence) -> Guard:
    """Freed memory was filled with a pattern before the calls. An output that shows the pattern,
    and does not in the baseline, was never written."""
    name = "unwritten memory"
    if not candidate.poisoned:
        return _not_looked_for(name, "it returns no tensors")
    for ours, theirs in zip(baseline.outputs, candidate.outputs, strict=False):
        mine = {leaf.path: leaf for leaf in ours.leaves}
        for leaf in theirs.leaves:
            count = _unwritten(leaf, mine.get(leaf.path))
            if count:
                return _failed(
                    name,
                    f"{leaf.path or 'the output'} has {count:,} elements that were never written",
                )
    return _passed(name, f"freed memory was spoilt before {candidate.poisoned} calls")


def nan_wildcard(judged: Sequence[Judged]) -> Guard:
    name = "NaN as wildcard"
    for pair in judged:
        if pair.other_non_finite:
            return _failed(name, pair.words)
    share = max((pair.nan_share for pair in judged), default=0.0)
    if share:
        return _passed(name, f"up to {100 * share:.0f} % NaN, in the same places in both")
    return _passed(name)


def threads_left_behind(baseline: Evidence, candidate: Evidence) -> Guard:
    name = "threads left behind"
    left = [thread for thread in candidate.threads if thread not in baseline.threads]
    if left and not baseline.threads:
        detail = f"{_list(left)} live on after the call: what they do is not in its time"
        return _warned(name, detail)
    return _passed(name, f"both leave {_list(candidate.threads)}" if left else "")


def less_work(baseline: Evidence, candidate: Evidence) -> Guard:
    """Warn about less arithmetic: often the purpose of a change, sometimes a missing result."""
    name = "less work"
    ours, theirs = baseline.work, candidate.work
    if ours is None or theirs is None:
        why = candidate.work_why if theirs is None else baseline.work_why
        return _not_looked_for(name, why or "not counted")
    unseen = ours.unseen or theirs.unseen
    if unseen:
        return _not_looked_for(name, f"{' and '.join(unseen)}: what runs there is not counted")
    mine, other = sum(_products(ours)), sum(_products(theirs))
    if not mine:
        mine, other = ours.all_flops, theirs.all_flops
    if not mine:
        return _passed(name, "no arithmetic to compare")
    ratio = other / mine
    words = f"does {ratio:.2g} × the baseline's arithmetic, by the operators torch ran"
    outcome = "warned" if ratio < LESS_WORK_RATIO else "passed"
    return Guard(name=name, outcome=outcome, detail=words)  # type: ignore[arg-type]


def _products(work: Work) -> list[int]:
    return [*work.flops.values(), *work.convolution_flops.values()]


def _unwritten(leaf: Leaf, mine: Leaf | None) -> int:
    if leaf.kind != "tensor" or leaf.values is None:
        return 0
    if mine is None or (mine.dtype, mine.shape) != (leaf.dtype, leaf.shape):
        return int(unwritten(leaf.values).sum())
    ours, theirs = (each.values for each in sampled_alike(mine, leaf))
    if ours is None or theirs is None:
        return 0
    return int((unwritten(theirs) & ~unwritten(ours)).sum())


def _has_values(leaf: Leaf | None) -> bool:
    return leaf is not None and leaf.values is not None


def _passed(name: str, detail: str = "") -> Guard:
    return Guard(name=name, outcome="passed", detail=detail)


def _failed(name: str, detail: str) -> Guard:
    return Guard(name=name, outcome="failed", detail=detail)


def _warned(name: str, detail: str) -> Guard:
    return Guard(name=name, outcome="warned", detail=detail)


def _not_looked_for(name: str, why: str) -> Guard:
    return Guard(name=name, outcome="not looked for", detail=why)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(name or "the output" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


REPLAY_GUARD = "cached replay"
MIN_REPEAT_WORK_RATIO = 0.5
"""A workload that does less than this share of the work on values it has seen before remembers its
results."""
MIN_SLOWDOWN, MIN_SLOWDOWN_OVER_BASELINE = 2.0, 1.5
"""So are calls on new values that take this many times as long as repeated ones, if the ratio is
also this many times the baseline's."""
_HOWS = ("inputs rolled", "inputs scaled", "all rolled", "all scaled")


def cached_replay(baseline: Evidence, candidate: Evidence) -> Guard:
    """Judge by three kinds of evidence: the results on other values, and the work and the time on
    values seen before."""
    if not any(leaf.values is not None for leaf in candidate.outputs[0].leaves):
        return _not_looked_for(REPLAY_GUARD, "the candidate returns nothing that can be compared")
    fixed = _fixed_answer(baseline, candidate)
    if fixed is not None and fixed.outcome == "failed":
        return fixed
    remembered = _remembered_by_work(baseline, candidate) or _remembered_by_time(
        baseline, candidate
    )
    if remembered:
        return _failed(REPLAY_GUARD, remembered)
    return fixed or _passed(REPLAY_GUARD, "other input values give other results")


def _fixed_answer(baseline: Evidence, candidate: Evidence) -> Guard | None:
    """Return a guard if the result does not follow the inputs or that is unknown; else None."""
    why, follows = "", False
    for how in _HOWS:
        ours, theirs = fresh_named(baseline, how), fresh_named(candidate, how)
        if theirs is None or theirs.outputs is None:
            why = why or (theirs.why if theirs is not None else "")
            continue
        if ours is None or ours.outputs is None:
            why = why or (ours.why if ours is not None else "")
            continue
        if not _follows_inputs(ours.outputs, baseline):
            why = why or "the baseline's result does not depend on its tensors either"
            continue
        if not _follows_inputs(theirs.outputs, candidate):
            return _fixed_result(ours, theirs)
        follows = True
    if follows:
        return None
    return _not_looked_for(REPLAY_GUARD, why or "there are no other values to call it with")


def _fixed_result(ours: Fresh, theirs: Fresh) -> Guard:
    detail = f"the result stays the same when the values in {_list(theirs.names)} change"
    if set(ours.names) <= set(theirs.names):
        return _failed(REPLAY_GUARD, detail)
    return _warned(REPLAY_GUARD, f"{detail}; it may read a copy that cannot be reached")


def _follows_inputs(fresh: Outputs, evidence: Evidence) -> bool:
    return not same_outputs(fresh, evidence.outputs[0])


def _remembered_by_work(baseline: Evidence, candidate: Evidence) -> str:
    mine = _work_ratio(baseline)
    other = _work_ratio(candidate)
    least = MIN_REPEAT_WORK_RATIO * min(mine if mine is not None else 1.0, 1.0)
    if other is None or other >= least:
        return ""
    return f"on values it was called with before it does {other:.2g} × the work of new values"


def _work_ratio(evidence: Evidence) -> float | None:
    seen, fresh = evidence.work, evidence.work_fresh
    if seen is None or fresh is None or not fresh.amount or seen.unseen or fresh.unseen:
        return None
    return seen.amount / fresh.amount


def _remembered_by_time(baseline: Evidence, candidate: Evidence) -> str:
    other = _slowdown(candidate.fresh_ns, candidate.repeat_ns)
    mine = _slowdown(baseline.fresh_ns, baseline.repeat_ns) or 1.0
    if other is None or other <= MIN_SLOWDOWN or other <= MIN_SLOWDOWN_OVER_BASELINE * mine:
        return ""
    # Compare with the typical repeat, not the slowest: a candidate that computes only every fourth
    # time remembers, too.
    typical = float(np.median(candidate.repeat_ns))
    if np.quantile(candidate.fresh_ns, 0.1) <= MIN_SLOWDOWN * typical:
        return ""
    return f"a call on new values takes {other:.1f} × as long as a repeated one"


def _slowdown(fresh: Sequence[float], repeat: Sequence[float]) -> float | None:
    return float(np.median(fresh) / np.median(repeat)) if fresh and repeat else None


FLOOR_GUARD = "roofline floor"
MIN_ARITHMETIC_SHARE = 0.8
"""A time below this share of the arithmetic's floor is impossible. The peak is measured with one
shape; another may reach some per cent more."""
MIN_TRAFFIC_SHARE = 0.5
"""The same for memory traffic. Reading alone is faster than the copying that bandwidth is measured
with: on a CPU a copy moves a third more than it counts, because a line is read before it is
written."""
WINOGRAD_FACTOR = 4
"""Convolution algorithms need as little as a quarter of the multiplications that are counted."""
MIN_CACHE_MULTIPLE = 2
"""Traffic counts only if more than this many times the cache is touched."""
AGAIN_BUDGET_S = 2.0
"""Time limit for measuring a ceiling again that a variant has exceeded."""


class Floor(Struct, frozen=True, kw_only=True):
    """The least time for some work on a device."""

    arithmetic_ns: float = 0.0
    traffic_ns: float = 0.0
    missing: str = ""
    """Why there is no floor."""


def examine_floor(
    evidence: Evidence,
    measured_ns: float,
    device: str,
    ceilings: Device | None = None,
    *,
    may_measure: bool = True,
) -> Guard:
    """Check whether `device` can be as fast as measured. `ceilings` replaces those measured here
    earlier; `may_measure`: there is time to measure an exceeded ceiling again."""
    work = _largest(evidence)
    if work is None:
        return _not_looked_for(FLOOR_GUARD, evidence.work_why or "its work was not counted")
    if work.unseen:
        why = f"part of its work is in {' and '.join(work.unseen)}, not counted"
        return _not_looked_for(FLOOR_GUARD, why)
    known = ceilings or _ceilings(device)
    if known is None:
        why = f"no ceiling of {device} is known: `ridgeline hardware` measures it"
        return _not_looked_for(FLOOR_GUARD, why)
    guard = _compare_with_floor(work, measured_ns, known)
    if guard.outcome == "failed" and ceilings is None:
        # Either the work was not done, or the stored ceiling is too low. Measuring the ceiling
        # again tells which.
        if not may_measure:
            why = "ceiling exceeded, and no time was left to measure it again"
            return _not_looked_for(FLOOR_GUARD, why)
        guard = _compare_with_floor(work, measured_ns, _measured_again(device, work) or known)
    return guard


def _compare_with_floor(work: Work, measured_ns: float, device: Device) -> Guard:
    floor = floor_ns(work, device)
    if floor.missing:
        return _not_looked_for(FLOOR_GUARD, floor.missing)
    for least_ns, share, what in (
        (floor.arithmetic_ns, MIN_ARITHMETIC_SHARE, "its arithmetic"),
        (floor.traffic_ns, MIN_TRAFFIC_SHARE, "the memory it touches"),
    ):
        if measured_ns < share * least_ns:
            return _failed(
                FLOOR_GUARD,
                f"{_time(measured_ns)} a call is less than {what} takes at this device's peak: "
                f"{_time(least_ns)}",
            )
    highest = max(floor.arithmetic_ns, floor.traffic_ns)
    if not highest:
        return _passed(FLOOR_GUARD, "no work that a ceiling applies to")
    detail = f"{_time(measured_ns)} a call, {_time(highest)} the least possible"
    return _passed(FLOOR_GUARD, detail)


def floor_ns(work: Work, device: Device) -> Floor:
    """Return the least time for some work on a device, from its known ceilings."""
    arithmetic, missing = _arithmetic(work.flops, device)
    convolution, also = _arithmetic(work.convolution_flops, device)
    speed = max((_peak(device, q, "") for q in ("copy", "triad")), default=0.0)
    touched = work.read_bytes + work.written_bytes
    # Data that stayed in the cache since the last call need not come from memory.
    far = touched - device.cache_bytes
    traffic = 0.0
    if speed and device.cache_bytes and touched > MIN_CACHE_MULTIPLE * device.cache_bytes:
        traffic = 1e9 * far / speed
    unknown = missing + also
    if unknown and not (arithmetic or convolution or traffic):
        busy = any(c.quantity == "matmul" and c.dtype in unknown for c in device.ceilings)
        why = "was measured on a quiet machine" if busy else "is known"
        return Floor(missing=f"no ceiling {why} for {', '.join(dict.fromkeys(unknown))}")
    return Floor(arithmetic_ns=arithmetic + convolution / WINOGRAD_FACTOR, traffic_ns=traffic)


def _arithmetic(flops: Mapping[str, int], device: Device) -> tuple[float, list[str]]:
    total, missing = 0.0, []
    for dtype, count in flops.items():
        # Which float32 products use TF32 or bfloat16 is a setting that may have changed since: take
        # the fastest, which nothing can beat.
        names = ("float32", "tf32", "bfloat16") if dtype == "float32" and _fast() else (dtype,)
        peak = max(_peak(device, "matmul", ceiling_dtype(name, tf32=False)) for name in names)
        if peak:
            total += 1e9 * count / peak
        else:
            missing.append(dtype)
    return total, missing


def _fast() -> bool:
    try:
        precise = torch.get_float32_matmul_precision() == "highest"
        return not precise or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # both of torch's settings for it were used
        return True


def _peak(device: Device, quantity: Quantity, dtype: str) -> float:
    """Return the highest usable ceiling of a kind, whatever its source; 0 if there is none."""
    values = [
        c.value
        for c in device.ceilings
        if c.quantity == quantity and c.dtype == dtype and c.state == "usable"
    ]
    return max(values, default=0.0)


def _largest(evidence: Evidence) -> Work | None:
    """Return the larger of the two counts: the other call may have used a remembered result."""
    counts = [work for work in (evidence.work, evidence.work_fresh) if work is not None]
    return max(counts, key=lambda work: work.amount, default=None)


def _measured_again(device: str, work: Work) -> Device | None:
    names = {ceiling_dtype(name, tf32=False) for name in (*work.flops, *work.convolution_flops)}
    dtypes = [dtype for dtype in DTYPES if dtype in names]
    try:
        return measure(device, dtypes, budget_s=AGAIN_BUDGET_S)
    except (RidgelineError, RuntimeError):
        return None


def _ceilings(device: str) -> Device | None:
    try:
        known = cached(device) or describe(torch.device(device))
    except (RidgelineError, RuntimeError):
        return None
    return known if known.ceilings else None


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"
