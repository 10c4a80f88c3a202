"""The ladder of a search: attempts in the order they were made, their verdicts, and how far each
stands from the baseline."""

import math
from functools import cached_property
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Ratio, Verdict
from ridgeline.records.optimized import Optimized, Rung, SearchCode

RungVerdict = Verdict | Literal["NOT_APPLIED", "NOT_TRIED"]
MIN_FACTOR = 1.02
"""A smaller factor, up or down, is no difference that matters: the search's own threshold."""
UNTRIED = ("not applied", "not tried")
Contested = tuple[frozenset[str], tuple[str, ...], Ratio | None]


class Attempt(Struct, frozen=True):
    """One fix, or several that were tried as one."""

    rungs: tuple[Rung, ...]

    @property
    def rung(self) -> Rung:
        """The first rung. All of them were measured at once, so that its figures are everyone's."""
        return self.rungs[0]

    @property
    def fixes(self) -> tuple[str, ...]:
        """The fixes, with partners that have an attempt of their own besides."""
        return tuple(dict.fromkeys((*(r.fix for r in self.rungs), *self.rung.together)))

    @property
    def is_kept(self) -> bool:
        return self.rung.status == "kept"

    @property
    def is_tried(self) -> bool:
        return self.rung.status not in UNTRIED

    @property
    def alters_training(self) -> bool:
        """Whether it is not the same training, so that it never stands in one column with what
        is."""
        return any(rung.alters == "semantics" for rung in self.rungs)

    @property
    def is_on_the_way(self) -> bool:
        """Whether it was kept, at least once: the ratios after it were measured on top of it."""
        return self.rung.ratio is not None and self.rung.status in ("kept", "dropped")

    @property
    def contested(self) -> Contested:
        """What was measured. Of fixes tried as one some may be dropped later: that makes two
        attempts with one gain."""
        rung = self.rung
        return frozenset((rung.fix, *rung.together)), rung.beside, rung.ratio


class Ladder:
    def __init__(self, optimized: Optimized) -> None:
        self.optimized = optimized

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts in the record's order, which is the order in which they were made."""
        rungs = self.optimized.rungs
        made: list[Attempt] = []
        taken: set[int] = set()
        for first, rung in enumerate(rungs):
            if first in taken:
                continue
            partners = [
                place
                for place in range(first + 1, len(rungs) if rung.together else 0)
                if place not in taken and _were_one(rung, rungs[place])
            ]
            taken.update(partners)
            made.append(Attempt((rung, *(rungs[place] for place in partners))))
        return tuple(made)

    @property
    def tried(self) -> tuple[Attempt, ...]:
        return tuple(a for a in self.attempts if a.is_tried and not a.alters_training)

    @property
    def other_training(self) -> tuple[Attempt, ...]:
        return tuple(a for a in self.attempts if a.is_tried and a.alters_training)

    @property
    def path(self) -> tuple[Attempt, ...]:
        """The attempts on the way to the end: kept, or kept once and dropped later."""
        return tuple(a for a in self.tried if a.is_kept or a.is_on_the_way)

    @property
    def kept(self) -> tuple[Attempt, ...]:
        return tuple(a for a in self.attempts if a.is_kept and not a.alters_training)

    @property
    def left_out(self) -> tuple[tuple[Rung, Ratio], ...]:
        """Each kept fix with the whole against the whole without it, the largest first; only those
        of which that was measured."""
        known = [
            (rung, rung.without)
            for rung in self.optimized.rungs
            if rung.status == "kept" and rung.alters != "semantics" and rung.without is not None
        ]
        return tuple(sorted(known, key=lambda pair: -pair[1].value))

    def cumulative(self, rung: Rung) -> float | None:
        """Return how many times better than the baseline a rung is; None where a step is not the
        same step.

        The ratios on the way are multiplied. Each is of pairs that ran beside the rung before it,
        so that a machine that was disturbed for minutes is in none of them: the baseline's own
        step, measured minutes before, made 10.1 × of what was 4.63 ×.
        """
        if rung.alters == "semantics":
            return None
        whole, on_the_way = 1.0, dict[Contested, float]()
        for attempt in self.attempts:
            known = on_the_way.get(attempt.contested)
            reached = known if known is not None else _multiplied(whole, attempt.rung.ratio)
            if rung in attempt.rungs:
                return reached
            if attempt.is_on_the_way and reached is not None:
                whole = on_the_way[attempt.contested] = reached
        return None

    @cached_property
    def product(self) -> float | None:
        """What was kept in the end, by the ratios of the rungs; what was dropped again is divided
        away. None where nothing was kept."""
        total = self.optimized.total
        wanted = total.fixes if total is not None else ()
        taken: set[Contested] = set()
        whole, any_kept = 1.0, False
        for attempt in self.attempts:
            # Another batch size is tried after the whole, and is no part of it.
            is_part = not attempt.alters_training or attempt.rung.fix in wanted
            if not attempt.is_on_the_way or not is_part:
                continue
            any_kept = any_kept or attempt.is_kept
            if attempt.contested not in taken:
                taken.add(attempt.contested)
                whole = _multiplied(whole, attempt.rung.ratio) or whole
            if not attempt.is_kept:
                dropped = [rung.without for rung in attempt.rungs if rung.without is not None]
                whole /= math.prod(ratio.value for ratio in dropped if _is_factor(ratio.value))
        return whole if any_kept and _is_factor(whole) else None

    @property
    def disagrees(self) -> bool:
        """Whether the product of the rungs lies outside the interval of the whole, by a difference
        that matters."""
        total = self.optimized.total
        if total is None or self.product is None:
            return False
        ratio = total.ratio
        if not _is_factor(ratio.value) or ratio.ci_low <= self.product <= ratio.ci_high:
            return False
        return not 1 / MIN_FACTOR <= self.product / ratio.value <= MIN_FACTOR


