"""Works out how the ranks of one job delay each other, and which rank the others wait for."""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.recorded_run import MAX_COMPARED_RANKS, Attempts
from ridgeline.errors import UsageError
from ridgeline.records.run import Phase, Step
from ridgeline.records.sites import Exchange, LateRank, RankPlace
from ridgeline.records.trace import Place, Ranks, RankTime, Window
from ridgeline.source.calls import SourceCall, all_calls, calls_at
from ridgeline.source.file import SourceFile, SourceFiles
from ridgeline.trace.analyses.collective_sites import exchange
from ridgeline.trace.analyses.phases import PHASES
from ridgeline.trace.links import Links, links_of
from ridgeline.trace.ranks.job import compared
from ridgeline.trace.ranks.own_time import (
    MIN_LATE_SHARE,
    MIN_STEPS,
    Floats,
    OwnSteps,
    OwnTime,
    late_by_steps,
    own_functions,
    own_time,
    waiting_phases,
)
from ridgeline.trace.study import open_trace
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of

MIN_EXPLAINED_SHARE = 0.4
"""The smallest share of a rank's lateness that a function must account for to be its cause."""
MAX_OTHERS_SHARE = 0.5
"""The largest share of the late rank's time in a function that the others may spend there too."""
MIN_PLAIN_SHARE = 0.2
"""A rank that is late by at least this share of the step is not late by chance."""
MIN_SURE_SHARE_OF_LATENESS = 0.9
"""A rank that is late by a smaller share of the step must cause at least this share of all
lateness. On two cores with a load of 21, one of two equal ranks was the slower in 30 of 40 steps,
by 9 % of the step, and caused 0.78 of the lateness."""
_MERGED: dict[Phase, Phase] = {"transfer": "other"}
"""Phases that count as another one. On a CPU the time between a batch and the first forward is not
a copy but the program's own code."""


class AcrossRanks(Struct, frozen=True, kw_only=True):
    """The comparison of the ranks; empty if there is the trace of one rank alone."""

    exchange: Exchange = Exchange()
    """The collectives of the first rank."""
    ranks: Ranks | None = None
    places: tuple[RankPlace, ...] = ()
    window_ns: int = 0
    steps_compared: bool = False
    """Whether the work of each rank alone was compared step by step. Then `late` is the answer, and
    None means that no rank is late."""
    late: LateRank | None = None


def of_files(
    files: Sequence[Path],
    steps: int,
    attempts: Attempts,
    rank_steps: Mapping[int, Sequence[Step]] | None = None,
    opened: Sequence[Trace | None] = (),
) -> AcrossRanks:
    """Compare the ranks of a run. `files` has a trace for each rank, that of rank 0 first. `steps`
    is how many steps the program traced, `rank_steps` has the timed steps by rank, and `opened` has
    traces that need not be read again."""
    known = {Path(trace.origin.path).resolve(): trace for trace in opened if trace is not None}
    traces = []
    for path in files[:MAX_COMPARED_RANKS]:
        trace = known.get(path.resolve()) or attempts.part(
            f"the trace {path.name}",
            lambda path=path: open_trace(path, False).trace,  # type: ignore[misc]
        )
        if trace is not None:
            traces.append(trace)
    windows = [_window(trace, steps) for trace in traces]
    return of_traces(traces, windows, attempts, rank_steps=rank_steps)


def of_traces(
    traces: Sequence[Trace],
    windows: Sequence[Window],
    attempts: Attempts,
    ranks: Ranks | None = None,
    rank_steps: Mapping[int, Sequence[Step]] | None = None,
) -> AcrossRanks:
    """Compare the ranks; `ranks` is what a study has already found."""
    links = [links_of(trace) for trace in traces]
    first = None
    if traces:
        first = attempts.part("the collectives", lambda: exchange(traces[0], links[0], windows[0]))
    if len(traces) > 1 and ranks is None:
        ranks = attempts.part("the ranks", lambda: compared(traces, links, windows)[0])
    numbers = [one.rank for one in ranks.ranks] if ranks is not None else []
    places: tuple[RankPlace, ...] = ()
    own: list[OwnTime] = []
    if len(numbers) == len(traces) > 1:
        places = (
            attempts.part(
                "the ranks' functions", lambda: own_functions(traces, links, windows, numbers)
            )
            or ()
        )
        each = zip(traces, links, windows, numbers, strict=True)
        own = attempts.part("the ranks' own time", lambda: _own_times(each)) or []
    judged = attempts.part("the late rank", lambda: _judge(own, rank_steps or {}, places))
    if judged is not None:
        pair = attempts.part("two late ranks", lambda: _late_pair(own, rank_steps or {}, places))
        judged = (pair or judged[0],)
    return AcrossRanks(
        exchange=first or Exchange(),
        ranks=ranks,
        places=places,
        window_ns=windows[0].ns if windows else 0,
        steps_compared=judged is not None,
        late=judged[0] if judged is not None else None,
    )


