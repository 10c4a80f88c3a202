"""Which changes are tried, in which order: those that answer a finding first, by what it allows to
gain; then by what the step's own budget does, which says less. What has to compile comes last: its
trials take long, and it compiles what the others have made of the program. But where the device
waits for launches, nothing pays before they are gone: then CUDA graphs come first."""

from collections.abc import Sequence

from ridgeline.fixes.change import Registered, of, registered
from ridgeline.optimization.candidate import Candidate
from ridgeline.records.facts import because
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Goal, SearchCode
from ridgeline.records.trial import Asked

BUSY = 0.85
"""A device that works less of the step waits for launches, or for something else of the host."""
GRAPHS = "cuda-graph-candidate"


def candidates(
    ground: Ground,
    findings: Sequence[Finding],
    changes: Sequence[Registered] | None = None,
    *,
    goal: Goal = "speed",
    kept: Sequence[Asked] = (),
) -> list[Candidate]:
    """`kept`: what is on already, which may make others possible."""
    for one in kept:
        after = of(one.change).after
        ground = after(ground, one.options) if after is not None else ground
    found = [_candidate(one, ground, findings, goal) for one in changes or registered()]
    rules = {finding.rule for finding in findings}

    # What waits for batches or copies does not wait for launches.
    known = ground.busy + ground.input_share + ground.copy_share
    launches = ground.device == "cuda" and known < BUSY

    def order(one: Candidate) -> tuple[bool, bool, bool, bool, int, bool, float, str]:
        change = one.change
        graphs = launches and GRAPHS in change.answers and change.longer == 1
        return (
            one.unable is not None,
            not (goal == "memory" and change.saves == "memory"),
            not graphs,
            change.slow_start,
            change.longer,
            not rules & set(change.answers),
            -one.promise,
            change.id,
        )

    return sorted(found, key=order)


def _bound(
    one: Registered, ground: Ground, findings: Sequence[Finding]
) -> tuple[float | None, float]:
    """Return the bound of a change, and the gain that is hoped for. The gain of a finding raises a
    bound, but does not set one where there is none: a change may do more than mend that finding."""
    answered = [f.gain_bound for f in findings if f.rule in one.change.answers]
    by_budget = one.bound(ground) if one.bound is not None else None
    promise = round(max([1.0, *answered, by_budget or 1.0]), 3)
    return promise if by_budget is not None else None, promise


def _candidate(
    one: Registered, ground: Ground, findings: Sequence[Finding], goal: Goal
) -> Candidate:
    detail = one.able(ground)
    unable = because(SearchCode.CANNOT_HELP, detail=detail) if detail else None
    if unable is None and one.change.saves == "memory" and goal != "memory":
        unable = because(SearchCode.SAVES_MEMORY, goal=goal)
    able = unable is None
    bound, promise = _bound(one, ground, findings) if able and goal != "memory" else (None, 1)
    options = one.choices(ground) if one.choices is not None and able else ()
    return Candidate(
        change=one.change,
        options=options[0] if options else {},
        unable=unable,
        bound=bound,
        promise=promise,
        others=options[1:],
        brings=one.brings(ground, options[0]) if one.brings is not None and options else "",
    )
