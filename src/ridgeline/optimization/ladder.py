"""The search for fixes. They are tried in the order of what they may gain, each on top of those
that are kept, and kept if the program is better and computes the same. Partners are tried together,
and what did not pay alone is tried again together with what moves the bottleneck. Then `proof`
leaves each kept fix out once, and confirms the whole."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.agenda import MIN_BOUND, Agenda, Ask, SearchSettings, is_compiler
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import LARGER_BATCH, Candidate, asked
from ridgeline.optimization.contest import Contest, because_of_ratio
from ridgeline.optimization.measure import MEASURES, typical_ms
from ridgeline.optimization.proof import confirm, enlarge_batch, leave_out, total_of
from ridgeline.optimization.race import CannotRace, Standing
from ridgeline.optimization.race_search import RaceOutcome, Racing, proposals, run_race
from ridgeline.optimization.rungs import Key, key
from ridgeline.optimization.search import MIN_CONFIRMING_PAIRS, Progress, Search
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized, RaceSummary, SearchCode, Total
from ridgeline.records.parity import Parity
from ridgeline.records.trial import Asked
from ridgeline.statistics.pooled import MAX_PAIRS

MIN_HOPEFUL_GAIN = 1.05
"""An undecided fix whose interval reaches this gain is measured once more in the end."""
MIN_RACED_BOUND = 1.005
"""A fix that can gain less is not raced. It may gain more once the step has become shorter."""
MAX_SHOWN_BOUND = 10.0
"""A larger bound is not shown: it says only that almost all of the step may go."""
MAX_DECIDING_S = 20.0
"""Time for deciding in one process what pairs of processes left undecided."""
MAX_SLOWDOWN = 2.0
"""To save memory or energy, a step may take this many times as long, not more."""


class Ladder:
    def __init__(
        self,
        bench: Bench,
        candidates: Sequence[Candidate] | Ask,
        settings: SearchSettings | None = None,
        progress: Progress | None = None,
        race: Racing | None = None,
    ) -> None:
        self._settings = settings or SearchSettings()
        ask: Ask = candidates if callable(candidates) else lambda kept, standing=None: candidates
        self.search = Search(
            bench, measure=MEASURES[self._settings.goal], exact=self._settings.keep_exact,
            progress=progress or Progress(),
        )  # fmt: skip
        self._agenda = Agenda(self.search, ask, self._settings)
        self._undecided: dict[Key, tuple[tuple[Asked, ...], Contest | None, Parity | None]] = {}
        self._retry_alone: list[Candidate] = []
        """Compilers that were slower together with the usual fixes."""
        self._trying: Candidate | None = None
        self._stopped: Reason | None = None
        self._fits: Reason | None = None
        """Set once the peak is within the budget of memory, which ends the search."""
        self._racing = race
        self.race: RaceSummary | None = None
        self._proposed: tuple[Candidate, ...] = ()
        """The fixes that the race has kept."""
        self.raced_s = 0.0

    def climb(self, command: str) -> Optimized:
        """Search, prove what was kept, and return the result. `command` is shown with it."""
        search = self.search
        ended: Reason | None = None
        total: Total | None = None
        with_batch: Total | None = None
        try:
            raced = self._run_race()
            ended = self._learn_baseline(raced)
            if ended is None:
                search.larger_batch = self._larger_batch()
                total = self._prove_race(raced) if raced is not None else None
                proven = list(search.kept)
                self._try_all()
                ended = self._fits
                leave_out(search)
                if total is None or search.kept != proven:
                    total = confirm(search)
                search.larger_batch = None
                sizes = self._larger_batch()
                with_batch = enlarge_batch(search, sizes) if sizes is not None else None
        except KeyboardInterrupt:  # what is known so far is reported
            ended = because(SearchCode.INTERRUPTED)
            if self._trying is not None and search.so_far and self._trying not in search.rungs:
                ratio, pairs = search.so_far
                reason = because(SearchCode.INTERRUPTED_AFTER, value=ratio, pairs=pairs)
                search.rungs.not_tried(self._trying, reason)
        if search.judge.baseline or (self.race is not None and self.race.measured):
            self._note_untried(ended)
        return Optimized(
            command=command,
            goal=self._settings.goal,
            fit_bytes=self._settings.fit_bytes,
            measured=search.measure.name,
            baseline_ms=typical_ms(search.judge.baseline),
            baseline_bytes=search.judge.peak_bytes,
            control=search.noise.control(search.clock(search.measure)),
            race=self.race,
            rungs=search.rungs.all(),
            total=total,
            with_batch=with_batch,
            caveats=tuple(one.fix.redraws for one in search.kept if one.fix.redraws),
            queued_share=search.queued_share,
            noise=search.noise.of_process(search.clock(search.measure)),
            stopped=ended or search.trouble or self._stopped,
        )

    def _learn_baseline(self, raced: RaceOutcome | None) -> Reason | None:
        """Run the baseline: as often as it takes to prove what a race proposes, or as it takes to
        judge all fixes. Return why there is nothing to compare with, or None."""
        search = self.search

        def on_trial(outcome: Outcome) -> None:
            search.history.add((), outcome)

        if raced is not None and raced.kept:
            return search.judge.learn_for_proof(raced.kept, search.exact, on_trial)
        possible = [one for one in self._agenda.all() if self._agenda.unable(one) is None]
        return search.judge.learn(possible, search.exact, on_trial)

    def _run_race(self) -> RaceOutcome | None:
        """Race the fixes; return None if there is no race, or if the program cannot be raced."""
        if self._racing is None:
            return None
        began_s, search = self.search.bench.left_s(), self.search
        try:
            outcome, starts = run_race(
                self._racing, self._raceable, left_s=search.bench.left_s,
                budget_s=began_s, doing=search.doing,
            )  # fmt: skip
        except CannotRace as error:
            self.race = RaceSummary(reason=error.reason)
            return None
        finally:
            self.raced_s = began_s - search.bench.left_s()
        self.race = RaceSummary(
            measured=outcome.measured, fixes=tuple(one.fix.id for one in outcome.kept),
            ratio=outcome.ratio, control=outcome.control, starts=starts, course=outcome.course,
            reason=outcome.reason,
        )  # fmt: skip
        self._proposed = outcome.kept
        kept = {one.fix.id for one in outcome.kept}
        for raced in outcome.raced.values():
            # If the race broke off, fresh processes decide what it left undecided.
            left_open = outcome.reason is not None and raced.standing.verdict == "UNDECIDED"
            if raced.candidate.fix.id not in kept and not left_open:
                search.rungs.raced(raced.candidate, raced.standing, raced.beside)
        if outcome.interrupted:
            raise KeyboardInterrupt
        return outcome

    def _raceable(
        self, kept: Sequence[Candidate], standing: Standing | None
    ) -> Sequence[Candidate]:
        """Return the fixes that may be raced beside `kept`."""
        return [
            one
            for one in self._agenda.ask_beside(kept, standing)
            if not one.fix.own_process and self._agenda.forbidden(one, kept) is None
            and (one.bound is None or one.bound >= MIN_RACED_BOUND)
        ]  # fmt: skip

    def _prove_race(self, raced: RaceOutcome) -> Total | None:
        """Prove what the race proposes in fresh processes, and keep it. Where the results differ,
        prove what is left without the fix that is likeliest to have changed them."""
        search = self.search
        for proposal in proposals(raced.kept):
            if search.bench.left_s() < search.cost_s(proposal):
                self._stopped = because(SearchCode.OUT_OF_TIME)
                break
            search.doing("proving in fresh processes: " + " with ".join(map(_title, proposal)))
            has_time = search.bench.left_s() > search.confirming_s(proposal)
            result, parity = search.judged_contest(
                [], proposal, proposal[:1], min_pairs=MIN_CONFIRMING_PAIRS if has_time else 1
            )
            for trial in result.before:
                search.judge.add_repeat(trial)
            search.noise.baseline_grew(search.measure)
            if result.outcome == "REFUSED":
                refused = [one for one in proposal if one not in search.rungs]
                search.rungs.note(refused, "rejected", result, parity, [])
                continue
            if result.outcome == "UNDECIDED":
                result = self._decided_in_one_process(proposal, result)
            if result.outcome != "FASTER" or result.ratio is None:
                search.rungs.note(proposal, "rejected", result, parity, [])
                break
            missing = [
                one for one in proposal if search.judge.missing(result.after[0], [one]) is not None
            ]
            kept = [one for one in proposal if one not in missing]
            search.rungs.note(kept, "kept", result, parity, [])
            for one in kept:
                known = raced.raced.get(key(one))
                search.rungs.note_race(one, known.standing if known is not None else None)
            search.kept = kept
            search.settled += kept
            search.history.fix_kept()
            search.noise.fix_kept(result.before, result.after, search.clock(search.measure))
            return total_of(search, kept, result)
        return None

    def _decided_in_one_process(self, proposal: Sequence[Candidate], result: Contest) -> Contest:
        """Decide a contest whose fresh processes lie too far apart: race the same two sets in one
        more fresh process, interleaved. It decided nothing before, and its noise is common to
        both; but the other processes must not contradict it."""
        search = self.search
        if self._racing is None or result.ratio is None:
            return result
        search.doing("deciding in one fresh process: " + " with ".join(map(_title, proposal)))
        race = self._racing.make(lambda: search.bench.left_s() - search.cost_s(proposal))
        try:
            standing = race.heat((), [asked(proposal)], MAX_DECIDING_S).others[0]
        except CannotRace:
            return result
        finally:
            race.close()
        ratio = standing.ratio
        if ratio is None or standing.verdict != "FASTER" or ratio.ci_low > result.ratio.ci_high:
            return result
        reason = because_of_ratio(SearchCode.FASTER_IN_ONE_PROCESS, ratio)
        return replace(
            result, outcome="FASTER", reason=reason, ratio=ratio, between=result.ratio,
            raced_ms=(standing.base_ms, standing.step_ms),
        )  # fmt: skip

    def _note_unable(self) -> None:
        for one in self._agenda.without_rung():
            if (reason := self._agenda.unable(one)) is not None:
                self.search.rungs.not_tried(one, reason)

    def _note_untried(self, ended: Reason | None) -> None:
        """Note every fix that was not tried. `ended` is why the search ended, if not for time."""
        self._note_unable()
        noted = {rung.fix for rung in self.search.rungs.all()}
        proposed = [one for one in self._proposed if one.fix.id not in noted]
        ids = {one.fix.id for one in proposed}
        rest = [one for one in self._agenda.without_rung() if one.fix.id not in ids]
        for one in (*proposed, *rest):
            if ended is None:
                self._stopped = because(SearchCode.OUT_OF_TIME)
            self.search.rungs.not_tried(one, ended or because(SearchCode.OUT_OF_TIME))

    def _try_all(self) -> None:
        """Try the first fix that may be tried and was not, until none is left: what is kept may
        make others possible, and rule others out."""
        while self._is_too_large() and (one := self._agenda.next()) is not None:
            if not self._has_time_to_try([one]):
                self._stopped = because(SearchCode.OUT_OF_TIME)
                self.search.rungs.not_tried(one, self.search.too_long(one))
                continue
            self.search.share_s = self._agenda.share_s(one)
            if is_compiler(one):
                self._try_with_companions(one)
            else:
                self._try_alone_or_with_partner(one)
            if one not in self.search.rungs:
                self.search.rungs.not_tried(one, because(SearchCode.OUT_OF_TIME))
            self._try_other_options(one)
        if self._fits is not None:
            return
        for one in self._retry_alone:
            if all(other.fix.slot != one.fix.slot for other in self.search.kept):
                self._try_compiler_alone(one)
        self._try_again_beside_new()
        self._measure_undecided()
        self.search.share_s = math.inf
        self._note_unable()  # before a fix that is the reason is dropped

    def _is_too_large(self) -> bool:
        """Return whether the search has to go on: there is no budget of memory, or the largest peak
        of a trial with what is kept exceeds it."""
        budget, kept = self._settings.fit_bytes, self.search.kept
        peaks = [trial.peak_bytes for trial in self.search.judge.baseline]
        if kept:
            peaks = [self.search.rungs[kept[-1]].peak_bytes or 0]
        if budget and peaks and 0 < max(peaks) <= budget:
            self._fits = because(SearchCode.FITS, peak_bytes=max(peaks), fit_bytes=budget)
        return self._fits is None

    def _try_alone_or_with_partner(self, one: Candidate) -> None:
        partners = self._agenda.partners(one)
        first = [other for other in partners if other.fix.id == one.brings]
        if first and self._try([one, *first]).outcome == "FASTER":
            return
        if first and not self._has_time_to_try([one]):
            return
        if self._try([one]).outcome not in ("SLOWER", "SAME", "UNDECIDED"):
            return
        for partner in self._agenda.partners(one):
            if partner not in first and self._try([one, partner]).outcome == "FASTER":
                break
        if self.search.rungs[one].status == "rejected":
            self._agenda.again.append(one)

    def _try_with_companions(self, one: Candidate) -> None:
        """Try a compiler together with all that did not pay alone. What it gains depends on what it
        compiles, and compiling takes long; `proof` leaves each fix out again."""
        companions = self._agenda.companions(one)
        outcome = self._try([one, *companions], needed=1).outcome if companions else None
        finer = [other for other in companions if other.fix.precision == one.fix.precision]
        fewer = 0 < len(finer) < len(companions)
        if outcome == "REFUSED" and fewer and self._has_time_to_try([one, *finer]):
            # The lowest precision is the likeliest to have changed the results.
            outcome, companions = self._try([one, *finer], needed=1).outcome, finer
        if outcome == "FASTER":
            again = self._agenda.again
            self._agenda.again = [other for other in again if other not in companions]
        elif outcome == "SLOWER" and one in self.search.rungs:
            self._retry_alone.append(one)  # quick fixes come first
        else:
            self._try_compiler_alone(one)

    def _try_compiler_alone(self, one: Candidate) -> None:
        if self._has_time_to_try([one]) and self._try([one]).outcome == "UNDECIDED":
            self._agenda.again.append(one)

    def _has_time_to_try(self, tried: Sequence[Candidate]) -> bool:
        return self.search.has_time_to_try([*self.search.kept, *tried])

    def _try_other_options(self, one: Candidate) -> None:
        """Try other options of a fix that was applied: where one number paid, another may pay
        more."""
        for options in one.others:
            other = replace(one, options=options, others=(), brings="")
            rung = self.search.rungs[one]
            applied = rung.status in ("kept", "dropped") or rung.ratio is not None
            if one.fix.saves == "memory" and rung.status != "kept":
                return  # more of what saves nothing saves nothing
            if not applied or other in self.search.rungs or not self._has_time_to_try([other]):
                return
            if self._try([other]).outcome == "UNDECIDED":
                self._agenda.again.append(other)

    def _try_again_beside_new(self) -> None:
        """Try fixes again that were tried before something that moves the bottleneck was kept."""
        for one in self._agenda.again:
            slots = {other.fix.slot for other in self.search.kept if other.fix.slot}
            if one.fix.slot in slots:
                continue
            beside = set(self.search.rungs[one].beside)
            movers = [c for c in self.search.kept if c.fix.slot in ("compile", "precision")]
            if all(c.fix.id in beside for c in movers):
                continue
            if self._has_time_to_try([one]):
                self._try([one])

    def _measure_undecided(self) -> None:
        """Measure undecided fixes once more if there is time, the most promising first."""
        self.search.share_s = math.inf
        ratios = [(self.search.rungs[one].ratio, one) for one in self._agenda.again]
        promising = [
            (ratio.value, one)
            for ratio, one in ratios
            if ratio is not None
            and ratio.pairs < MAX_PAIRS
            and ratio.value > MIN_BOUND
            and ratio.ci_high > MIN_HOPEFUL_GAIN
        ]
        for _, one in sorted(promising, key=lambda pair: -pair[0]):
            others = [c.fix for c in self.search.kept if c.fix.id != one.fix.id]
            taken = {fix.slot for fix in others if fix.slot}
            if self.search.rungs[one].status != "rejected" or one.fix.slot in taken:
                continue
            if self._has_time_to_try([one]):
                self._try([one])
            else:
                self._stopped = because(SearchCode.OUT_OF_TIME)

    def _try(self, tried: Sequence[Candidate], needed: int = 2) -> Contest:
        """Try these fixes together; the first `needed` have to find something to change."""
        search, self._trying = self.search, tried[0]
        bound = self._agenda.bound(tried)
        search.doing(_announcement(tried, bound))
        slots = {one.fix.slot for one in tried if one.fix.slot}
        ids = {one.fix.id for one in tried}
        replaced = [c for c in search.kept if c.fix.slot in slots or c.fix.id in ids]
        beside = [one for one in search.kept if one not in replaced]
        result, parity = self._contest(tried, [*beside, *tried], needed)
        if result.outcome == "FASTER" and (too_slow := self._too_slow(result)):
            result = replace(result, outcome="REFUSED", reason=too_slow)
        if self._settings.goal in ("speed", "throughput"):  # bounds are about time
            result = replace(result, bound=bound)
        search.bounds_refuted |= result.exceeds_bound
        missing = {
            key(one): reason
            for one in tried
            for trial in result.after[:1]
            if (reason := search.judge.missing(trial, [one])) is not None
        }
        applied = [one for one in tried if key(one) not in missing]
        if result.outcome == "FASTER":
            search.rungs.note(applied, "kept", result, parity, beside)
            for one in tried:
                if key(one) in missing:
                    search.rungs.not_applied(one, missing[key(one)], [*beside, *applied])
            for one in replaced:
                search.rungs.drop(one, because(SearchCode.REPLACED, title=_title(tried[0])))
            search.kept = [*beside, *applied]
            search.history.fix_kept()
            search.noise.fix_kept(result.before, result.after, search.clock(search.measure))
        elif result.outcome == "CUT":
            self._stopped = because(SearchCode.OUT_OF_TIME)
            search.rungs.not_tried(tried[0], result.reason)
        elif tried[0] not in applied:
            search.rungs.note(tried[:1], "not applied", result, parity, beside, tried[1:])
        elif not missing or needed == 1:
            search.rungs.note(tried[:1], "rejected", result, parity, beside, applied[1:])
            search.rungs.rejected_with(applied[0], applied[1:], result.reason)
        # Otherwise its partner found nothing to change: what is known of the fix alone stays.
        return result

    def _contest(
        self, tried: Sequence[Candidate], after: Sequence[Candidate], needed: int
    ) -> tuple[Contest, Parity | None]:
        """Hold a contest. If the fix was undecided, and nothing else was kept since, the earlier
        pairs count."""
        search, name = self.search, key(tried[0])
        kept, so_far, known = self._undecided.pop(name, ((), None, None))
        same = so_far is not None and len(tried) == 1 and kept == asked(search.kept)
        result, parity = search.judged_contest(
            search.kept, after, tried[:needed], so_far=so_far if same else None
        )
        parity = parity or (known if same else None)
        if result.outcome == "UNDECIDED" and len(tried) == 1:
            self._undecided[name] = (asked(search.kept), result, parity)
        return result, parity

    def _too_slow(self, result: Contest) -> Reason | None:
        """Return whether a fix that saves memory or energy makes the step too slow. The limit is a
        multiple of the baseline's step, because two fixes that take 1.7 × as long take 2.8 ×
        together."""
        before_ms, after_ms = typical_ms(self.search.judge.baseline), result.step_ms[1]
        if self._settings.goal in ("speed", "throughput") or after_ms <= MAX_SLOWDOWN * before_ms:
            return None
        return because(SearchCode.TOO_SLOW, factor=after_ms / before_ms)

    def _larger_batch(self) -> Candidate | None:
        """Return the larger batches, if they are wanted and possible."""
        sizes = [one for one in self._agenda.all() if one.fix.id == LARGER_BATCH]
        able = self._settings.batch and sizes and self._agenda.unable(sizes[0]) is None
        return sizes[0] if able else None


def _announcement(tried: Sequence[Candidate], bound: float | None) -> str:
    titles = " with ".join(map(_title, tried))
    shown = bound is not None and bound <= MAX_SHOWN_BOUND
    return titles + (f", at most {bound:.2f} ×" if shown else "")


def _title(one: Candidate) -> str:
    options = ", ".join(f"{name} {value}" for name, value in one.options.items())
    return f"{one.fix.title} ({options})" if options else one.fix.title