def cause_of(places: Sequence[RankPlace], rank: int, late_ns: float) -> RankPlace | None:
    """Return the function in which the late rank spends its extra time and the others do not; None
    if no function explains enough of it."""
    own = [one for one in places if one.rank == rank]
    best = max(own, key=lambda one: one.ns - one.others_ns, default=None)
    if best is None or best.others_ns > MAX_OTHERS_SHARE * best.ns:
        return None
    return best if best.ns - best.others_ns >= MIN_EXPLAINED_SHARE * late_ns else None


def _own_times(each: "zip[tuple[Trace, Links, Window, int]]") -> list[OwnTime]:
    found = [own_time(trace, links, window, number) for trace, links, window, number in each]
    return [one for one in found if one is not None]


def _judge(
    traced: Sequence[OwnTime],
    rank_steps: Mapping[int, Sequence[Step]],
    places: Sequence[RankPlace],
) -> tuple[LateRank | None] | None:
    """Return a tuple that holds the late rank, or None if no rank is late. Return None instead of a
    tuple if the work of the ranks could not be compared."""
    by_trace = late_by_steps([_traced_steps(one) for one in traced])
    timed = {rank: own for rank, steps in rank_steps.items() if (own := _timed_steps(rank, steps))}
    if len(timed) < 2:
        return (_explained(by_trace, places),) if len(traced) > 1 else None
    shown = {one.rank: one for one in traced if one.rank in timed}
    if len(shown) < len(timed):
        late = _late_outside(timed, frozenset({"backward"}))
    else:
        waiting = waiting_phases(traced)
        late = _late_outside(timed, waiting)
        if by_trace is not None and (late.rank == by_trace.rank if late else True):
            # A few traced steps may show chance. Timed steps must agree, or a function explain it.
            if late is None and _explained(by_trace, places) is None:
                return (None,)
            work = [_own(timed[r], shown[r], waiting, late=r == by_trace.rank) for r in shown]
            late = _larger(late, late_by_steps(work))
    if late is None or _by_chance(late):
        return (None,)
    return (replace(late, cause=cause_of(places, late.rank, late.late_ns)),)


def _late_pair(
    traced: Sequence[OwnTime],
    rank_steps: Mapping[int, Sequence[Step]],
    places: Sequence[RankPlace],
) -> LateRank | None:
    """Return a late rank with another one beside it: without either of the two, the remaining ranks
    wait for the other. Such ranks hide each other, because the others wait for both at once or by
    turns. The slower one may still be told alone, with the small part of its lateness that the
    other one does not hide. At least one rank must be left that is not late."""
    ranks = sorted(rank_steps.keys() | {one.rank for one in traced})
    if len(ranks) < 3:
        return None
    late_without: dict[int, LateRank] = {}
    for left_out in ranks:
        judged = _judge(
            [one for one in traced if one.rank != left_out],
            {rank: steps for rank, steps in rank_steps.items() if rank != left_out},
            places,
        )
        if judged is not None and judged[0] is not None:
            late_without[left_out] = judged[0]
    for left_out, late in late_without.items():
        other = late_without.get(late.rank)
        if other is not None and other.rank == left_out:
            first, second = sorted((late, other), key=lambda one: -one.late_ns)
            return replace(first, beside=second)
    return None


def _by_chance(late: LateRank) -> bool:
    """Return whether the scheduler of a busy machine may have made this rank a little slower."""
    return late.share < MIN_PLAIN_SHARE and late.share_of_lateness < MIN_SURE_SHARE_OF_LATENESS


def _late_outside(timed: Mapping[int, OwnSteps], waiting: frozenset[str]) -> LateRank | None:
    """Return the rank that is late by its phases without collectives, which are all work."""
    work = [_only(own, [p for p in own.own_ns if p not in waiting]) for own in timed.values()]
    late = late_by_steps(work)
    return late and replace(late, slowest_other_ns=0.0)  # the work of all phases is not known


def _larger(timed: LateRank | None, whole: LateRank | None) -> LateRank | None:
    """Return the larger of two latenesses: `timed`, of the phases without collectives, and `whole`,
    of all phases. Only the few traced steps tell of the phases that wait, and their noise may make
    `whole` the smaller one. The lateness of the timed phases is certain in any case."""
    if timed is None:
        return whole and replace(whole, basis="traced steps")
    if whole is None or whole.rank != timed.rank:
        return timed
    if whole.late_ns >= timed.late_ns:
        return replace(whole, share_of_lateness=timed.share_of_lateness)
    return replace(timed, slowest_other_ns=whole.slowest_other_ns)


