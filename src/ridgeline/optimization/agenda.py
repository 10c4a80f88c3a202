"""What is to be tried: which change comes next, which may not be tried and why, what goes together,
and how much of the time each may take."""

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.rungs import Key, key
from ridgeline.optimization.search import Search
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Goal, SearchCode
from ridgeline.records.trial import Asked
from ridgeline.statistics.pooled import MOST

LEAST_BOUND = 1.02
MOST_SAVED = 0.97
"""More is no bound: it was reckoned on the unchanged program."""
SLOW = 4
"""Shares of the time that one which compiles first has."""
PAIRS = 1.5
"""That one which is quick takes, its other half often run already."""
WORTH = 1.25
"""What is put off for a compiler may gain less: a loader's changes, as the compiler waits for
batches too; and what is usual goes with it. Alone that takes minutes to tell from nothing, beside a
compiler it takes none, and each is left out once in the end."""
HOPED = 4.0
"""What all that is usual may gain together, at the most, before it is known: what takes 1.5 % of a
step now takes 6 % of what is left then."""
WORSE = 0.8
"""A change worse than this alone is not put on again beside a compiler."""
COMPILE = "compile"
"""The slot."""
BESIDE_COMPILERS = ("model", "global", "optimizer")

Ask = Callable[[Sequence[Asked]], Sequence[Candidate]]
"""Given what is kept: the changes that may be tried, in their order, and those that may not."""


class Wants(Struct, frozen=True, kw_only=True):
    """What is wanted of the search."""

    goal: Goal = "speed"
    keep_exact: bool = False
    batch: bool = False
    """Whether the batch size may grow, in a column of its own."""
    allow: tuple[str, ...] = ()
    """Fixes that alter what is computed, asked for by name."""
    as_arguments: bool = False
    """Whether the caller writes `allow=` and `batch=` in Python, not `--allow` and `--batch`."""


