"""The agenda of a search: which fix comes next, which may not be tried and why, which go together,
and how much of the time each may take."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.optimization.candidates import LARGER_BATCH, Candidate
from ridgeline.optimization.race import Standing
from ridgeline.optimization.rungs import Key, key
from ridgeline.optimization.search import Search
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Goal, SearchCode
from ridgeline.records.trial import Asked
from ridgeline.statistics.pooled import MAX_PAIRS

MIN_BOUND = 1.02
"""A fix that can gain less is not tried."""
MAX_SAVED_SHARE = 0.97
"""A larger saving is no bound, because it was computed for the unchanged program."""
COMPILING_SHARES = 4
"""Shares of the time that a fix which compiles first gets; any other gets one."""
TRIALS_PER_CONTEST = 1.5
"""Trials that a quick fix takes: the other half of its pair has often run already."""
WORTH_ALONE = 1.25
"""A fix that is bound to gain less may wait for a compiler, and be tried together with it: a fix of
the loader, because the compiler waits for batches too, or one that is usually right. To tell such a
gain from nothing alone takes minutes, and beside a compiler none; each is left out once in the end.
"""
MAX_HOPED_GAIN = 4.0
"""The most that the usual fixes are hoped to gain together, before it is known: what takes 1.5 % of
a step now takes 6 % of the step that is left then."""
MIN_RATIO_BESIDE_COMPILER = 0.8
"""A fix that is slower than this alone is not tried again beside a compiler."""
COMPILE = "compile"
"""The slot of fixes that compile."""
BESIDE_COMPILERS = ("model", "global", "optimizer")


class Ask(Protocol):
    def __call__(
        self, kept: Sequence[Asked], /, standing: Standing | None = None
    ) -> Sequence[Candidate]:
        """Return all fixes in the order in which they should be tried. `standing` says how what is
        kept does in a race; None stands for the latest trial."""


class SearchSettings(Struct, frozen=True, kw_only=True):
    """Says what is wanted of the search."""

    goal: Goal = "speed"
    keep_exact: bool = False
    fit_bytes: int = 0
    """A peak of memory to come below: the search ends with the first set of fixes that does. 0 for
    none."""
    batch: bool = False
    """Whether the batch size may grow, in a column of its own."""
    allow: tuple[str, ...] = ()
    """Fixes that alter what is computed, asked for by name."""
    as_arguments: bool = False
    """Whether the caller writes `allow=` and `batch=` in Python, not `--allow` and `--batch`."""


class Agenda:
    def __init__(self, search: Search, ask: Ask, settings: SearchSettings) -> None:
        self._search = search
        self._ask = ask
        self._settings = settings
        self.again: list[Candidate] = []
        """Fixes that were equal and not better: with another bottleneck they may be."""
        self._tried_twice: set[Key] = set()

    def all(self) -> Sequence[Candidate]:
        """Return all fixes with what is kept now, which may make others possible."""
        return self._ask([one.asked for one in self._search.kept])

    def ask_beside(
        self, kept: Sequence[Candidate], standing: Standing | None
    ) -> Sequence[Candidate]:
        """Return all fixes as they may be raced beside `kept`."""
        return self._ask([one.asked for one in kept], standing=standing)

    def next(self) -> Candidate | None:
        coming = [one for one in self.all() if self._is_open(one)]
        chosen = self._compiler_at_once(coming) or next(iter(self._not_waiting(coming)), None)
        if chosen is not None and chosen in self._search.rungs:
            self._tried_twice.add(key(chosen))
        return chosen

    def without_rung(self) -> list[Candidate]:
        """Return the fixes that have no rung with any options. With four workers kept, the fix is
        asked for without options, and would stand there again as one that cannot help."""
        known = {rung.fix for rung in self._search.rungs.all()}
        return [one for one in self.all() if one.fix.id not in known]

    def unable(self, one: Candidate, gained: float = 1.0) -> Reason | None:
        """Return why a fix may not be tried; None if it may. `gained` is the speedup of the fixes
        that are applied with it."""
        reason = self.forbidden(one, self._search.kept)
        if reason is not None:
            return reason
        bound = self.bound([one], gained)
        if bound is None or self._settings.goal == "memory" or self._search.bounds_refuted:
            return None
        if bound < MIN_BOUND:
            return because(SearchCode.BOUND_TOO_SMALL, bound=bound)
        if bound < self._min_detectable_gain() and not one.fix.usual:
            return because(SearchCode.BOUND_WITHIN_NOISE, bound=bound)
        return None

    def forbidden(self, one: Candidate, kept: Sequence[Candidate]) -> Reason | None:
        """Return why a fix may not be tried beside `kept`, whatever it could gain."""
        fix = one.fix
        if one.unable is not None:
            return one.unable
        if self._settings.keep_exact and fix.alters != "nothing":
            return because(SearchCode.NOT_EXACT, alters=fix.alters)
        if self._settings.keep_exact and fix.redraws:
            return because(SearchCode.NOT_EXACT, alters="random draws")
        if fix.alters == "semantics" and fix.id not in self._settings.allow:
            return self._not_allowed(fix.id)
        spared = [c for c in kept if c.fix.id in fix.spare_beside]
        return because(SearchCode.KEPT_DOES_MORE, title=spared[0].fix.title) if spared else None

    def _not_allowed(self, fix: str) -> Reason | None:
        as_arguments = self._settings.as_arguments
        if fix != LARGER_BATCH:
            code = SearchCode.NEEDS_ALLOW_ARGUMENT if as_arguments else SearchCode.NEEDS_ALLOW
            return because(code, fix=fix)
        if self._settings.batch:
            return None
        return because(SearchCode.NEEDS_BATCH_ARGUMENT if as_arguments else SearchCode.NEEDS_BATCH)

    def _min_detectable_gain(self) -> float:
        """Return the least gain that the largest number of pairs could tell from nothing here."""
        if len(self._search.judge.baseline) < 2:
            return 0.0
        spread = self._search.noise.now(self._search.clock(self._search.measure)).spread
        return math.exp(2 * spread / math.sqrt(MAX_PAIRS))

    def bound(self, tried: Sequence[Candidate], gained: float = 1.0) -> float | None:
        """Return the most that these fixes can gain together on top of what is kept; None if there
        is no bound. Together they save at most the sum of what each may save alone. That saving is
        a larger share of a step that has become shorter: an update of 3 ms is 1.5 % of 194 ms and
        12 % of 24 ms."""
        alone = [one.bound for one in tried if one.bound is not None]
        if len(alone) < len(tried):
            return None
        saved = sum(1 - 1 / bound for bound in alone) * self._search.gained * gained
        return 1 / (1 - saved) if saved < MAX_SAVED_SHARE else None

    def share_s(self, one: Candidate) -> float:
        """Return the time for the next fix: its share of what is left for all that are to come."""
        later = [other for other in self.all() if self._is_open(other) and key(other) != key(one)]
        mine, *others = (COMPILING_SHARES if c.fix.slow_start else 1 for c in (one, *later))
        free_s = self._search.bench.left_s() - self._search.reserve_s()
        return free_s * mine / (mine + sum(others))

    def partners(self, one: Candidate) -> Iterator[Candidate]:
        """Return the fixes that this one pays with and that were not tried yet, as they may be
        applied beside it."""
        search, slot = self._search, one.fix.slot
        for other in self._ask([c.asked for c in (*search.kept, one)]):
            if slot and other.fix.slot == slot:
                continue
            if other.fix.group == "global" and (self.bound([one]) or WORTH_ALONE) < WORTH_ALONE:
                continue  # cores need not be divided for what gains little anyway
            if other.fix.id in one.fix.together and other not in search.rungs:
                # Its bound alone says nothing about its effect on the other.
                unable = self.unable(replace(other, bound=None))
                if unable is None and search.has_time_for(search.kept, [*search.kept, one, other]):
                    yield other

    def companions(self, one: Candidate) -> list[Candidate]:
        """Return what is tried together with a compiler: fixes that did not fall far behind alone,
        and usual fixes that were not tried yet."""
        rungs = self._search.rungs
        tried = [
            c
            for c in self.again
            if c.fix.group in BESIDE_COMPILERS
            and (ratio := rungs[c].ratio) is not None
            and ratio.value > MIN_RATIO_BESIDE_COMPILER
            and (ratio.ci_high > 1 or c.fix.usual)
        ]
        together = self._fitting(self._fitting([one], tried), self._usual())
        # Such fixes make others possible: a padded vocabulary is for products in 16 bits.
        return self._fitting(together, self._usual(together))[1:]

    def _usual(self, beside: Sequence[Candidate] = ()) -> list[Candidate]:
        with_these = self._ask([c.asked for c in (*self._search.kept, *beside)])
        bounds = (self.bound([c]) or MAX_HOPED_GAIN for c in beside)
        hoped = min(max(bounds, default=1.0), MAX_HOPED_GAIN)
        return [c for c in with_these if c.fix.usual and self._is_open(c, hoped)]

    def _fitting(self, chosen: list[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
        """Return `chosen` and those of `others` whose slots are free."""
        fitting = list(chosen)
        for other in others:
            taken = {c.fix.slot for c in (*self._search.kept, *fitting) if c.fix.slot}
            if other not in fitting and other.fix.slot not in taken:
                fitting.append(other)
        return fitting

    def _is_open(self, one: Candidate, gained: float = 1.0) -> bool:
        known = one in self._search.rungs and not self._is_newly_possible(one)
        return not known and one.fix.id != LARGER_BATCH and self.unable(one, gained) is None

    def _is_newly_possible(self, one: Candidate) -> bool:
        """Return whether a fix found nothing to change, and one that it pays with has been kept
        since."""
        rung = self._search.rungs[one]
        new = {c.fix.id for c in self._search.kept} - set(rung.beside)
        may_try = rung.status == "not applied" and key(one) not in self._tried_twice
        return may_try and bool(new & set(one.fix.together))

    def _not_waiting(self, coming: Sequence[Candidate]) -> Sequence[Candidate]:
        """Leave out the fixes that are tried with the compiler that is to come, if there is time
        for it."""
        compiler = self._untried_compiler(coming)
        if compiler is None or self._search.bench.left_s() < self._compiler_s(compiler):
            return coming
        kept = {one.fix.id for one in self._search.kept}

        def waits(one: Candidate) -> bool:
            bound = self.bound([one])
            small = bound is not None and bound < WORTH_ALONE
            little = not kept.isdisjoint(one.fix.little_beside)
            return one.fix.usual and not is_compiler(one) and (small or little)

        return [one for one in coming if not waits(one)]

    def _untried_compiler(self, coming: Sequence[Candidate]) -> Candidate | None:
        """Return the first compiler that is to come, if none was tried."""
        rungs = self._search.rungs
        tried = any(one.fix.slot == COMPILE and one in rungs for one in self.all())
        return None if tried else next((one for one in coming if is_compiler(one)), None)

    def _compiler_s(self, compiler: Candidate) -> float:
        """Return the time for one trial and its confirmation, for which what it compiled is
        cached."""
        search = self._search
        return search.cost_s([*search.kept, compiler]) + search.confirming_s(search.kept)

    def _compiler_at_once(self, coming: Sequence[Candidate]) -> Candidate | None:
        """Return the compiler if there is too little time to try each fix before it: it is tried
        first, with all usual fixes, unless another fix promises more or there is no time to
        confirm it."""
        search, compiler = self._search, self._untried_compiler(coming)
        if compiler is None or compiler is coming[0]:
            return None
        quick = [one for one in self._not_waiting(coming) if not one.fix.slow_start]
        each_s = TRIALS_PER_CONTEST * sum(search.cost_s([*search.kept, one]) for one in quick)
        needed_s = self._compiler_s(compiler)
        if not needed_s <= search.bench.left_s() < needed_s + each_s:
            return None
        together = [compiler, *self.companions(compiler)]
        others = [one.promise for one in coming if one not in together]
        feeding = [one.promise for one in coming if one.fix.group == "loader"]
        if max(feeding, default=1.0) >= WORTH_ALONE:
            return None
        best = max(one.promise for one in together)
        return compiler if best >= max(others, default=1.0) else None


def is_compiler(one: Candidate) -> bool:
    return one.fix.slow_start and one.fix.slot == COMPILE
