"""Chooses what is raced: first each fix that needs no compiler, then those that won together, alone
and with the usual fixes and a compiler; and again beside what is kept, because the bottleneck
moves."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.race import CannotRace, Race, SetKey, Standing, set_key
from ridgeline.optimization.rungs import Key, key
from ridgeline.records.facts import Ratio, Reason
from ridgeline.records.optimized import RaceMoment
from ridgeline.records.trial import Asked

MAX_IN_A_HEAT = 10
"""Sets in one heat: with more, the blocks of a round lie too far apart to share the noise."""
SINGLES_SHARE, COMPILING_SHARE = 0.4, 0.9
"""Share of the time that is left which a heat may take, of single fixes and of compiled sets."""
MIN_HEAT_S = 2.0
MAX_PASSES = 5
"""The bottleneck is looked at again at most so often."""
WORKERS = "loader-workers"
MAX_DOUBLED_WORKERS = 16
COMPILING_GUESS_S = 30.0
"""What compiling is expected to take before it was tried."""
HOPELESS_RATIO = 0.7
"""A fix that makes the step this much slower is not raced again beside others."""
MIN_PROMISING_RATIO = 1.1
"""The fix with the largest ratio is proposed from this ratio on if the race could decide nothing. A
few rounds, or a noisy machine, are no reason to give up what may be a large gain, and fresh
processes decide."""
BESIDE_COMPILERS = ("model", "global", "optimizer")


class Raced(Struct, kw_only=True):
    """Says what became of a fix in the race, the last time that it was raced."""

    candidate: Candidate
    standing: Standing
    beside: tuple[Candidate, ...]
    """The fixes that were kept already."""


class RaceOutcome(Struct, kw_only=True):
    kept: tuple[Candidate, ...] = ()
    ratio: Ratio | None = None
    """The ratio of the kept fixes to the baseline."""
    control: Ratio | None = None
    raced: dict[Key, Raced] = {}
    measured: int = 0
    """How many sets of fixes were timed."""
    reason: Reason | None = None
    """Why the race ended before its end; None if it did not, or was interrupted."""
    course: tuple[RaceMoment, ...] = ()
    interrupted: bool = False


Ask = Callable[[Sequence[Candidate], Standing | None], Sequence[Candidate]]
"""Given what is kept, and how it does in the race, returns the fixes that may be tried."""


class RaceSearch:
    def __init__(
        self, race: Race, ask: Ask, *, left_s: Callable[[], float],
        passed_s: Callable[[], float], compile_s: Callable[[Candidate], float],
        doing: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`passed_s` returns the time since the race began, and `compile_s` what a compiler is
        expected to take."""
        self._race = race
        self._ask = ask
        self._left_s = left_s
        self._passed_s = passed_s
        self._compile_s = compile_s
        self._doing = doing
        self.kept: tuple[Candidate, ...] = ()
        self.raced: dict[Key, Raced] = {}
        self._tried: set[SetKey] = set()
        """Sets of fixes that were raced against what is kept now or was kept before."""
        self._standing: Standing | None = None
        """How the kept fixes do."""
        self.control: Ratio | None = None
        self.gained = 1.0
        self.ratio: Ratio | None = None
        """The ratio of the kept fixes to the baseline, if one heat has measured it."""
        self.course: list[RaceMoment] = []

    def run(self) -> None:
        """Race until nothing is faster, or the time is over. Where no heat had a winner, or
        something else ends the race before one has, the most promising fix is kept."""
        try:
            for _ in range(MAX_PASSES):
                before = self.kept
                self._combine(*self._race_singles())
                self._race_compilers()
                if self.kept == before or self._left_s() < MIN_HEAT_S:
                    break
            self._leave_out()
        finally:
            if not self.kept:
                self._keep_alone(self._most_promising())

    def _race_singles(self) -> tuple[list[Candidate], list[tuple[list[Candidate], Standing]]]:
        """Race each fix that needs no compiler beside what is kept, and the usual fixes together.
        Return the best of each slot among those that are faster, the best first, and how the set of
        usual fixes did."""
        singles = [one for one in self._open() if not one.fix.slow_start]
        usual = self._with_usual([])
        together: list[tuple[list[Candidate], Standing]] = []
        winners: list[tuple[float, Candidate]] = []
        for first in range(0, len(singles), MAX_IN_A_HEAT):
            if self._left_s() < MIN_HEAT_S:
                break
            few = singles[first : first + MAX_IN_A_HEAT]
            sets = [[one] for one in few]
            sets += [usual] if len(usual) > 1 and not first else []
            for members, standing in self._heat(sets, SINGLES_SHARE):
                if len(members) > 1:
                    together.append((members, standing))
                    continue
                one = members[0]
                self.raced[key(one)] = Raced(candidate=one, standing=standing, beside=self.kept)
                if standing.verdict == "FASTER" and standing.ratio is not None:
                    winners.append((standing.ratio.value, one))
        best: list[Candidate] = []
        for _, one in sorted(winners, key=lambda winner: -winner[0]):
            if all(one.fix.id != other.fix.id for other in best) and _fits(one, best):
                best.append(one)
        return best, together

    def _most_promising(self) -> list[Candidate]:
        """Return the fix that was fastest alone: the best of those that were faster, else of those
        that were left undecided; none if no fix promises a gain."""
        alone = [raced for raced in self.raced.values() if not raced.beside]
        faster = [raced for raced in alone if raced.standing.verdict == "FASTER"]
        undecided = [
            raced
            for raced in alone
            if raced.standing.verdict == "UNDECIDED"
            and _value(raced.standing) >= MIN_PROMISING_RATIO
        ]
        best = max(faster or undecided, key=lambda raced: _value(raced.standing), default=None)
        return [best.candidate] if best is not None else []

    def _combine(
        self, winners: list[Candidate], raced: list[tuple[list[Candidate], Standing]]
    ) -> None:
        """Race the winners together, and with the usual fixes. Keep the best set; `raced` are sets
        that were raced already."""
        usual = self._with_usual(winners)
        if len(usual) > 1:
            raced = [*raced, *self._heat([winners, usual], SINGLES_SHARE)]
        faster = [(m, one) for m, one in raced if one.verdict == "FASTER"]
        if faster:
            self._keep(*max(faster, key=lambda pair: _value(pair[1])))
        else:
            self._keep_alone(winners)

    def _race_compilers(self) -> None:
        """Race compilers one after the other, with the usual fixes beside the first. One that fails
        beside them is raced alone: only then it is known to be why."""
        for one in self._compilers():
            compiled = any(other.fix.slow_start for other in self.kept)
            for beside in [[]] if compiled else [self._with_usual([]), []]:
                if self._compile_s(one) + MIN_HEAT_S > self._left_s():
                    break
                members = [*beside, one]
                raced = self._heat([members], COMPILING_SHARE)
                for _, standing in raced:
                    self.raced[key(one)] = Raced(
                        candidate=one, standing=standing, beside=(*self.kept, *beside)
                    )
                    if standing.verdict == "FASTER":
                        self._keep(members, standing)
                if not raced or raced[0][1].failure is None:
                    break

    def _keep_alone(self, winners: list[Candidate]) -> None:
        """Keep the best single fix, where no set of several could be shown to be better."""
        if winners:
            self._keep(winners[:1], self.raced[key(winners[0])].standing)

    def _keep(self, members: Sequence[Candidate], standing: Standing) -> None:
        applied = {one.fix for one in standing.applied}
        useful = [one for one in members if one.fix.id in applied]
        self.ratio = None if self.kept else standing.ratio
        self.kept = (*_without_rivals(self.kept, useful), *useful)
        self._standing = standing
        self.gained *= standing.ratio.value if standing.ratio is not None else 1.0
        self._note_moment()

    def _note_moment(self) -> None:
        measured = len(self._race.measured)
        self.course.append(RaceMoment(at_s=self._passed_s(), measured=measured, best=self.gained))

    def _leave_out(self) -> None:
        """Race what is kept without each fix that did not win by itself, and leave out those that
        are of no use."""
        for one in self.kept:
            rest = [other for other in self.kept if other is not one]
            known = self.raced.get(key(one))
            alone = known is not None and known.standing.verdict == "FASTER"
            compiled = any(other.fix.slow_start for other in rest)
            costly = compiled and one.fix.group in ("model", "global")
            left_s = self._left_s() - (self._compile_s(one) if costly else 0.0)
            if alone or not rest or one not in self.kept or left_s < MIN_HEAT_S:
                continue
            self._doing(f"racing without {one.fix.title}; best so far {self.gained:.2f} ×")
            heat = self._race.heat(asked(self.kept), [asked(rest)], left_s)
            without = heat.others[0]
            if without.verdict in ("SAME", "FASTER"):
                self.kept = tuple(rest)
                self.ratio = None
                self._standing = without

    def _heat(
        self, sets: Sequence[Sequence[Candidate]], share: float
    ) -> list[tuple[list[Candidate], Standing]]:
        """Race these additions to what is kept; not those that were raced already."""
        fresh: dict[SetKey, list[Candidate]] = {}
        for members in sets:
            name = set_key(self._beside(members))
            if members and name not in self._tried:
                fresh[name] = list(members)
        if not fresh:
            return []
        self._tried |= set(fresh)
        titles = ", ".join(dict.fromkeys(one.fix.title for m in fresh.values() for one in m))
        best = f"; best so far {self.gained:.2f} ×" if self.kept else ""
        self._doing(f"racing {titles}{best}")
        every = list(fresh.values())
        heat = self._race.heat(
            asked(self.kept), [self._beside(members) for members in every],
            share * self._left_s(),
        )  # fmt: skip
        if self.control is None:
            self.control = heat.control
        self._standing = heat.base
        self._note_moment()
        known = {set_key(one.fixes): one for one in heat.others}
        return [(m, known[name]) for name, m in fresh.items() if name in known]

    def _beside(self, members: Sequence[Candidate]) -> tuple[Asked, ...]:
        return asked([*_without_rivals(self.kept, members), *members])

    def _open(self) -> list[Candidate]:
        """Return the fixes that may be raced beside what is kept, each with each of its options."""
        kept = {key(one) for one in self.kept}
        found: list[Candidate] = []
        for one in self._ask(self.kept, self._standing):
            for options in (one.options, *one.others):
                found.append(replace(one, options=options, others=(), brings=""))
        found += self._more_workers()
        return [one for one in found if key(one) not in kept and not self._is_hopeless(one)]

    def _more_workers(self) -> list[Candidate]:
        """Return twice the workers that are kept: as long as more are faster, more are raced."""
        for one in self.kept:
            if one.fix.id == WORKERS:
                twice = 2 * int(one.options["workers"])
                if twice <= MAX_DOUBLED_WORKERS:
                    return [replace(one, options={"workers": str(twice)})]
        return []

    def _is_hopeless(self, one: Candidate) -> bool:
        known = self.raced.get(key(one))
        if known is None:
            return False
        standing = known.standing
        too_slow = standing.ratio is not None and standing.ratio.ci_high < HOPELESS_RATIO
        return standing.failure is not None or too_slow

    def _with_usual(self, winners: list[Candidate]) -> list[Candidate]:
        """Return the winners with the fixes that a specialist applies without measuring."""
        together = list(winners)
        for one in self._ask((*self.kept, *winners), self._standing):
            known = self.raced.get(key(one))
            slower = known is not None and known.standing.verdict in ("SLOWER", "INVALID")
            missing = known is not None and not known.standing.is_applied
            taken = any(one.fix.id == other.fix.id for other in (*self.kept, *together))
            suits = one.fix.usual and one.fix.group in BESIDE_COMPILERS and not one.fix.slow_start
            if suits and not (slower or missing or taken) and _fits(one, [*self.kept, *together]):
                together.append(one)
        return together

    def _compilers(self) -> list[Candidate]:
        """Return the compilers that were not raced yet, the most promising first."""
        known = {key(one) for one in self.kept} | set(self.raced)
        return [
            one
            for one in self._ask(self.kept, self._standing)
            if one.fix.slow_start and key(one) not in known
        ]


