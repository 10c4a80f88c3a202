"""Ways a timing can lie that show in the evidence. Each is one function; each says what it saw."""

from collections.abc import Sequence

from ridgeline.equality.calls.equality import Judged, Rule, judge
from ridgeline.equality.calls.leaf import Leaf, sampled_alike
from ridgeline.equality.calls.observed import Evidence
from ridgeline.equality.calls.pairing import on_other_content
from ridgeline.equality.calls.poison import unwritten
from ridgeline.equality.calls.replay import cached_replay
from ridgeline.records.comparison import Guard

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
