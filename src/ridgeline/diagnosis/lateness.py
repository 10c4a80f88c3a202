"""Which rank the others wait for: the one answer that the verdict and the findings both give.

Where the work of each rank alone is known step by step, it decides. Elsewhere (a GPU, traces
without marked steps) the arrivals at the collectives decide, if the clocks can be aligned. If they
cannot, the late rank is one that alone spends time in some function, while the others spend longer
in collectives.
"""

import ast
import math
import re

from msgspec.structs import replace

from ridgeline.diagnosis.across_ranks import MIN_EXPLAINED_SHARE, cause_of
from ridgeline.diagnosis.case import Case
from ridgeline.records.sites import LateRank, RankPlace
from ridgeline.records.trace import Place, Ranks, RankTime
from ridgeline.source.reading.calls import SourceCall, all_calls, calls_at
from ridgeline.source.reading.sources import Source, Sources
from ridgeline.trace.ranks.late import BEFORE
from ridgeline.trace.ranks.own_time import MIN_LATE_SHARE

MIN_SHARE_OF_WAITING = 0.6
"""The smallest share of all waiting that one rank must cause by its late arrivals. Where ranks are
late by turns, the reason is noise or uneven data, and no rank is named."""
MIN_LAST_SHARE = 0.5
"""The smallest share of the collectives to which the late rank must come last."""
MAX_OTHERS_IN_FUNCTION = 0.25
"""Where arrivals are not known: the other ranks may spend at most this share of the late rank's
time in the function that is named."""
MAX_TRACED_SLOWDOWN = 2.7
"""The most that tracing with Python stacks slows a step, as a factor: the largest value in 15
programs on an H200."""

_CALLED = re.compile(r"(?:<built-in (?:function|method) |: )(?P<name>\w+)")
"""The name of a function in a recorded frame: `<built-in function sleep>`, `train.py(9): log`."""


def lateness(case: Case) -> LateRank | None:
    """Return the rank that the others wait for, with the line that was seen running; None if the
    others wait for no single rank."""
    if case.steps_compared:
        late = case.late
    elif case.across is None or len(case.across.ranks) < 2:
        return None
    elif case.across.trust.confidence == "unreliable":
        late = _by_function(case, case.across)
    else:
        late = _by_arrival(case, case.across)
    if late is None or late.share < MIN_LATE_SHARE:
        return None
    place, line, _ = seen_line(case.sources, late.cause)
    if place is None or line is None:
        return late
    return replace(late, place=f"{place.file}:{line}")


def seen_line(
    sources: Sources, cause: RankPlace | None
) -> tuple[Place | None, int | None, SourceCall | None]:
    """Return the function of a cause, the line that ran, and the call on that line.

    The line is that of a call in the stack, if only one line of the source can be meant. The first
    choice is the call of the function, if that call is under a condition on the rank. The second is
    the call inside the function that takes most of its time. The third is any call of the function.
    Where none is found, the line is the function's first; a function that holds the training loop
    has no line."""
    if cause is None:
        return None, None, None
    place = _function(sources.get(cause.place.file), cause.place)
    call = _call_of(sources, cause, place)
    called = _CALLED.search(cause.callee)
    inside = _only_call(sources, cause.place, called["name"]) if called is not None else None
    if inside is not None and (call is None or not under_rank_condition(sources, call)):
        return place, inside.line, inside
    if call is not None:
        return Place(file=call.file, line=call.line, function=place.function), call.line, call
    return place, None if cause.encloses_steps else place.line, None


def under_rank_condition(sources: Sources, call: SourceCall) -> bool:
    """Return whether a call is inside an `if` whose condition asks for the rank."""
    source = sources.get(call.file)
    return source is not None and any(
        isinstance(node, ast.If)
        and node.body[0].lineno <= call.line <= (node.end_lineno or node.lineno)
        and _asks_for_rank(node.test)
        for node in ast.walk(source.tree)
    )


def _asks_for_rank(test: ast.expr) -> bool:
    words = ast.unparse(test).lower()
    return any(word in words for word in ("rank", "is_main", "is_master", "master_process"))


def _only_call(sources: Sources, place: Place | None, name: str) -> SourceCall | None:
    found = calls_at(sources, place, (name,))
    return found[0] if len(found) == 1 else None


def _call_of(sources: Sources, cause: RankPlace, place: Place) -> SourceCall | None:
    """Return the only call of the function, looked for in its caller if the stack shows one. If
    there are several calls, return the only one in a loop and under a condition on the rank: no
    other call is in the steps of one rank alone. Else return None."""
    source = sources.get(cause.place.file)
    caller = cause.caller
    if caller is not None and _function(sources.get(caller.file), caller) != place:
        found = [*calls_at(sources, caller, (place.function,))]
    else:
        found = [*all_calls(source, (place.function,))] if source is not None else []
    if len(found) > 1:
        found = [c for c in found if c.loops and under_rank_condition(sources, c)]
    return found[0] if len(found) == 1 else None