def _value(standing: Standing) -> float:
    return standing.ratio.value if standing.ratio is not None else 0.0


class Racing(Struct, frozen=True):
    """Says how the program is raced."""

    make: Callable[[Callable[[], float]], Race]
    """Makes the race, given what returns the time that it has left."""
    take_compiled: Callable[[tuple[Asked, ...], Path, float], None]
    """Lets trials of a set find what the race has compiled, and what that took in seconds."""
    trial_steps: int = 0
    """Steps that a process of the proof takes."""


MAX_RACE_SHARE = 0.5
"""Share of the budget that the race may take; the rest is for the proof."""
PROOF_PROCESSES = 7
"""Fresh processes that the proof is expected to take: two of the baseline, two perturbed ones, two
with the fixes, and one of the copy."""
MIN_RACE_SHARE = 0.33
"""Share of the time after the program has started that the race gets at least. A program that
starts so slowly that no proof fits in either is raced all the same: in that time, fresh processes
could not try a single fix."""
FINAL_HEAT_S, MAX_FINAL_SHARE = 6.0, 0.2
"""Time of the last heat, of all that is kept against the baseline, but no more than this share of
the race."""


class RaceBudget:
    """What a race may spend. How long the program takes to start, and a process of the proof to
    take its steps, is known once the program has started."""

    def __init__(self, left_s: Callable[[], float], budget_s: float) -> None:
        self._left_s = left_s
        self._budget_s = budget_s
        self.start_s: Callable[[], float] = lambda: 0.0
        self.steps_s: Callable[[], float] = lambda: 0.0
        """Returns what the steps of a process of the proof take."""

    def left_s(self) -> float:
        """Return the time left for racing."""
        left_s, start_s = self._left_s(), self.start_s()
        spent_s = self._budget_s - left_s
        proof_s = PROOF_PROCESSES * (start_s + self.steps_s())
        wanted_s = min(left_s - proof_s, MAX_RACE_SHARE * self._budget_s - spent_s)
        least_s = start_s + MIN_RACE_SHARE * (self._budget_s - start_s) - spent_s
        return min(max(wanted_s, least_s), left_s)

    def searching_s(self) -> float:
        """Return the time left for racing before the last heat."""
        spent_s = self._budget_s - self._left_s() - self.start_s()
        whole_s = self.left_s() + max(spent_s, 0.0)
        return self.left_s() - min(FINAL_HEAT_S, MAX_FINAL_SHARE * whole_s)


