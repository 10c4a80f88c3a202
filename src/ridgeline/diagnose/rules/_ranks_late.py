"""Which rank the others wait for: by when it came to the collectives, where clocks can be aligned;
else by a function that it alone spends time in, while the others are longer in collectives."""

import math

from msgspec import Struct

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.shares import exchange_room
from ridgeline.records.collective_site import RankPlace
from ridgeline.records.trace_ranks import Ranks, RankTime

LEAST = 0.03
"""Of the step the others wait: ranks are never exactly together."""
ITS_OWN = 0.6
"""Of all waiting: what one rank must be the cause of. Where they are late by turns it is noise, or
uneven data, and nobody's fault."""
OFTEN = 0.5
"""Of the collectives: in which it came last."""
EXPLAINS = 0.4
"""Of the lateness: what a function must account for to be named as its cause."""
ALONE_IN_IT = 0.25
"""Of its time there: what the others may spend in the same function."""
MAX_TRACED_SLOWDOWN = 2.7
"""A step traced with Python stacks, as a multiple of an untraced one: the most that was seen in 15
programs on an H200."""
BEFORE = "before its trace begins"


class Lateness(Struct, frozen=True, kw_only=True):
    rank: RankTime
    waited_ns: float
    """In an untraced step, by each other rank."""
    share: float
    scale: float = 1.0
    """Time in the untraced step over the same in the traced one."""
    cause: RankPlace | None = None
    last: int = 0
    """Collectives it came last to."""
    collectives: int = 0
    """0: clocks could not be aligned, and arrivals are not known."""


def lateness(case: Case, across: Ranks) -> Lateness | None:
    if len(across.ranks) < 2:
        return None
    if across.trust.confidence == "unreliable":
        return _by_function(case, across)
    return _by_arrival(case, across)


def _by_arrival(case: Case, across: Ranks) -> Lateness | None:
    late = max(across.ranks, key=lambda rank: rank.caused_wait_ns)
    total = sum(rank.caused_wait_ns for rank in across.ranks)
    every = max(sum(row.count for row in across.collectives), 1)
    if not total or late.caused_wait_ns < ITS_OWN * total or late.late_count < OFTEN * every:
        return None
    waited = late.caused_wait_ns / (len(across.ranks) - 1) * _recorded(late) / _steps(case)
    cause = _explains(case, late, waited)
    if cause is None and not case.on_gpu:
        return None  # by chance of the scheduler
    most = max(waited, cause.ns - cause.others_ns) if cause is not None else waited
    share, scale = _untraced(case, late, most)
    if share < LEAST:
        return None
    return Lateness(
        rank=late, waited_ns=waited * scale, share=share, scale=scale, cause=cause,
        last=late.late_count, collectives=every,
    )  # fmt: skip


def _by_function(case: Case, across: Ranks) -> Lateness | None:
    """The other ranks must be the longer in collectives for it."""
    for one in case.rank_places:
        late = next((rank for rank in across.ranks if rank.rank == one.rank), None)
        if late is None or one.others_ns > ALONE_IN_IT * one.ns:
            continue
        others = [r.communication_ns for r in across.ranks if r.rank != one.rank]
        longer = (min(others) - late.communication_ns) / _steps(case)
        excess = one.ns - one.others_ns
        share, scale = _untraced(case, late, excess)
        if share >= LEAST and longer >= EXPLAINS * excess:
            return Lateness(
                rank=late, waited_ns=longer * scale, share=share, scale=scale, cause=one
            )
    return None


def _waited_in_all(case: Case, across: Ranks, late: RankTime) -> float:
    """Return the most that another rank waits in the collectives of a step, for whichever rank: the
    step cannot become shorter by more."""
    waits = [rank.wait_ns for rank in across.ranks if rank.rank != late.rank]
    known = [ns for ns in waits if ns is not None]
    return max(known) / _steps(case) if known else math.inf


def _recorded(late: RankTime) -> float:
    """Of its lateness: inside its trace. Recording begins at another moment on each rank."""
    whole = sum(ns for _, ns in late.doing)
    before = sum(ns for name, ns in late.doing if name == BEFORE)
    return 1 - before / whole if whole else 1.0


def _explains(case: Case, late: RankTime, waited: float) -> RankPlace | None:
    """The function the late rank spends the time in, and the others do not."""
    own = [one for one in case.rank_places if one.rank == late.rank]
    best = max(own, key=lambda one: one.ns - one.others_ns, default=None)
    if best is None or best.others_ns > best.ns / 2:
        return None
    return best if best.ns - best.others_ns >= EXPLAINS * waited else None


def _steps(case: Case) -> int:
    return max(case.sites.steps, 1)


def _untraced(case: Case, late: RankTime, ns: float) -> tuple[float, float]:
    """Return what `ns` of a traced step is of the untraced one: its share, and the factor between
    the two times. A rank's extra work is seldom what tracing slows, so it is taken as long as it
    is; but no longer than untraced steps have room for, if traced ones do not show more."""
    traced_ns = max(late.window_ns, case.across_ns, 1) / _steps(case)
    if not case.times.mean_ms or case.times.mean_ms * 1e6 > traced_ns:
        return ns / traced_ns, 1.0
    step_ns = case.times.mean_ms * 1e6
    share = max(min(ns / step_ns, _room(case)), ns / traced_ns)
    return share, share * step_ns / ns if ns else 1.0


def _room(case: Case) -> float:
    """Of the untraced step: what the model's own work leaves for being late."""
    if case.on_gpu:
        return 1 - case.share_of("compute") - case.share_of("memory")
    return exchange_room(case.times)
