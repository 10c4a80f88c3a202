"""The search: changes in the order of what they may gain, each tried on top of those kept, kept
where it is better and equal; partners tried as one; what did not pay alone tried again with what
moves the bottleneck. Then `proof`: each is left out once, and the whole is confirmed."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ridgeline.optimization.agenda import LEAST_BOUND, Agenda, Ask, Wants, compiles
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.contest import Contest
from ridgeline.optimization.measure import MEASURES, typical_ms
from ridgeline.optimization.proof import confirm, larger, leave_out
from ridgeline.optimization.rungs import Key, key
from ridgeline.optimization.search import Search, Voice
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized, SearchCode, Total
from ridgeline.records.parity import Parity
from ridgeline.records.trial import Asked
from ridgeline.statistics.pooled import MOST

MAY_GAIN = 1.05
"""Where it may still gain so much, and did not fall behind, it is looked at again in the end."""
MAX_TOLD_BOUND = 10.0
"""A larger bound is not announced: it says only that almost all of the step may go."""
SLOWEST = 2.0
"""To save memory a step may take so many times as long, not more."""


class Ladder:
    def __init__(
        self,
        bench: Bench,
        candidates: Sequence[Candidate] | Ask,
        wants: Wants | None = None,
        voice: Voice | None = None,
    ) -> None:
        self._wants = wants or Wants()
        ask: Ask = candidates if callable(candidates) else lambda kept: candidates
        self._search = Search(
            bench, measure=MEASURES[self._wants.goal], exact=self._wants.keep_exact,
            voice=voice or Voice(),
        )  # fmt: skip
        self._agenda = Agenda(self._search, ask, self._wants)
        self._undecided: dict[Key, tuple[tuple[Asked, ...], Contest | None, Parity | None]] = {}
        self._alone: list[Candidate] = []
        """Compilers that were worse with what is usual beside them."""
        self._trying: Candidate | None = None
        self._stopped: Reason | None = None

    @property
    def search(self) -> Search:
        return self._search

    def climb(self, command: str) -> Optimized:
        search = self._search
        ended: Reason | None = None
        total: Total | None = None
        with_batch: Total | None = None
        try:
            ended = self._learn()
            if ended is None:
                search.grows = self._sizes()
                self._try_all()
                leave_out(search)
                total = confirm(search)
                search.grows = None
                sizes = self._sizes()
                with_batch = larger(search, sizes) if sizes is not None else None
        except KeyboardInterrupt:  # what is known so far is not lost
            ended = because(SearchCode.INTERRUPTED)
            if self._trying is not None and search.so_far and self._trying not in search.table:
                ratio, pairs = search.so_far
                reason = because(SearchCode.INTERRUPTED_AFTER, value=ratio, pairs=pairs)
                search.table.untried(self._trying, reason)
        judge = search.judge
        if judge.baseline:
            self._name_untried(ended)
        return Optimized(
            command=command,
            goal=self._wants.goal,
            measured=search.measure.name,
            baseline_ms=typical_ms(tuple(judge.baseline)),
            baseline_bytes=judge.peak_bytes,
            control=search.spreads.control(search.measure),
            rungs=search.table.rungs(),
            total=total,
            with_batch=with_batch,
            caveats=tuple(one.fix.redraws for one in search.kept if one.fix.redraws),
            noise=search.spreads.noise(search.measure),
            stopped=ended or search.trouble or self._stopped,
        )

    def _learn(self) -> Reason | None:
        search = self._search
        possible = [one for one in self._agenda.all() if self._agenda.unable(one) is None]
        return search.judge.learn(possible, search.exact, lambda found: search.arms.saw((), found))

    def _name_unable(self) -> None:
        for one in self._agenda.without_rung():
            if (reason := self._agenda.unable(one)) is not None:
                self._search.table.untried(one, reason)

    def _name_untried(self, ended: Reason | None) -> None:
        """Note every fix that was not tried. `ended` is why the search ended, if not for time."""
        self._name_unable()
        for one in self._agenda.without_rung():
            if ended is None:
                self._stopped = because(SearchCode.OUT_OF_TIME)
            self._search.table.untried(one, ended or because(SearchCode.OUT_OF_TIME))

    def _try_all(self) -> None:
        """The first that may be tried and was not, until none is left: what is kept may make
        others possible, and ends others."""
        while (one := self._agenda.next()) is not None:
            if not self._time_for([one]):
                self._stopped = because(SearchCode.OUT_OF_TIME)
                self._search.table.untried(one, self._search.too_long(one))
                continue
            self._search.share_s = self._agenda.share_s(one)
            if compiles(one):
                self._with_companions(one)
            else:
                self._alone_or_with_partner(one)
            if one not in self._search.table:
                self._search.table.untried(one, because(SearchCode.OUT_OF_TIME))
            self._other_options(one)
        for one in self._alone:
            if all(other.fix.slot != one.fix.slot for other in self._search.kept):
                self._compiled_alone(one)
        self._second_chances()
        self._second_looks()
        self._search.share_s = math.inf
        self._name_unable()  # before one that is the reason is left out

    def _alone_or_with_partner(self, one: Candidate) -> None:
        partners = self._agenda.partners(one)
        first = [other for other in partners if other.fix.id == one.brings]
        if first and self._try([one, *first]).outcome == "FASTER":
            return
        if first and not self._time_for([one]):
            return
        if self._try([one]).outcome not in ("SLOWER", "SAME", "UNDECIDED"):
            return
        for partner in self._agenda.partners(one):
            if partner not in first and self._try([one, partner]).outcome == "FASTER":
                break
        if self._search.table[one].status == "rejected":
            self._agenda.again.append(one)

    def _with_companions(self, one: Candidate) -> None:
        """What a compiler gains depends on what it compiles, and compiling takes long: so all that
        did not pay alone is put on at once; `proof` leaves each out again."""
        beside = self._agenda.companions(one)
        outcome = self._try([one, *beside], needed=1).outcome if beside else None
        finer = [other for other in beside if other.fix.precision == one.fix.precision]
        if outcome == "REFUSED" and 0 < len(finer) < len(beside) and self._time_for([one, *finer]):
            # The lowest precision is the likeliest to have made other results of it.
            outcome, beside = self._try([one, *finer], needed=1).outcome, finer
        if outcome == "FASTER":
            self._agenda.again = [other for other in self._agenda.again if other not in beside]
        elif outcome == "SLOWER" and one in self._search.table:
            self._alone.append(one)  # what is quick comes first
        else:
            self._compiled_alone(one)

    def _compiled_alone(self, one: Candidate) -> None:
        if self._time_for([one]) and self._try([one]).outcome == "UNDECIDED":
            self._agenda.again.append(one)

    def _time_for(self, tried: Sequence[Candidate]) -> bool:
        return self._search.time_to_try([*self._search.kept, *tried])

    def _other_options(self, one: Candidate) -> None:
        """Of a change that was applied: where one number paid, another may pay more."""
        for options in one.others:
            other = replace(one, options=options, others=(), brings="")
            rung = self._search.table[one]
            applied = rung.status in ("kept", "dropped") or rung.ratio is not None
            if one.fix.saves == "memory" and rung.status != "kept":
                return  # more of what saves nothing saves nothing
            if not applied or other in self._search.table:
                return
            if not self._time_for([other]):
                return
            if self._try([other]).outcome == "UNDECIDED":
                self._agenda.again.append(other)

    def _second_chances(self) -> None:
        """Those tried before something that moves the bottleneck was kept."""
        for one in self._agenda.again:
            slots = {other.fix.slot for other in self._search.kept if other.fix.slot}
            if one.fix.slot in slots:
                continue
            beside = set(self._search.table[one].beside)
            new = [c for c in self._search.kept if c.fix.slot in ("compile", "precision")]
            if all(c.fix.id in beside for c in new):
                continue
            if self._time_for([one]):
                self._try([one])

    def _second_looks(self) -> None:
        """Undecided, and there is time: the most promising first."""
        self._search.share_s = math.inf
        undecided = [(self._search.table[one].ratio, one) for one in self._agenda.again]
        promising = [
            (ratio.value, one)
            for ratio, one in undecided
            if ratio is not None
            and ratio.pairs < MOST
            and ratio.value > LEAST_BOUND
            and ratio.ci_high > MAY_GAIN
        ]
        for _, one in sorted(promising, key=lambda pair: -pair[0]):
            others = [c.fix for c in self._search.kept if c.fix.id != one.fix.id]
            taken = {fix.slot for fix in others if fix.slot}
            if self._search.table[one].status != "rejected" or one.fix.slot in taken:
                continue
            if self._time_for([one]):
                self._try([one])
            else:
                self._stopped = because(SearchCode.OUT_OF_TIME)

    def _try(self, tried: Sequence[Candidate], needed: int = 2) -> Contest:
        """All at once; the first `needed` have to find something to change."""
        search, self._trying = self._search, tried[0]
        bound = self._agenda.bound(tried)
        search.say(_announced(tried, bound))
        slots = {one.fix.slot for one in tried if one.fix.slot}
        same = {one.fix.id for one in tried}
        replaced = [c for c in search.kept if c.fix.slot in slots or c.fix.id in same]
        beside = [one for one in search.kept if one not in replaced]
        after = [*beside, *tried]
        result, parity = self._contested(tried, after, needed)
        if result.outcome == "FASTER" and (too_slow := self._too_slow(result)):
            result = replace(result, outcome="REFUSED", reason=too_slow)
        if self._wants.goal in ("speed", "throughput"):  # bounds are about time
            result = replace(result, bound=bound)
        search.bounds_refuted |= result.exceeds_bound
        unfit = self._unfit(tried, result)
        on = [one for one in tried if one not in unfit]
        if result.outcome == "FASTER":
            search.table.note(on, "kept", result, parity, beside)
            for one in unfit:
                missing = search.judge.missing(result.after[0], [one])
                search.table.unfit(
                    one, missing or because(SearchCode.NOTHING_TO_CHANGE), [*beside, *on]
                )
            for one in replaced:
                search.table.drop(one, because(SearchCode.REPLACED, title=_named(tried[0])))
            search.kept = [*beside, *on]
            search.arms.decided()
            search.spreads.kept(result.before, result.after, search.measure)
        elif result.outcome == "CUT":
            self._stopped = because(SearchCode.OUT_OF_TIME)
            search.table.untried(tried[0], result.reason)
        elif tried[0] not in on:
            search.table.note(tried[:1], "not applied", result, parity, beside, tried[1:])
        elif not unfit or needed == 1:
            search.table.note(tried[:1], "rejected", result, parity, beside, on[1:])
            search.table.only_with(on[0], on[1:], result.reason)
        # else what it pays with found nothing to change: what is known of it alone stays
        return result

    def _contested(
        self, tried: Sequence[Candidate], after: Sequence[Candidate], needed: int
    ) -> tuple[Contest, Parity | None]:
        """Undecided once, and nothing else was kept since: those pairs count on."""
        search, name = self._search, key(tried[0])
        kept, so_far, known = self._undecided.pop(name, ((), None, None))
        same = so_far is not None and len(tried) == 1 and kept == asked(search.kept)
        result, parity = search.judged(
            search.kept, after, tried[:needed], so_far=so_far if same else None
        )
        parity = parity or (known if same else None)
        if result.outcome == "UNDECIDED" and len(tried) == 1:
            self._undecided[name] = (asked(search.kept), result, parity)
        return result, parity

    def _unfit(self, tried: Sequence[Candidate], result: Contest) -> list[Candidate]:
        """Those that found nothing to change."""
        first, judge = result.after[:1], self._search.judge
        return [one for one in tried for trial in first if judge.missing(trial, [one])]

    def _too_slow(self, result: Contest) -> Reason | None:
        """What saves memory or energy may take time, but not any: of the unchanged program's step,
        since two that take 1.7 × as long take 2.8 × together."""
        before, after = typical_ms(tuple(self._search.judge.baseline)), result.step_ms[1]
        if self._wants.goal in ("speed", "throughput") or after <= SLOWEST * before:
            return None
        return because(SearchCode.TOO_SLOW, factor=after / before)

    def _sizes(self) -> Candidate | None:
        """Larger batches, where they are wanted and possible."""
        sizes = [one for one in self._agenda.all() if one.fix.id == "larger-batch"]
        can_try = self._wants.batch and sizes and self._agenda.unable(sizes[0]) is None
        return sizes[0] if can_try else None


def _announced(tried: Sequence[Candidate], bound: float | None) -> str:
    names = " with ".join(map(_named, tried))
    told = bound is not None and bound <= MAX_TOLD_BOUND
    return names + (f", at most {bound:.2f} ×" if told else "")


def _named(one: Candidate) -> str:
    told = ", ".join(f"{name} {value}" for name, value in one.options.items())
    return f"{one.fix.title} ({told})" if told else one.fix.title