def _explained(late: LateRank | None, places: Sequence[RankPlace]) -> LateRank | None:
    """Return the late rank that the trace alone shows, if the rank was late in every step and in a
    function that the others are not in. A function that holds the training loop explains nothing.
    """
    if late is None or late.late_steps < late.steps or late.steps < 2:
        return None
    cause = cause_of(places, late.rank, late.late_ns)
    if cause is None or cause.encloses_steps:
        return None
    return replace(late, cause=cause, basis="traced steps")


def _traced_steps(one: OwnTime) -> OwnSteps:
    own: dict[str, Floats] = {
        phase: (one.phase_ns[phase] - one.waiting_ns[phase]).astype(np.float64) for phase in PHASES
    }
    index = np.arange(len(one.length_ns))
    return OwnSteps(one.rank, index, one.length_ns.astype(np.float64), own)


def _timed_steps(rank: int, steps: Sequence[Step]) -> OwnSteps | None:
    """Return the timed steps by phase, with the waiting in them. Return None if there are too few
    steps, or if a device timed them."""
    kept = [s for s in steps if s.window == "light" and s.detailed and not s.compile_ns]
    if len(kept) < MIN_STEPS or any(step.device_ns for step in kept):
        return None
    phases = {_MERGED.get(phase, phase) for step in kept for phase in step.host} | {"other"}
    own = {phase: np.zeros(len(kept)) for phase in sorted(phases)}
    for row, step in enumerate(kept):
        for phase, ns in step.host.items():
            own[_MERGED.get(phase, phase)][row] += ns
    index = np.array([step.index for step in kept], np.int64)
    return OwnSteps(rank, index, np.array([float(s.dur_ns) for s in kept]), own)


def _only(steps: OwnSteps, phases: Sequence[str]) -> OwnSteps:
    own = {phase: steps.own_ns[phase] for phase in phases}
    return OwnSteps(steps.rank, steps.index, steps.length_ns, own)


def _own(steps: OwnSteps, traced: OwnTime, waiting: frozenset[str], late: bool) -> OwnSteps:
    """Return the timed steps with only the rank's own work in the phases that wait. The share of
    work in such a phase is the one that the traced steps show.

    Tracing slows a rank's work and the waiting for it alike, but it slows no sleep and no disk. So
    the work of a late rank is at least the phase less the rank's wait in the traced steps. The
    median length of the phase counts: in a step in which a rank waits longer, it does not work
    longer."""
    own = dict(steps.own_ns)
    for phase in PHASES:
        if phase in waiting and phase in own:
            usual = float(np.median(own[phase]))
            work = usual * traced.own_share(phase)
            if late:
                work = max(work, usual - float(traced.waiting_ns[phase].mean()))
            own[phase] = np.minimum(own[phase], work)
    return OwnSteps(steps.rank, steps.index, steps.length_ns, own)


def _window(trace: Trace, steps: int) -> Window:
    if steps > 0:
        try:
            return window_of(trace, f"0-{steps - 1}")
        except UsageError:
            pass
    return window_of(trace, "all")


MIN_SHARE_OF_WAITING = 0.6
"""The smallest share of all waiting that one rank must cause by its late arrivals. Where ranks are
late by turns, the reason is noise or uneven data, and no rank is named."""
MIN_LAST_SHARE = 0.5
"""The smallest share of the collectives to which the late rank must come last."""
MAX_OTHERS_IN_FUNCTION = 0.25
"""If arrivals are not known, the other ranks may spend at most this share of the late rank's time
in the function that is named."""
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
    beside = late.beside
    return replace(_placed(case, late), beside=_placed(case, beside) if beside else None)


def _placed(case: Case, late: LateRank) -> LateRank:
    place, line, _ = seen_line(case.sources, late.cause)
    if place is None or line is None:
        return late
    return replace(late, place=f"{place.file}:{line}")


def seen_line(
    sources: SourceFiles, cause: RankPlace | None
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


def under_rank_condition(sources: SourceFiles, call: SourceCall) -> bool:
    """Return whether a call is inside an `if` whose condition asks for the rank."""
    source = sources.get(call.file)
    return source is not None and any(
        isinstance(node, ast.If)
        and node.body[0].lineno <= call.line <= (node.end_lineno or node.lineno)
        and _asks_for_rank(node.test)
        for node in ast.walk(source.module)
    )


def _asks_for_rank(test: ast.expr) -> bool:
    words = ast.unparse(test).lower()
    return any(word in words for word in ("rank", "is_main", "is_master", "master_process"))


def _only_call(sources: SourceFiles, place: Place | None, name: str) -> SourceCall | None:
    found = calls_at(sources, place, (name,))
    return found[0] if len(found) == 1 else None


def _call_of(sources: SourceFiles, cause: RankPlace, place: Place) -> SourceCall | None:
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


def _function(source: SourceFile | None, place: Place) -> Place:
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
    whole = sum(activity.ns for activity in late.doing)
    before = sum(activity.ns for activity in late.doing if activity.side == "before the trace")
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
