"""Ways a timing can lie that show in the evidence. Each is one function; each says what it saw."""

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

LESS_WORK = 0.5
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
    """Two functions over the same tensors agree on other content in them too, unless one holds
    something it made of the old content, rightly (packed weights) or not (the answer)."""
    name = "other content"
    pairs = on_other_content(baseline, candidate)
    if not pairs or not all(found.ok for found in judged):
        return Guard(name=name, outcome="not looked for", detail="nothing that both hold alike")
    wrong = [found for found in (judge(pair, rule) for pair in pairs) if not found.ok]
    if wrong:
        return Guard(
            name=name,
            outcome="warned",
            detail=f"given other content they disagree ({wrong[0].words}): the candidate may hold "
            "copies made of the old",
        )
    return _passed(name)


def mutated_inputs(baseline: Evidence, candidate: Evidence) -> Guard:
    """What the baseline leaves alone the candidate must leave alone: a second call on inputs that
    the first one sorted, zeroed or normalised has less to do."""
    name = "mutated inputs"
    ours = {changed.role for changed in baseline.state}
    changed = [c for c in candidate.state if c.role not in ours]
    inputs = [c.name for c in changed if c.role == "declared"]
    if inputs:
        return Guard(
            name=name,
            outcome="failed",
            detail=f"the candidate changes {_list(inputs)}; the baseline changes no input",
        )
    weights = [c.name for c in changed if c.role == "parameter"]
    if weights:
        return Guard(
            name=name,
            outcome="failed",
            detail=f"the candidate changes {_list(weights)}; the baseline changes no parameter",
        )
    others = [c.name for c in changed if c.role in ("captured", "buffer")]
    heeded = [n for n in others if n in candidate.heeded]
    if heeded:
        return Guard(
            name=name,
            outcome="failed",
            detail=f"the candidate changes {_list(heeded)}, which its next result depends on; the "
            "baseline changes nothing of the kind",
        )
    unsure = [n for n in others if n not in candidate.scratch]
    if unsure:
        return Guard(
            name=name,
            outcome="warned",
            detail=f"the candidate changes {_list(unsure)}; whether its results depend on that was "
            "not found out",
        )
    unread = f"; not followed: {_list(candidate.unread)}" if candidate.unread else ""
    if others:
        return _passed(name, f"{_list(others)} is scratch: overwritten before it is read{unread}")
    return _passed(name, unread.removeprefix("; "))


def lazy_outputs(baseline: Evidence, candidate: Evidence) -> Guard:
    """Work put off until somebody looks at the result is off the clock."""
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
        if leaf.kind == "tensor" and not leaf.plain and leaf.type not in kinds:
            return _failed(
                name, f"{where} is a {leaf.type}, a tensor that may compute when it is looked at"
            )
        opaque = leaf.kind == "opaque" and (mine is None or mine.type != leaf.type)
        if opaque and (leaf.type in _DEFERRED or _was_value(mine)):
            return _failed(name, f"{where} is a {leaf.type}: the work is not done yet")
        elsewhere = leaf.device and (mine is None or mine.device != leaf.device)
        if elsewhere and leaf.device not in ("cpu", "cuda", "mps"):
            return _failed(name, f"{where} is on device {leaf.device}, which holds no result")
        if mine is not None and leaf.device and mine.device and leaf.device != mine.device:
            return Guard(
                name=name,
                outcome="warned",
                detail=f"{where} stays on {leaf.device} where the baseline brings it to "
                f"{mine.device}: the transfer is not in the candidate's time",
            )
    return _passed(name)


def reused_buffer(baseline: Evidence, candidate: Evidence) -> Guard:
    name = "reused output buffer"
    new = [path for path in candidate.reused if path not in baseline.reused]
    if new and not baseline.reused:
        return Guard(
            name=name,
            outcome="warned",
            detail=f"{_list(new)} of one call is written over by the next: a caller who keeps it "
            "sees it change",
        )
    return _passed(name)


def unwritten_memory(baseline: Evidence, candidate: Evidence) -> Guard:
    """Before the calls freed memory was filled with a pattern; an output that shows it where the
    baseline's does not was never written."""
    name = "unwritten memory"
    if not candidate.poisoned:
        return Guard(name=name, outcome="not looked for", detail="it returns no tensors")
    for ours, theirs in zip(baseline.outputs, candidate.outputs, strict=False):
        mine = {leaf.path: leaf for leaf in ours.leaves}
        for leaf in theirs.leaves:
            count = _unwritten(leaf, mine.get(leaf.path))
            if count:
                return _failed(
                    name,
                    f"{leaf.path or 'the output'} has {count:,} elements that nothing was ever "
                    "written to",
                )
    return _passed(name, f"freed memory was spoilt before {candidate.poisoned} calls")


