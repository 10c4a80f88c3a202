"""The search: changes in the order of what they may gain, each tried on top of those kept, kept
where it is faster and equal; partners tried as one; a second chance once the bottleneck has moved;
at the end each is left out once, and the whole is confirmed in fresh processes."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.changes.change import Change
from ridgeline.optimization.contest import Bench, Contest, contest, step_ns, timed
from ridgeline.parity.compare import compare
from ridgeline.records.optimized import Optimized, Rung, Status, Total
from ridgeline.records.parity import Alters, Parity
from ridgeline.records.trial import Asked, Trial
from ridgeline.statistics.pooled import Pool

LEAST_BOUND = 1.02
REPEATS = 3
CONFIRMED_BY = 4
"""Pairs at most for leaving one out, and for the whole."""
MOVES = ("compile", "precision")
"""Slots whose change moves the bottleneck: what did not pay before may pay behind it."""
SURE = 1.05
"""A change known to gain more than this is not left out again to see."""
_CLASSES: tuple[Alters, ...] = ("nothing", "rounding", "semantics")
ULP = 2.0**-23
_JITTERS = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How far a type rounds: what that alone does to the program is tried, too."""
_PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


class Candidate(Struct, frozen=True, kw_only=True):
    change: Change
    options: dict[str, str] = {}
    unable: str = ""
    """Why it cannot win here; "" where it may."""
    bound: float | None = None

    @property
    def asked(self) -> Asked:
        return Asked(change=self.change.id, options=self.options)


Say = Callable[[str], None]


