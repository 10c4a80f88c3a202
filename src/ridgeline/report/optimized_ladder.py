"""What trying changes came to, put in order: changes tried as one are one line, those that are not
the same training stand apart, and those not tried are gathered by their reason."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Optimized, Rung, SearchCode, Total
from ridgeline.report.reasons import explain

Verdict = Literal["FASTER", "SLOWER", "SAME", "UNDECIDED", "INVALID", "NOT_APPLIED", "NOT_TRIED"]
MATTERS = 1.02
"""Less than this, up or down, is no difference that matters: the search's own threshold."""
UNTRIED = ("not applied", "not tried")
UNPROVEN = ("differs", "unknown")


class Line(Struct, frozen=True):
    """A rung of the ladder: one change, or several that were tried as one."""

    rungs: tuple[Rung, ...]

    @property
    def rung(self) -> Rung:
        """All of them were measured at once: the first one's figures are everyone's."""
        return self.rungs[0]

    @property
    def fixes(self) -> tuple[str, ...]:
        """With partners that have a line of their own for another attempt."""
        return tuple(dict.fromkeys((*(r.fix for r in self.rungs), *self.rung.together)))

    @property
    def apart(self) -> bool:
        """Not the same training: never in one column with what is."""
        return any(rung.alters == "semantics" for rung in self.rungs)

    @property
    def kept(self) -> bool:
        return self.rung.status == "kept"

    @property
    def tried(self) -> bool:
        return self.rung.status not in UNTRIED


class Group(Struct, frozen=True):
    """Changes that share a status and a reason."""

    status: str
    why: str
    rungs: tuple[Rung, ...]


def lines(found: Optimized) -> tuple[Line, ...]:
    """In the record's order, which is the order in which they were tried."""
    made: list[Line] = []
    taken: set[int] = set()
    for at, rung in enumerate(found.rungs):
        if at in taken:
            continue
        same = [
            place
            for place in range(at + 1, len(found.rungs) if rung.together else 0)
            if place not in taken and _as_one(rung, found.rungs[place])
        ]
        taken.update(same)
        made.append(Line((rung, *(found.rungs[place] for place in same))))
    return tuple(made)


def _as_one(rung: Rung, other: Rung) -> bool:
    """The other is its partner, and both have the outcome of one trial."""
    alike = (other.status, other.ratio, other.reason) == (rung.status, rung.ratio, rung.reason)
    partners = {other.fix, *other.together} == {rung.fix, *rung.together}
    return alike and partners and other.fix != rung.fix


def tried(found: Optimized) -> tuple[Line, ...]:
    return tuple(line for line in lines(found) if line.tried and not line.apart)


def apart(found: Optimized) -> tuple[Line, ...]:
    return tuple(line for line in lines(found) if line.tried and line.apart)


def path(found: Optimized) -> tuple[Line, ...]:
    """What was on the way to the end: kept, or kept once and dropped later."""
    return tuple(
        line
        for line in tried(found)
        if line.kept or (line.rung.status == "dropped" and line.rung.ratio is not None)
    )


def untried(found: Optimized) -> tuple[Group, ...]:
    """Largest first: one reason for nine changes is said once."""
    made: dict[tuple[str, str], list[Rung]] = {}
    for rung in found.rungs:
        if rung.status in UNTRIED:
            made.setdefault((rung.status, _shared(rung)), []).append(rung)
    groups = [Group(status, why, tuple(rungs)) for (status, why), rungs in made.items()]
    return tuple(sorted(groups, key=lambda group: -len(group.rungs)))


def _shared(rung: Rung) -> str:
    """The reason without what in it is this change's alone: what could gain 1.00 × and what could
    gain 1.01 × were left for one reason."""
    if rung.reason.code in (SearchCode.BOUND_TOO_SMALL, SearchCode.BOUND_WITHIN_NOISE):
        return "too little to gain"
    if rung.reason.code == SearchCode.NEEDS_ALLOW:
        return "it alters what is computed: --allow"
    return explain(rung.reason)


def verdict(rung: Rung) -> Verdict:
    """Of what the goal measures: FASTER is better by it. A change that was kept once and dropped
    has the verdict of its own trial."""
    if rung.status == "not tried":
        return "NOT_TRIED"
    if rung.status == "not applied":
        return "NOT_APPLIED"
    if rung.status == "kept":
        return "FASTER"
    if rung.ratio is None or (rung.parity is not None and rung.parity.equality in UNPROVEN):
        return "INVALID"
    return rung.verdict or of_ratio(rung.ratio)


def given_up(rung: Rung) -> bool:
    """A first pair was so much worse that there was no second: its interval need not leave out 1,
    so it is not known to be worse. 0.67 × [0.17, 2.69] had been 1.39 × in two pairs before."""
    return rung.ratio is not None and _ended(rung, SearchCode.SLOWER) and rung.ratio.ci_high >= 1


def likely(rung: Rung) -> bool:
    """Its interval leaves out 1, but so few pairs are asked for more than 95 %: 98.8 % of three."""
    return rung.ratio is not None and _ended(rung, SearchCode.UNDECIDED) and rung.ratio.ci_low > 1


def _ended(rung: Rung, code: SearchCode) -> bool:
    return rung.reason.code == code


def of_ratio(ratio: Ratio) -> Verdict:
    if ratio.ci_low > 1 and ratio.value >= MATTERS:
        return "FASTER"
    if ratio.ci_high < 1 and ratio.value <= 1 / MATTERS:
        return "SLOWER"
    within = ratio.ci_low >= 1 / MATTERS and ratio.ci_high <= MATTERS
    return "SAME" if within else "UNDECIDED"


def left_out(found: Optimized) -> tuple[tuple[Rung, Ratio], ...]:
    """Each kept change with what the whole is to the whole without it, the largest first: those of
    which that was measured."""
    known = [
        (rung, rung.without)
        for rung in found.rungs
        if rung.status == "kept" and rung.alters != "semantics" and rung.without is not None
    ]
    return tuple(sorted(known, key=lambda pair: -pair[1].value))


def confirmed(found: Optimized) -> bool:
    """Fresh processes were better, and computed the same."""
    total = found.total
    return total is not None and better(total) and total.parity.equality not in UNPROVEN


def in_process(found: Optimized) -> bool:
    """A step function, tried in the process that called: no process is fresh there, nothing is
    written."""
    return found.form == "function"


def interrupted(found: Optimized) -> bool:
    return found.interrupted


def better(total: Total) -> bool:
    return total.confirmed and total.ratio.ci_low > 1


def titles(rungs: Sequence[Rung]) -> str:
    return " + ".join(titled(rung) for rung in rungs)


def titled(rung: Rung) -> str:
    options = ", ".join(f"{key} {value}" for key, value in rung.options.items())
    return f"{rung.title} ({options})" if options else rung.title