def nan_wildcard(judged: Sequence[Judged]) -> Guard:
    name = "NaN as wildcard"
    for found in judged:
        if not found.ok and ("NaN" in found.words or "infinit" in found.words):
            return _failed(name, found.words)
    share = max((found.nan_share for found in judged), default=0.0)
    if share:
        return _passed(name, f"up to {100 * share:.0f} % NaN, in the same places in both")
    return _passed(name)


def threads_left_behind(baseline: Evidence, candidate: Evidence) -> Guard:
    name = "threads left behind"
    left = [thread for thread in candidate.threads if thread not in baseline.threads]
    if left and not baseline.threads:
        return Guard(
            name=name,
            outcome="warned",
            detail=f"{_list(left)} live on after the call: what they do is not in its time",
        )
    return _passed(name, f"both leave {_list(candidate.threads)}" if left else "")


def less_work(baseline: Evidence, candidate: Evidence) -> Guard:
    """Often the very point of a change, sometimes an answer that was not computed: worth saying."""
    name = "less work"
    ours, theirs = baseline.work, candidate.work
    if ours is None or theirs is None:
        why = candidate.work_why if theirs is None else baseline.work_why
        return Guard(name=name, outcome="not looked for", detail=why or "not counted")
    unseen = ours.unseen or theirs.unseen
    if unseen:
        detail = f"{' and '.join(unseen)}: what runs there is not counted"
        return Guard(name=name, outcome="not looked for", detail=detail)
    mine, other = sum(_products(ours)), sum(_products(theirs))
    if not mine:
        mine, other = ours.all_flops, theirs.all_flops
    if not mine:
        return _passed(name, "no arithmetic to compare")
    ratio = other / mine
    words = f"does {ratio:.2g} × the baseline's arithmetic, by the operators torch ran"
    outcome = "warned" if ratio < LESS_WORK else "passed"
    return Guard(name=name, outcome=outcome, detail=words)  # type: ignore[arg-type]


def _products(work: object) -> list[int]:
    flops, convolutions = work.flops, work.convolution_flops  # type: ignore[attr-defined]
    return [*flops.values(), *convolutions.values()]


def _unwritten(leaf: Leaf, mine: Leaf | None) -> int:
    if leaf.kind != "tensor" or leaf.values is None:
        return 0
    if mine is None or (mine.dtype, mine.shape) != (leaf.dtype, leaf.shape):
        return int(unwritten(leaf.values).sum())
    ours, theirs = (each.values for each in sampled_alike(mine, leaf))
    if ours is None or theirs is None:
        return 0
    return int((unwritten(theirs) & ~unwritten(ours)).sum())


def _was_value(leaf: Leaf | None) -> bool:
    return leaf is not None and leaf.values is not None


def _passed(name: str, detail: str = "") -> Guard:
    return Guard(name=name, outcome="passed", detail=detail)


