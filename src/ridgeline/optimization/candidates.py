"""Which changes are tried, in which order: those that answer a finding first, by what it allows to
gain; then by what the step's own budget does, which says less. What has to compile first comes last
among its equals: its trials take minutes."""

from collections.abc import Sequence

from ridgeline.changes.change import Registered, registered
from ridgeline.optimization.ladder import Candidate
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground


def candidates(
    ground: Ground, findings: Sequence[Finding], changes: Sequence[Registered] | None = None
) -> list[Candidate]:
    found = [_candidate(one, ground, findings) for one in changes or registered()]
    rules = {finding.rule for finding in findings}

    def order(one: Candidate) -> tuple[bool, bool, bool, float, str]:
        answers = bool(rules & set(one.change.answers))
        return (
            one.unable != "", not answers, one.change.slow_start, -(one.bound or 0.0),
            one.change.id,
        )  # fmt: skip

    return sorted(found, key=order)


def _candidate(one: Registered, ground: Ground, findings: Sequence[Finding]) -> Candidate:
    unable = one.able(ground)
    if not unable and one.change.saves == "memory":
        unable = "it saves memory and takes time: speed was asked for"
    answered = [f.gain_bound for f in findings if f.rule in one.change.answers]
    by_budget = one.bound(ground) if one.bound is not None and not unable else None
    known = [*answered, *([by_budget] if by_budget is not None else [])]
    options = one.choices(ground) if one.choices is not None and not unable else ()
    return Candidate(
        change=one.change,
        options=options[0] if options else {},
        unable=unable,
        bound=round(max(known), 3) if known else None,
    )