def verdict_of_rung(rung: Rung) -> RungVerdict:
    """Return the verdict by what the goal measures. A fix that was kept once and dropped has the
    verdict of its own contest."""
    if rung.status == "not tried":
        return "NOT_TRIED"
    if rung.status == "not applied":
        return "NOT_APPLIED"
    if rung.status == "kept":
        return "FASTER"
    if rung.ratio is None or (rung.parity is not None and not rung.parity.is_proven):
        return "INVALID"
    return rung.verdict or verdict_of_ratio(rung.ratio)


def verdict_of_ratio(ratio: Ratio) -> Verdict:
    if ratio.ci_low > 1 and ratio.value >= MIN_FACTOR:
        return "FASTER"
    if ratio.ci_high < 1 and ratio.value <= 1 / MIN_FACTOR:
        return "SLOWER"
    is_same = ratio.ci_low >= 1 / MIN_FACTOR and ratio.ci_high <= MIN_FACTOR
    return "SAME" if is_same else "UNDECIDED"


def lost_first_pair(rung: Rung) -> bool:
    """Return whether a first pair was so much worse that no second was run. Its interval need not
    leave out 1, so that the fix is not known to be worse: 0.67 × [0.17, 2.69] had been 1.39 × in
    two pairs before."""
    is_slower = rung.reason.code == SearchCode.SLOWER
    return rung.ratio is not None and is_slower and rung.ratio.ci_high >= 1


def is_nearly_proven(rung: Rung) -> bool:
    """Return whether the interval leaves out 1, but the pairs are so few that more than 95 % is
    asked of them: 98.8 % of three."""
    is_undecided = rung.reason.code == SearchCode.UNDECIDED
    return rung.ratio is not None and is_undecided and rung.ratio.ci_low > 1


def _were_one(rung: Rung, other: Rung) -> bool:
    """Return whether the other is its partner, and both have the outcome of one trial."""
    alike = (other.status, other.ratio, other.reason) == (rung.status, rung.ratio, rung.reason)
    partners = {other.fix, *other.together} == {rung.fix, *rung.together}
    return alike and partners and other.fix != rung.fix


def _multiplied(whole: float, ratio: Ratio | None) -> float | None:
    return whole * ratio.value if ratio is not None and _is_factor(ratio.value) else None


def _is_factor(value: float) -> bool:
    return math.isfinite(value) and value > 0