class Ladder:
    def __init__(
        self, bench: Bench, candidates: Sequence[Candidate], *, keep_exact: bool = False,
        say: Say = lambda text: None,
    ) -> None:  # fmt: skip
        self._bench = bench
        self._candidates = {one.change.id: one for one in candidates}
        self._keep_exact = keep_exact
        self._say = say
        self._pool = Pool()
        self._baseline: list[Trial] = []
        self._kept: list[Candidate] = []
        self._rungs: dict[str, Rung] = {}
        self._again: list[Candidate] = []
        """Tried and not faster, before the bottleneck moved."""
        self._stopped = ""

    def climb(self, command: str) -> Optimized:
        total, why = None, ""
        try:
            why = self._know_the_baseline()
            if not why:
                total = self._climbed()
        except KeyboardInterrupt:  # what is known so far is not lost
            why = "interrupted"
        return Optimized(
            command=command,
            rungs=tuple(self._rungs[name] for name in self._candidates if name in self._rungs),
            total=total,
            noise=self._pool.spread / math.sqrt(2) if self._baseline else 0.0,
            stopped=why or self._stopped,
        )

    def _climbed(self) -> Total | None:
        for candidate in self._candidates.values():
            self._consider(candidate)
        self._second_chances()
        self._leave_out()
        return self._confirm()

    def _know_the_baseline(self) -> str:
        """Repeats, and one moved by rounding alone; "" or why there is nothing to compare with."""
        coarse = _JITTERS.get(_precision([c for c in self._candidates.values() if not c.unable]))
        moved = [ULP, *([coarse] if coarse and not self._keep_exact else [])]
        for jitter in [*([0.0] * REPEATS), *moved]:
            told = ", parameters moved by rounding" if jitter else ""
            self._say(f"the program as it is{told}")
            found = self._bench.trial((), jitter=jitter)
            if found.trial is None:
                return f"the program as it is: {found.failed}"
            if not timed(found.trial):
                return found.trial.ended or "the program takes too few steps to be timed"
            self._baseline.append(found.trial)
        self._pool.runs([math.log(step_ns(trial)) for trial in self._baseline])
        return ""

    def _consider(self, candidate: Candidate) -> None:
        change = candidate.change
        if change.id in self._rungs:
            return  # as somebody's partner
        why = candidate.unable
        if not why and self._keep_exact and change.alters != "nothing":
            why = f"it alters {change.alters}"
        if not why and candidate.bound is not None and candidate.bound < LEAST_BOUND:
            why = f"at most {candidate.bound:.2f} × to gain"
        if not why and not self._bench.time_for(2):
            why = self._stopped = "the time was over"
        if why:
            self._note([candidate], "not tried", why)
            return
        result = self._try([candidate])
        if result.says in ("SLOWER", "SAME", "UNDECIDED"):
            partners = [self._candidates.get(name) for name in change.together]
            for partner in partners:
                if partner is not None and self._free(partner) and self._bench.time_for(2):
                    self._try([candidate, partner])
                    break
            if self._rungs[change.id].status == "rejected":
                self._again.append(candidate)

    def _free(self, partner: Candidate) -> bool:
        """Not tried yet, and it may be."""
        allowed = not self._keep_exact or partner.change.alters == "nothing"
        return not partner.unable and partner.change.id not in self._rungs and allowed

    def _try(self, tried: Sequence[Candidate]) -> Contest:
        names = " with ".join(one.change.title for one in tried)
        bound = tried[0].bound
        self._say(f"{names}" + (f", at most {bound:.2f} ×" if bound is not None else ""))
        slots = {one.change.slot for one in tried if one.change.slot}
        replaced = [one for one in self._kept if one.change.slot in slots]
        after = [one for one in self._kept if one not in replaced] + list(tried)
        alike = self._drawn_alike(after)
        result = alike if isinstance(alike, Contest) else contest(
            self._bench, self._pool, _asked(self._kept), _asked(after),
            refuse=lambda trial: self._refused(trial, alike or trial, tried, after),
        )  # fmt: skip
        compared = alike if isinstance(alike, Trial) else next(iter(result.after), None)
        parity = self._parity(compared, after) if compared is not None else None
        self._settle(tried, replaced, result, parity)
        return result

    def _drawn_alike(self, after: Sequence[Candidate]) -> Trial | Contest | None:
        """What is compiled draws other random numbers: dropout drops others, and nothing could be
        compared. So such a set has a trial of its own in which it draws as it did before."""
        if not any(one.change.slot == "compile" for one in after):
            return None
        found = self._bench.trial(_asked(after), same_random=True)
        return found.trial or Contest(says="FAILED", why=found.failed)

    def _refused(
        self, trial: Trial, compared: Trial, tried: Sequence[Candidate], after: Sequence[Candidate]
    ) -> str:
        applied = {one.change for one in trial.applied}
        for one in tried:
            if one.change.id not in applied:
                return next(
                    (n.why for n in trial.not_applied if n.change == one.change.id),
                    "it found nothing to change",
                )
        parity = self._parity(compared, after)
        return parity.why if parity.equality in ("differs", "unknown") else ""

    def _parity(self, trial: Trial, changes: Sequence[Candidate]) -> Parity:
        return compare(self._baseline, trial, _alters(changes), _precision(changes))

    def _settle(
        self,
        tried: Sequence[Candidate],
        replaced: Sequence[Candidate],
        result: Contest,
        parity: Parity | None,
    ) -> None:
        after = result.after[0] if result.after else None
        missing = after is not None and not {c.change.id for c in tried} <= {
            one.change for one in after.applied
        }
        if result.says == "FASTER":
            beside = [one for one in self._kept if one not in replaced]
            for one in replaced:
                title = tried[0].change.title
                self._rungs[one.change.id] = replace(
                    self._rungs[one.change.id], status="dropped", why=f"{title} is faster"
                )
            self._kept = [*beside, *tried]
            self._note(tried, "kept", result.why, result, parity=parity)
        else:
            status: Status = "not applied" if missing else "rejected"
            self._note(tried[:1], status, result.why, result, tried[1:], parity)

    def _note(
        self,
        noted: Sequence[Candidate],
        status: Status,
        why: str,
        result: Contest | None = None,
        partners: Sequence[Candidate] = (),
        parity: Parity | None = None,
    ) -> None:
        before = result.before[0] if result is not None and result.before else None
        after = result.after[0] if result is not None and result.after else None
        for one in noted:
            others = [c.change.id for c in (*noted, *partners) if c is not one]
            self._rungs[one.change.id] = Rung(
                change=one.change.id,
                title=one.change.title,
                options=one.options,
                status=status,
                why=why,
                alters=one.change.alters,
                beside=tuple(c.change.id for c in self._kept if c not in noted),
                together=tuple(others),
                ratio=result.ratio if result is not None else None,
                bound=one.bound,
                parity=parity,
                peak_bytes=after.peak_bytes if after is not None else None,
                peak_before_bytes=before.peak_bytes if before is not None else None,
                compile_s=after.compile_s if after is not None else 0.0,
                pays_after=pays_after(result) if result is not None else None,
            )

    def _second_chances(self) -> None:
        moved = any(one.change.slot in MOVES for one in self._kept)
        for candidate in self._again if moved else ():
            taken = any(one.change.slot == candidate.change.slot != "" for one in self._kept)
            beside = set(self._rungs[candidate.change.id].beside)
            new = [one for one in self._kept if one.change.slot in MOVES]
            if taken or all(one.change.id in beside for one in new):
                continue
            if self._bench.time_for(4):
                self._try([candidate])

    def _leave_out(self) -> None:
        for one in list(self._kept):
            ratio = self._rungs[one.change.id].ratio
            sure = ratio is not None and ratio.ci_low > SURE and self._kept[-1] is one
            if len(self._kept) < 2 or sure or not self._bench.time_for(2 * CONFIRMED_BY):
                continue
            self._say(f"without {one.change.title}")
            rest = [other for other in self._kept if other is not one]
            result = contest(
                self._bench, self._pool, _asked(rest), _asked(self._kept), most=CONFIRMED_BY
            )
            if result.says != "FASTER":
                self._kept = rest
                self._rungs[one.change.id] = replace(
                    self._rungs[one.change.id],
                    status="dropped",
                    why=f"no longer of use beside the others: {result.why}",
                )

    def _confirm(self) -> Total | None:
        if not self._kept:
            return None
        self._say("all that was kept, against the program as it is")
        alike = self._drawn_alike(self._kept)
        result = contest(self._bench, self._pool, (), _asked(self._kept), most=CONFIRMED_BY)
        if result.ratio is None or isinstance(alike, Contest):
            return None
        before, after = result.step_ms
        return Total(
            ratio=result.ratio,
            before_ms=before,
            after_ms=after,
            parity=compare(
                self._baseline, [alike] if alike is not None else result.after,
                _alters(self._kept), _precision(self._kept),
            ),
            peak_before_bytes=max((trial.peak_bytes for trial in result.before), default=0),
            peak_bytes=max((trial.peak_bytes for trial in result.after), default=0),
            compile_s=max((trial.compile_s for trial in result.after), default=0.0),
            pays_after=pays_after(result),
            applied=result.after[0].applied,
        )  # fmt: skip


def pays_after(result: Contest) -> int | None:
    """Steps; None: nothing was compiled, or it never pays."""
    if result.says != "FASTER" or not result.after:
        return None
    before, after = result.step_ms
    spent = max((trial.compile_s for trial in result.after), default=0.0)
    spent -= max((trial.compile_s for trial in result.before), default=0.0)
    return math.ceil(1e3 * spent / (before - after)) if spent > 0.05 and before > after else None


def _asked(changes: Sequence[Candidate]) -> tuple[Asked, ...]:
    return tuple(one.asked for one in changes)


def _alters(changes: Sequence[Candidate]) -> Alters:
    """The most that any of them may."""
    classes = [one.change.alters for one in changes]
    return max(classes, key=_CLASSES.index) if classes else "nothing"


def _precision(changes: Sequence[Candidate]) -> str:
    """The lowest of them."""
    known = [one.change.precision for one in changes if one.change.precision in _PRECISIONS]
    return max(known, key=_PRECISIONS.index) if known else "float32"
