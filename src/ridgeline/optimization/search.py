"""Holds what a search knows and may spend: the trials, the time that is left, and what is kept."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.contest import Contest, Rules, TrialHistory, contest, is_doubtful
from ridgeline.optimization.judge import Judge
from ridgeline.optimization.measure import (
    STEP,
    UNDISTURBED,
    Measure,
    ProcessNoise,
    is_timed,
    typical_ms,
)
from ridgeline.optimization.race import Standing
from ridgeline.optimization.rungs import Rungs
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Rung, SearchCode
from ridgeline.records.parity import Parity
from ridgeline.records.trial import Trial

PROMISING_RATIO = 1.1
"""A first pair that gains more gets a second one, whatever its share of the time."""
MIN_REPORTED_S = 10.0
"""If less time is left, the reason for skipping a fix does not name the figures."""
MIN_CONFIRMING_PAIRS = 2
"""Least number of pairs of fresh processes that confirm the whole."""


class Progress(Struct, frozen=True):
    """Says where the search reports what it does."""

    doing: Callable[[str], None] = lambda text: None
    """Called with what is done now."""
    settled: Callable[[Rung], None] = lambda rung: None
    """Called with each rung once its status is known or has changed."""


class Search:
    def __init__(
        self, bench: Bench, *, measure: Measure = STEP, exact: bool = False, progress: Progress
    ) -> None:
        self.bench = bench
        self.measure = measure
        self.exact = exact
        self.history = TrialHistory(bench)
        self.judge = Judge(bench, measure, progress.doing)
        self.noise = ProcessNoise(self.judge.baseline)
        self.rungs = Rungs(progress.settled)
        self.doing = progress.doing
        self.kept: list[Candidate] = []
        self.settled: list[Candidate] = []
        """The kept fixes that were left out once, to see whether they are of use."""
        self.so_far: tuple[float, int] | None = None
        """Ratio and number of pairs of a contest that has not ended; None if there is none."""
        self.trouble: Reason | None = None
        """Why the whole could not be confirmed."""
        self.share_s = math.inf
        """Time for one contest: as many pairs are run as fit in, but at least one."""
        self.bounds_refuted = False
        """Whether a fix has gained more than its bound allowed. From then on no fix is skipped
        because of its bound."""
        self.larger_batch: Candidate | None = None
        """The larger batch that is to be tried in the end."""

    @property
    def gained(self) -> float:
        """The speedup of what is kept."""
        times = [self.rungs[one].step_ms for one in self.kept]
        now = min((ms for ms in times if ms), default=0.0)
        return typical_ms(self.judge.baseline) / now if now else 1.0

    @property
    def input_share(self) -> float:
        """The wait for input with what is kept, as a share of the baseline's step: a loader that
        was fast enough for a slow step may not be for a fast one."""
        now = self.history.latest(asked(self.kept))
        return (now.input_share or 0.0) / self.gained if now is not None else 0.0

    @property
    def system_share(self) -> float | None:
        """The system's work with what is kept, as a share of the baseline's step; None if it is not
        known. Smaller pieces of memory may be given back and asked for more often."""
        now = self.history.latest(asked(self.kept))
        if now is None or now.system_share is None:
            return None
        return now.system_share / self.gained

    def ground_now(self, ground: Ground, standing: Standing | None) -> Ground:
        """Return the ground of the baseline as it is with what is kept: its waits for input and
        the system's work may have grown. `standing` says how what is kept does in a race; None
        stands for the latest trial."""
        waits = self.input_share if standing is None else standing.input_share
        system_share = self.system_share
        return replace(
            ground,
            input_share=max(waits, ground.input_share),
            system_share=ground.system_share if system_share is None else system_share,
        )

    def cost_s(self, fixes: Sequence[Candidate]) -> float:
        return self.bench.cost_s(asked(fixes))

    def has_time_for(self, *sets: Sequence[Candidate]) -> bool:
        """Return whether there is time for a trial of each set and for judging them, besides what
        confirming the whole needs."""
        needed_s = sum(self.cost_s(one) for one in sets)
        needed_s += max((self.judge.postponed_s(one) for one in sets), default=0.0)
        return needed_s + self.reserve_s() < self.bench.left_s()

    def has_time_to_try(self, after: Sequence[Candidate]) -> bool:
        """Return whether there is time for a contest of these fixes against what is kept. The first
        fix that is kept must also be confirmed, by one pair at least. A recent trial of the
        baseline serves as one half of the first pair."""
        if self.kept:
            return self.has_time_for(self.kept, after)
        plain_s = self.bench.cost_s(())
        needed_s = self.cost_s(after) + self.judge.postponed_s(after)
        needed_s += plain_s if self.history.recent(()) is None else 0.0
        return needed_s + max(self.reserve_s(), 2 * plain_s) < self.bench.left_s()

    def too_long(self, one: Candidate) -> Reason:
        """Return why there is no time to try a fix, with the times if some time is left."""
        free_s = max(self.bench.left_s() - self.reserve_s(), 0.0)
        pair_s = self.cost_s(self.kept) + self.cost_s([*self.kept, one])
        if free_s < MIN_REPORTED_S:
            return because(SearchCode.OUT_OF_TIME)
        return because(SearchCode.TOO_LITTLE_TIME, free_s=round(free_s), pair_s=round(pair_s))

    def reserve_s(self) -> float:
        """Return the time that must be left for what comes after the fixes were tried."""
        again_s = self._leaving_out_s()
        if self.larger_batch is not None:  # what is kept by then is confirmed before
            return self.growing_s(self.larger_batch) + self.confirming_s(self.kept) + again_s
        return self.confirming_s(self.kept) + again_s if self.kept else 0.0

    def _leaving_out_s(self) -> float:
        """Return the time for a pair for each kept fix whose gain may be luck. A single one is
        confirmed as the whole is."""
        if len(self.kept) < 2:
            return 0.0
        rungs = [(one, self.rungs[one]) for one in self.kept if one not in self.settled]
        doubtful = [
            one
            for one, rung in rungs
            if not rung.together and rung.ratio is not None and is_doubtful(rung.ratio)
        ]
        rests = ([other for other in self.kept if other is not one] for one in doubtful)
        return sum(self.cost_s(self.kept) + self.cost_s(rest) for rest in rests)

    def growing_s(self, size: Candidate) -> float:
        """Return the time for two sizes against what is kept, each compiled anew, and for the pairs
        that confirm the better one."""
        return 2 * self.one_size_s(size) + self.pairs_s(self.kept)

    def one_size_s(self, size: Candidate) -> float:
        return self.cost_s([*self.kept, size]) + self.cost_s(self.kept)

    def confirming_s(self, kept: Sequence[Candidate]) -> float:
        """Return the time for the pairs that confirm these fixes, and for the patched copy."""
        return self.pairs_s(kept) + self.cost_s(kept)

    def pairs_s(self, kept: Sequence[Candidate]) -> float:
        return MIN_CONFIRMING_PAIRS * (self.bench.cost_s(()) + self.cost_s(kept))

    def contest(
        self, before: Sequence[Candidate], after: Sequence[Candidate], rules: Rules | None = None
    ) -> Contest:
        """Hold a contest of `after` against `before`, within a fair share of the time."""
        began_s = self.bench.left_s()
        pair_s = self.cost_s(before) + self.cost_s(after)
        ratios: list[float] = []
        wanted = rules or Rules(measure=self.measure)
        rules = replace(wanted, measure=self.clock(wanted.measure, before))
        fresh = rules.fresh

        def go_on() -> bool:
            if fresh and len(ratios) < MIN_CONFIRMING_PAIRS:
                return pair_s < self.bench.left_s()
            spent_s = began_s - self.bench.left_s()
            promising = len(ratios) == 1 and ratios[0] > PROMISING_RATIO
            within_share = spent_s + pair_s < self.share_s or promising
            # The time to confirm what is kept is held back; the first fix has no such reserve yet.
            confirmable = bool(self.kept) or 2 * pair_s < self.bench.left_s()
            return within_share and confirmable and self.has_time_for(before, after)

        def on_pair(number: int, ratio: float) -> None:
            ratios.append(ratio)
            self.so_far = ratio, number
            self.doing(f"pair {number}: {ratio:.2f} × so far")

        pool = self.noise.now(rules.measure)
        self.bench.held_s = 0.0 if fresh else self.reserve_s()
        result = contest(
            self.history, pool, asked(before), asked(after),
            replace(rules, go_on=go_on, on_pair=on_pair),
        )  # fmt: skip
        self.bench.held_s, self.so_far = 0.0, None
        return replace(result, spent_s=began_s - self.bench.left_s())

    def clock(self, measure: Measure, before: Sequence[Candidate] = ()) -> Measure:
        """Return what tells most surely, by a measure, how a set does against `before`: the step
        time without waits for a processor, if they are known of the baseline.

        Of steps that workers feed they are not known, because the workers may be why a step waits.
        Where only the other set has workers, all its waits count, and the gain is larger if
        anything: on a machine with ten times as many programs as processors, 8 workers were 10.7 ×
        as fast as none, because each gets a share of the processors, and 1.8 × as fast as none
        would be by itself. Where `before` has workers, all waits of both count."""
        feeds = any(one.fix.group == "loader" for one in before)
        timed = [trial for trial in self.judge.baseline if is_timed(trial) and not trial.jitter]
        known = bool(timed) and all(trial.queued_ns for trial in timed)
        return UNDISTURBED if measure is STEP and known and not feeds else measure

    @property
    def queued_share(self) -> float:
        """The part of the baseline's steps in which they waited for a processor, if it is compared
        without these waits; else 0."""
        if self.clock(self.measure) is not UNDISTURBED:
            return 0.0
        whole_ns = sum(sum(trial.step_ns) for trial in self.judge.baseline)
        queued_ns = sum(sum(trial.queued_ns) for trial in self.judge.baseline)
        return queued_ns / whole_ns if whole_ns else 0.0

    def judged_contest(
        self,
        before: Sequence[Candidate],
        after: Sequence[Candidate],
        tried: Sequence[Candidate],
        measure: Measure | None = None,
        so_far: Contest | None = None,
        min_pairs: int = 1,
    ) -> tuple[Contest, Parity | None]:
        """Hold a contest and judge the results, too: different results end it at its first
        trial."""
        parities: list[Parity] = []
        measure = measure or self.measure

        def refuse(trial: Trial) -> Reason | None:
            missing = self.judge.missing(trial, tried)
            if missing is not None:
                return missing
            parity = self.judge.compared(trial, after)
            self.noise.baseline_grew(measure)
            parities.append(parity)
            if parity.is_proven:
                return None
            return because(SearchCode.RESULTS_DIFFER, detail=parity.why)

        rules = Rules(measure=measure, refuse=refuse, so_far=so_far, min_pairs=min_pairs)
        result = self.contest(before, after, rules)
        return result, parities[0] if parities else None
