"""What a search knows and may spend: the trials, the time that is left, what is kept."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.contest import Arms, Contest, Rules, contest, doubtful
from ridgeline.optimization.judge import Judge
from ridgeline.optimization.measure import STEP, Measure, Spreads, typical_ms
from ridgeline.optimization.rungs import Table
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Rung, SearchCode
from ridgeline.records.parity import Parity
from ridgeline.records.trial import Trial

PROMISING = 1.1
"""A first pair that gains more has a second, whatever its share of the time."""
TOLD_S = 10.0
"""Of time that is left: so much is worth a word."""
CONFIRMING = 2
"""Pairs of processes at least, for the whole."""


class Voice(Struct, frozen=True):
    """Where the search says what it does."""

    say: Callable[[str], None] = lambda text: None
    """Now."""
    tell: Callable[[Rung], None] = lambda rung: None
    """Settled."""


class Search:
    def __init__(
        self, bench: Bench, *, measure: Measure = STEP, exact: bool = False, voice: Voice
    ) -> None:
        self.bench = bench
        self.measure = measure
        self.exact = exact
        self.arms = Arms(bench)
        self.judge = Judge(bench, measure, voice.say)
        self.spreads = Spreads(self.judge.baseline)
        self.table = Table(voice.tell)
        self.say = voice.say
        self.kept: list[Candidate] = []
        self.settled: list[Candidate] = []
        """Of what is kept, those that were looked at again."""
        self.so_far: tuple[float, int] | None = None
        """Ratio and number of pairs of a contest that has not ended; None if there is none."""
        self.trouble: Reason | None = None
        """Why the whole could not be confirmed."""
        self.share_s = math.inf
        """Of the time that is left, for one contest: as many pairs as fit, one at least."""
        self.bounds_refuted = False
        """Whether a change has gained more than its bound allowed. From then on no change is
        skipped because of its bound."""
        self.grows: Candidate | None = None
        """The larger batch that is to be tried in the end."""

    @property
    def gained(self) -> float:
        """By what is kept: how many times as fast as the unchanged program."""
        times = [self.table[one].step_ms for one in self.kept]
        now = min((one for one in times if one), default=0.0)
        return typical_ms(tuple(self.judge.baseline)) / now if now else 1.0

    @property
    def waits_for_input(self) -> float:
        """With what is kept, as a share of the unchanged program's step: a loader that was fast
        enough for a slow step may not be for a fast one."""
        now = self.arms.latest(asked(self.kept))
        return (now.input_share or 0.0) / self.gained if now is not None else 0.0

    @property
    def system_share(self) -> float | None:
        """With what is kept, as a share of the unchanged program's step: smaller pieces of memory
        may be given back, and asked for again, more often. None: not known."""
        now = self.arms.latest(asked(self.kept))
        if now is None or now.system_share is None:
            return None
        return now.system_share / self.gained

    def time_for(self, *sets: Sequence[Candidate]) -> bool:
        """One trial of each, what judging them takes, and what is needed to confirm the whole."""
        wanted = sum(self.bench.cost_s(asked(one)) for one in sets)
        wanted += max((self.judge.owed_s(one) for one in sets), default=0.0)
        return wanted + self.reserve_s() < self.bench.left_s()

    def time_to_try(self, after: Sequence[Candidate]) -> bool:
        """Return whether there is time for a contest of these changes against what is kept. The
        first change that is kept must also be confirmed, by one pair at least. A recent trial of
        the unchanged program serves as one half of the first pair."""
        if self.kept:
            return self.time_for(self.kept, after)
        plain_s = self.bench.cost_s(())
        wanted = self.bench.cost_s(asked(after)) + self.judge.owed_s(after)
        wanted += plain_s if self.arms.recent(()) is None else 0.0
        return wanted + max(self.reserve_s(), 2 * plain_s) < self.bench.left_s()

    def too_long(self, one: Candidate) -> Reason:
        """Return why there is no time to try a fix, with the times if some time is left."""
        free_s = max(self.bench.left_s() - self.reserve_s(), 0.0)
        takes_s = sum(self.bench.cost_s(asked(c)) for c in (self.kept, [*self.kept, one]))
        if free_s < TOLD_S:
            return because(SearchCode.OUT_OF_TIME)
        return because(SearchCode.TOO_LITTLE_TIME, free_s=round(free_s), pair_s=round(takes_s))

    def reserve_s(self) -> float:
        again_s = self._looking_again_s()
        if self.grows is not None:  # what is kept by then is confirmed before
            return self.growing_s(self.grows) + self.confirming_s(self.kept) + again_s
        return self.confirming_s(self.kept) + again_s if self.kept else 0.0

    def _looking_again_s(self) -> float:
        """A pair for each that is kept and may be so by luck; one alone is confirmed as the whole
        is."""
        known = [(one, self.table[one]) for one in self.kept if one not in self.settled]
        alone = [(one, rung.ratio) for one, rung in known if not rung.together]
        doubts = [one for one, ratio in alone if ratio is not None and doubtful(ratio)]
        if len(self.kept) < 2:
            return 0.0
        kept_s = self.bench.cost_s(asked(self.kept))
        rests = ([other for other in self.kept if other is not one] for one in doubts)
        return sum(kept_s + self.bench.cost_s(asked(rest)) for rest in rests)

    def growing_s(self, size: Candidate) -> float:
        """Two sizes against what is kept, each compiled anew, and pairs that confirm the better."""
        return 2 * self.one_size_s(size) + self.pairs_s(self.kept)

    def one_size_s(self, size: Candidate) -> float:
        grown = asked([*self.kept, size])
        return self.bench.cost_s(grown) + self.bench.cost_s(asked(self.kept))

    def confirming_s(self, kept: Sequence[Candidate]) -> float:
        """Pairs that confirm, and the patched copy by itself."""
        return self.pairs_s(kept) + self.bench.cost_s(asked(kept))

    def pairs_s(self, kept: Sequence[Candidate]) -> float:
        return CONFIRMING * (self.bench.cost_s(()) + self.bench.cost_s(asked(kept)))

    def against(
        self, before: Sequence[Candidate], after: Sequence[Candidate], rules: Rules | None = None
    ) -> Contest:
        """`after` against `before`, within a fair share of the time."""
        began = self.bench.left_s()
        pair = self.bench.cost_s(asked(before)) + self.bench.cost_s(asked(after))
        known: list[float] = []
        given = rules or Rules(measure=self.measure)

        def go_on() -> bool:
            if given.fresh and len(known) < CONFIRMING:
                return pair < self.bench.left_s()
            spent = began - self.bench.left_s()
            promising = len(known) == 1 and known[0] > PROMISING
            within = spent + pair < self.share_s or promising
            # What is kept has its time to be confirmed held back; the first that may be has none.
            lasts = bool(self.kept) or 2 * pair < self.bench.left_s()
            return within and lasts and self.time_for(before, after)

        def paired(number: int, ratio: float) -> None:
            known.append(ratio)
            self.so_far = ratio, number
            self.say(f"pair {number}: {ratio:.2f} × so far")

        held = replace(given, go_on=go_on, on_pair=paired)
        pool = self.spreads.now(given.measure)
        self.bench.held_s = 0.0 if given.fresh else self.reserve_s()
        found = contest(self.arms, pool, asked(before), asked(after), held)
        self.bench.held_s, self.so_far = 0.0, None
        return replace(found, spent_s=began - self.bench.left_s())

    def judged(
        self,
        before: Sequence[Candidate],
        after: Sequence[Candidate],
        tried: Sequence[Candidate],
        measure: Measure | None = None,
        so_far: Contest | None = None,
    ) -> tuple[Contest, Parity | None]:
        """And whether it computes the same: other results end it at its first trial."""
        parity: list[Parity] = []
        given = measure or self.measure

        def refuse(trial: Trial) -> Reason | None:
            missing = self.judge.missing(trial, tried)
            if missing is not None:
                return missing
            found = self.judge.compared(trial, after)
            self.spreads.grown(given)
            parity.append(found)
            if found.equality not in ("differs", "unknown"):
                return None
            return because(SearchCode.RESULTS_DIFFER, detail=found.why)

        rules = Rules(measure=given, refuse=refuse, so_far=so_far)
        result = self.against(before, after, rules)
        return result, parity[0] if parity else None