def _function(source: Source | None, place: Place) -> Place:
    """Return the function around a comprehension or a lambda, which has a name and a first line."""
    scope = source.scope(place.line) if source is not None else None
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return place
    return Place(file=place.file, line=scope.lineno, function=scope.name)


def _by_arrival(case: Case, across: Ranks) -> LateRank | None:
    late = max(across.ranks, key=lambda rank: rank.caused_wait_ns)
    total = sum(rank.caused_wait_ns for rank in across.ranks)
    every = max(sum(row.count for row in across.collectives), 1)
    few = late.late_count < MIN_LAST_SHARE * every
    if not total or few or late.caused_wait_ns < MIN_SHARE_OF_WAITING * total:
        return None
    waited = late.caused_wait_ns / (len(across.ranks) - 1) * _recorded(late) / _steps(case)
    cause = cause_of(case.rank_places, late.rank, waited)
    if cause is None and not case.on_gpu:
        return None  # ranks on CPUs are late by chance of the scheduler
    longer = waited
    if cause is not None:  # the others may wait for this rank longer than its late arrivals tell
        longer = max(waited, min(cause.ns - cause.others_ns, _waited_in_all(case, across, late)))
    step = _step_ns(case, late)
    return LateRank(
        rank=late.rank,
        late_ns=_at_most(case, across, late, longer, step),
        step_ns=step,
        basis="arrivals",
        cause=cause,
        late_collectives=late.late_count,
        collectives=every,
        doing=late.doing,
    )


def _by_function(case: Case, across: Ranks) -> LateRank | None:
    """Return the rank that alone spends time in some function, if all other ranks spend longer in
    collectives than it does."""
    for one in case.rank_places:
        late = next((rank for rank in across.ranks if rank.rank == one.rank), None)
        if late is None or one.others_ns > MAX_OTHERS_IN_FUNCTION * one.ns:
            continue
        others = [r.communication_ns for r in across.ranks if r.rank != one.rank]
        longer = (min(others) - late.communication_ns) / _steps(case)
        excess, step = one.ns - one.others_ns, _step_ns(case, late)
        if excess >= MIN_LATE_SHARE * step and longer >= MIN_EXPLAINED_SHARE * excess:
            late_ns = _at_most(case, across, late, excess, step)
            return LateRank(
                rank=one.rank, late_ns=late_ns, step_ns=step, basis="traced steps", cause=one
            )
    return None


def _at_most(case: Case, across: Ranks, late: RankTime, ns: float, step: float) -> float:
    """Return the lateness in ns, limited to what the other work of the step leaves.

    The limit is needed because tracing lengthens the lateness, while the step is an untraced one.
    The other work is what the other ranks compute. It is at least the rest of the traced step
    divided by the most that tracing could have slowed it."""
    others = [r.compute_ns for r in across.ranks if r.rank != late.rank]
    rest = max(_traced_step_ns(case, late) - ns, 0.0) / MAX_TRACED_SLOWDOWN
    stays = max(min(others, default=0) / _steps(case), rest)
    return min(ns, max(step - stays, 0.0))


def _waited_in_all(case: Case, across: Ranks, late: RankTime) -> float:
    """Return the most that any other rank waits in the collectives of a step, whichever rank it
    waits for: the step cannot become shorter by more."""
    waits = [rank.wait_ns for rank in across.ranks if rank.rank != late.rank]
    known = [ns for ns in waits if ns is not None]
    return max(known) / _steps(case) if known else math.inf


def _recorded(late: RankTime) -> float:
    """Return the share of the rank's lateness that lies inside its trace: recording begins at a
    different moment on each rank."""
    whole = sum(ns for _, ns in late.doing)
    before = sum(ns for name, ns in late.doing if name == BEFORE)
    return 1 - before / whole if whole else 1.0


def _steps(case: Case) -> int:
    return max(case.sites.steps, 1)


def _step_ns(case: Case, late: RankTime) -> float:
    """Return the length of the untraced step if it is known, else of the traced one: the extra work
    of a late rank is seldom slowed by tracing."""
    traced = _traced_step_ns(case, late)
    return min(traced, case.times.mean_ms * 1e6) if case.times.mean_ms else traced


def _traced_step_ns(case: Case, late: RankTime) -> float:
    return max(late.window_ns, case.across_ns, 1) / _steps(case)