def run_race(
    racing: Racing, ask: Ask, *, left_s: Callable[[], float], budget_s: float,
    doing: Callable[[str], None],
) -> tuple[RaceOutcome, int]:  # fmt: skip
    """Race the fixes. Return what the race proposes, and how often the program was started. Raise
    CannotRace if the program cannot be raced, and KeyboardInterrupt if nothing was measured before
    it."""
    budget = RaceBudget(left_s, budget_s)
    race = racing.make(budget.left_s)
    budget.start_s = lambda: race.start_s
    budget.steps_s = lambda: racing.trial_steps * race.step_s
    left_at_start_s = left_s()

    def compile_s(one: Candidate) -> float:
        return one.fix.longer * (race.compile_s or COMPILING_GUESS_S * race.slowdown)

    search = RaceSearch(
        race, ask, left_s=budget.searching_s, passed_s=lambda: left_at_start_s - left_s(),
        doing=doing, compile_s=compile_s,
    )  # fmt: skip
    ratio: Ratio | None = None
    reason: Reason | None = None
    interrupted = False
    try:
        search.run()
        if search.kept and race.stopped is None:
            doing("racing all that is kept against the baseline")
            ratio = race.heat((), [asked(search.kept)], FINAL_HEAT_S).others[0].ratio
        if race.stopped is not None:
            raise race.stopped
    except CannotRace as error:
        if not search.raced:
            raise
        reason = error.reason
    except KeyboardInterrupt:
        if not search.raced:
            raise
        interrupted = True
    finally:
        race.close()
    for proposal in proposals(search.kept):
        if race.compiled is not None and any(one.fix.slow_start for one in proposal):
            racing.take_compiled(asked(proposal), race.compiled, race.compile_s)
    outcome = RaceOutcome(
        kept=search.kept, ratio=ratio or search.ratio, control=search.control, raced=search.raced,
        measured=len(race.measured), course=tuple(search.course), reason=reason,
        interrupted=interrupted,
    )  # fmt: skip
    return outcome, race.starts


def proposals(kept: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the sets to be proven, one after the other, until one computes the same: all; without
    what lowers the precision; without the compiler; only those that alter nothing."""
    every = [
        list(kept),
        [one for one in kept if one.fix.slot != "precision"],
        [one for one in kept if one.fix.slot != "compile"],
        [one for one in kept if one.fix.alters == "nothing"],
    ]
    return [one for number, one in enumerate(every) if one and one not in every[:number]]


def _fits(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Return whether the slot of a fix is free."""
    return not one.fix.slot or all(one.fix.slot != other.fix.slot for other in others)


def _without_rivals(kept: Sequence[Candidate], members: Sequence[Candidate]) -> list[Candidate]:
    """Return the kept fixes without those that the new ones replace."""
    return [
        one
        for one in kept
        if _fits(one, members) and all(one.fix.id != other.fix.id for other in members)
    ]