def _failed(name: str, detail: str) -> Guard:
    return Guard(name=name, outcome="failed", detail=detail)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(name or "the output" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


REPLAY_GUARD = "cached replay"
LESS_ON_REPEAT = 0.5
"""On content seen before a workload does the work it does on other content, or it remembers."""
SLOWER_FRESH, SLOWER_THAN_BASELINE = 2.0, 1.5
_HOWS = ("inputs rolled", "inputs scaled", "all rolled", "all scaled")


def cached_replay(baseline: Evidence, candidate: Evidence) -> Guard:
    """Three witnesses: what comes out on other content, the work done on content seen before, and
    the time it takes."""
    if not any(leaf.values is not None for leaf in candidate.outputs[0].leaves):
        why = "the candidate returns nothing that could be compared"
        return Guard(name=REPLAY_GUARD, outcome="not looked for", detail=why)
    fixed = _fixed_answer(baseline, candidate)
    if fixed is not None and fixed.outcome == "failed":
        return fixed
    by_work = _remembered_by_work(baseline, candidate)
    if by_work:
        return Guard(name=REPLAY_GUARD, outcome="failed", detail=by_work)
    by_time = _remembered_by_time(baseline, candidate)
    if by_time:
        return Guard(name=REPLAY_GUARD, outcome="failed", detail=by_time)
    return fixed or Guard(
        name=REPLAY_GUARD, outcome="passed", detail="other content gives other results"
    )


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
    return Guard(
        name=REPLAY_GUARD, outcome="not looked for", detail=why or "no other content to call with"
    )


def _accusation(ours: Fresh, theirs: Fresh) -> Guard:
    if set(ours.names) <= set(theirs.names):
        detail = f"the result stays the same when the content of {_listed(theirs.names)} changes"
        return Guard(name=REPLAY_GUARD, outcome="failed", detail=detail)
    # What it really reads may be a copy that cannot be reached.
    detail = (
        f"the result stays the same when the content of {_listed(theirs.names)} changes; it may "
        "not be what it reads"
    )
    return Guard(name=REPLAY_GUARD, outcome="warned", detail=detail)


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


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


FLOOR_GUARD = "roofline floor"
ARITHMETIC_SHARE = 0.8
"""A peak is measured with one shape; another may do some per cent better."""
TRAFFIC_SHARE = 0.5
"""Reading alone is faster than the copying that bandwidth is measured with: on a CPU a copy moves
a third more than it counts, because a line is read before it is written."""
WINOGRAD = 4
"""Convolutions have algorithms that need as little as a quarter of the multiplications counted."""
CACHE_TIMES = 2
AGAIN_BUDGET_S = 2.0
"""Time limit for measuring a ceiling again that a variant has exceeded."""


class Floor(Struct, frozen=True, kw_only=True):
    arithmetic_ns: float = 0.0
    traffic_ns: float = 0.0
    missing: str = ""
    """Why there is none."""


def examine_floor(
    evidence: Evidence,
    measured_ns: float,
    device: str,
    ceilings: Device | None = None,
    *,
    may_measure: bool = True,
) -> Guard:
    """Whether a measured time is one that `device` could have taken. `ceilings` in place of those
    measured here earlier; `may_measure`: there is time to measure an exceeded one again."""
    work = _largest(evidence)
    if work is None:
        return _not_looked_for(evidence.work_why or "its work was not counted")
    if work.unseen:
        return _not_looked_for(f"part of its work is in {' and '.join(work.unseen)}, not counted")
    known = ceilings or _ceilings(device)
    if known is None:
        return _not_looked_for(f"no ceiling of {device} is known: `ridgeline hardware` measures it")
    guard = _held_against(work, measured_ns, known)
    if guard.outcome == "failed" and ceilings is None:
        # Either the work was not done, or the stored ceiling is too low. Measuring the ceiling
        # again tells which.
        if not may_measure:
            return _not_looked_for("ceiling exceeded, and no time was left to measure it again")
        guard = _held_against(work, measured_ns, _measured_again(device, work) or known)
    return guard


def _held_against(work: Work, measured_ns: float, device: Device) -> Guard:
    found = floor_ns(work, device)
    if found.missing:
        return _not_looked_for(found.missing)
    for floor, share, what in (
        (found.arithmetic_ns, ARITHMETIC_SHARE, "its arithmetic"),
        (found.traffic_ns, TRAFFIC_SHARE, "the memory it touches"),
    ):
        if measured_ns < share * floor:
            return Guard(
                name=FLOOR_GUARD,
                outcome="failed",
                detail=f"{_time(measured_ns)} a call is less than {what} takes at this device's "
                f"peak: {_time(floor)}",
            )
    highest = max(found.arithmetic_ns, found.traffic_ns)
    return Guard(
        name=FLOOR_GUARD,
        outcome="passed",
        detail=f"{_time(measured_ns)} a call, {_time(highest)} the least possible"
        if highest
        else "no work that a ceiling applies to",
    )


def floor_ns(work: Work, device: Device) -> Floor:
    """The least time for some work on a device, from the ceilings known of it."""
    arithmetic, missing = _arithmetic(work.flops, device)
    convolution, also = _arithmetic(work.convolution_flops, device)
    speed = max((_peak(device, q, "") for q in ("copy", "triad")), default=0.0)
    touched = work.read_bytes + work.written_bytes
    # What stayed in the cache since the last call need not come from memory.
    far = touched - device.cache_bytes
    traffic = 0.0
    if speed and device.cache_bytes and touched > CACHE_TIMES * device.cache_bytes:
        traffic = 1e9 * far / speed
    unknown = missing + also
    if unknown and not (arithmetic or convolution or traffic):
        busy = any(c.quantity == "matmul" and c.dtype in unknown for c in device.ceilings)
        why = "was measured on a quiet machine" if busy else "is known"
        return Floor(missing=f"no ceiling {why} for {', '.join(dict.fromkeys(unknown))}")
    return Floor(arithmetic_ns=arithmetic + convolution / WINOGRAD, traffic_ns=traffic)


def _arithmetic(flops: Mapping[str, int], device: Device) -> tuple[float, list[str]]:
    total, missing = 0.0, []
    for dtype, count in flops.items():
        # Which float32 products go through TF32 or bfloat16 is a switch that may have been turned
        # since: the fastest of them is the one that nothing can beat.
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
    except RuntimeError:  # both of torch's switches for it were used
        return True


def _peak(device: Device, quantity: Quantity, dtype: str) -> float:
    """Return the highest usable ceiling of a kind, whatever its source; 0 if there is none."""
    found = [
        c.value
        for c in device.ceilings
        if c.quantity == quantity and c.dtype == dtype and c.state == "usable"
    ]
    return max(found, default=0.0)


def _largest(evidence: Evidence) -> Work | None:
    """Of the two counts, the one where more was done: the other may have been remembered."""
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


def _not_looked_for(why: str) -> Guard:
    return Guard(name=FLOOR_GUARD, outcome="not looked for", detail=why)


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"