class Agenda:
    def __init__(self, search: Search, ask: Ask, wants: Wants) -> None:
        self._search = search
        self._ask = ask
        self._wants = wants
        self.again: list[Candidate] = []
        """Tried, equal and not better: with another bottleneck they may be."""
        self._twice: set[Key] = set()
        """Asked for again: not a third time."""

    def all(self) -> Sequence[Candidate]:
        """With what is kept now: that may make others possible."""
        return self._ask([one.asked for one in self._search.kept])

    def next(self) -> Candidate | None:
        coming = [one for one in self.all() if self._open(one)]
        found = self._at_once(coming) or next(iter(self._not_waiting(coming)), None)
        if found is not None and found in self._search.table:
            self._twice.add(key(found))
        return found

    def without_rung(self) -> list[Candidate]:
        """With any options: with four workers kept it is asked for with none, and would stand there
        again as one that cannot win."""
        known = {rung.fix for rung in self._search.table.rungs()}
        return [one for one in self.all() if one.fix.id not in known]

    def unable(self, one: Candidate, gained: float = 1.0) -> Reason | None:
        """Return why a fix may not be tried; None if it may. `gained` is the speedup of the fixes
        that are applied with it."""
        fix = one.fix
        if one.unable is not None:
            return one.unable
        if self._wants.keep_exact and fix.alters != "nothing":
            return because(SearchCode.NOT_EXACT, alters=fix.alters)
        if self._wants.keep_exact and fix.redraws:
            return because(SearchCode.NOT_EXACT, alters="random draws")
        if fix.alters == "semantics" and fix.id not in self._wants.allow:
            return self._not_allowed(fix.id)
        spared = [c for c in self._search.kept if c.fix.id in fix.spare_beside]
        if spared:
            return because(SearchCode.KEPT_DOES_MORE, title=spared[0].fix.title)
        bound = self.bound([one], gained)
        if bound is None or self._wants.goal == "memory" or self._search.bounds_refuted:
            return None
        if bound < LEAST_BOUND:
            return because(SearchCode.BOUND_TOO_SMALL, bound=bound)
        if bound < self._told() and not fix.usual:  # which may gain more beside a compiler
            return because(SearchCode.BOUND_WITHIN_NOISE, bound=bound)
        return None

    def _not_allowed(self, fix: str) -> Reason | None:
        if fix == "larger-batch":
            if self._wants.batch:
                return None
            by_argument = SearchCode.NEEDS_BATCH_ARGUMENT
            return because(by_argument if self._wants.as_arguments else SearchCode.NEEDS_BATCH)
        by_argument = SearchCode.NEEDS_ALLOW_ARGUMENT
        return because(by_argument if self._wants.as_arguments else SearchCode.NEEDS_ALLOW, fix=fix)

    def _told(self) -> float:
        """The least gain that as many pairs as are ever run could tell from nothing here."""
        if len(self._search.judge.baseline) < 2:
            return 0.0
        return math.exp(2 * self._search.spreads.now(self._search.measure).spread / math.sqrt(MOST))

    def bound(self, tried: Sequence[Candidate], gained: float = 1.0) -> float | None:
        """Return the most that these changes can gain together on top of what is kept; None if
        there is no bound. Together they save at most the sum of what each may save alone. That
        saving is a larger share of a step that has become shorter: an update of 3 ms is 1.5 % of
        194 ms and 12 % of 24 ms."""
        alone = [one.bound for one in tried if one.bound is not None]
        if len(alone) < len(tried):
            return None
        saved = sum(1 - 1 / bound for bound in alone) * self._search.gained * gained
        return 1 / (1 - saved) if saved < MOST_SAVED else None

    def share_s(self, one: Candidate) -> float:
        """Of the time, for the next: what is left for all that are to come, the slow with more."""
        later = [other for other in self.all() if self._open(other) and key(other) != key(one)]
        mine, *others = (SLOW if c.fix.slow_start else 1 for c in (one, *later))
        free_s = self._search.bench.left_s() - self._search.reserve_s()
        return free_s * mine / (mine + sum(others))

    def partners(self, one: Candidate) -> Iterator[Candidate]:
        """What it pays with and was not tried yet, as it may be put on beside it."""
        search, slot = self._search, one.fix.slot
        for other in self._ask([c.asked for c in (*search.kept, one)]):
            if slot and other.fix.slot == slot:
                continue
            if other.fix.group == "global" and (self.bound([one]) or WORTH) < WORTH:
                continue  # cores need not be shared out for what gains little anyway
            if other.fix.id in one.fix.together and other not in search.table:
                # How much it may gain alone says nothing of what it does for the other.
                unable = self.unable(replace(other, bound=None))
                if unable is None and search.time_for(search.kept, [*search.kept, one, other]):
                    yield other

    def companions(self, one: Candidate) -> list[Candidate]:
        """What was tried and did not fall far behind; what is usual and was not tried yet."""
        table = self._search.table
        tried = [
            c
            for c in self.again
            if c.fix.group in BESIDE_COMPILERS
            and (ratio := table[c].ratio) is not None
            and ratio.value > WORSE
            and (ratio.ci_high > 1 or c.fix.usual)
        ]
        found = self._beside(self._beside([one], tried), self._usual())
        # and what those make possible: a padded vocabulary is for products in 16 bits
        return self._beside(found, self._usual(found))[1:]

    def _usual(self, beside: Sequence[Candidate] = ()) -> list[Candidate]:
        with_these = self._ask([c.asked for c in (*self._search.kept, *beside)])
        hoped = min(max((self.bound([c]) or HOPED for c in beside), default=1.0), HOPED)
        return [c for c in with_these if c.fix.usual and self._open(c, hoped)]

    def _beside(self, on: list[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
        """`on`, and those of `others` that go together with it."""
        found = list(on)
        for other in others:
            taken = {c.fix.slot for c in (*self._search.kept, *found) if c.fix.slot}
            if other not in found and other.fix.slot not in taken:
                found.append(other)
        return found

    def _open(self, one: Candidate, gained: float = 1.0) -> bool:
        known = one in self._search.table and not self._newly_possible(one)
        return not known and one.fix.id != "larger-batch" and self.unable(one, gained) is None

    def _newly_possible(self, one: Candidate) -> bool:
        """It found nothing to change, and what it pays with has been kept since."""
        rung = self._search.table[one]
        new = {c.fix.id for c in self._search.kept} - set(rung.beside)
        asked_again = rung.status == "not applied" and key(one) not in self._twice
        return asked_again and bool(new & set(one.fix.together))

    def _not_waiting(self, coming: Sequence[Candidate]) -> Sequence[Candidate]:
        """Without those that go with the compiler that is to come, where it can be paid for."""
        first = self._compiler(coming)
        if first is None or self._search.bench.left_s() < self._compiler_s(first):
            return coming
        on = {one.fix.id for one in self._search.kept}

        def waits(one: Candidate) -> bool:
            bound = self.bound([one])
            small = bound is not None and bound < WORTH
            little = not on.isdisjoint(one.fix.little_beside)
            return one.fix.usual and not compiles(one) and (small or little)

        return [one for one in coming if not waits(one)]

    def _compiler(self, coming: Sequence[Candidate]) -> Candidate | None:
        """The first that is to come, where none was tried."""
        table = self._search.table
        tried = any(one.fix.slot == COMPILE and one in table for one in self.all())
        return None if tried else next((one for one in coming if compiles(one)), None)

    def _compiler_s(self, first: Candidate) -> float:
        """One trial, and what confirms it: what is compiled once is found ready then."""
        search = self._search
        return search.bench.cost_s(asked([*search.kept, first])) + search.confirming_s(search.kept)

    def _at_once(self, coming: Sequence[Candidate]) -> Candidate | None:
        """Where the time is too short to try each before something is compiled: that first, with
        all that is usual, if nothing else promises more and it can still be confirmed."""
        search, first = self._search, self._compiler(coming)
        if first is None or first is coming[0]:
            return None
        quick = [one for one in self._not_waiting(coming) if not one.fix.slow_start]
        each_s = PAIRS * sum(search.bench.cost_s(asked([*search.kept, one])) for one in quick)
        needed_s = self._compiler_s(first)
        if not needed_s <= search.bench.left_s() < needed_s + each_s:
            return None
        whole = [first, *self.companions(first)]
        others = [one.promise for one in coming if one not in whole]
        feeding = [one.promise for one in coming if one.fix.group == "loader"]
        if max(feeding, default=1.0) >= WORTH:
            return None
        return first if max(one.promise for one in whole) >= max(others, default=1.0) else None


def compiles(one: Candidate) -> bool:
    return one.fix.slow_start and one.fix.slot == COMPILE
