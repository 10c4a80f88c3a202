"""The rungs of a search: what became of each fix, as the search goes on."""

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.contest import Contest, because_of_ratio
from ridgeline.optimization.race import Standing
from ridgeline.records.facts import Ratio, Reason
from ridgeline.records.optimized import Earlier, Rung, SearchCode, Status
from ridgeline.records.parity import Parity

MIN_COMPILING_S = 0.05
Key = tuple[str, tuple[tuple[str, str], ...]]


def key(one: Candidate) -> Key:
    return one.fix.id, tuple(sorted(one.options.items()))


class Rungs:
    """The rungs in the order in which the fixes were tried."""

    def __init__(self, settled: Callable[[Rung], None]) -> None:
        self._rungs: dict[Key, Rung] = {}
        self._titles: dict[str, str] = {}
        self._settled = settled
        self._with: dict[Key, Earlier] = {}
        """For fixes that were tried beside another and not kept: how that contest ended."""

    def __contains__(self, one: Candidate) -> bool:
        return key(one) in self._rungs

    def __getitem__(self, one: Candidate) -> Rung:
        return self._rungs[key(one)]

    def all(self) -> tuple[Rung, ...]:
        return tuple(self._rungs.values())

    def not_tried(self, one: Candidate, reason: Reason) -> None:
        """Note that a fix was not tried, unless it has a rung already."""
        if key(one) not in self._rungs:
            earlier = self._with.get(key(one))
            self._rungs[key(one)] = replace(_rung(one, "not tried", reason), earlier=earlier)

    def rejected_with(self, one: Candidate, others: Sequence[Candidate], reason: Reason) -> None:
        """Note that `others` were rejected together with `one`: they have no rung of their own."""
        earlier = Earlier(together=(one.fix.title,), reason=reason)
        self._with |= {key(other): earlier for other in others}

    def not_applied(self, one: Candidate, reason: Reason, beside: Sequence[Candidate]) -> None:
        """Note that a fix that was applied with others found nothing to change."""
        names = tuple(other.fix.id for other in beside)
        self._rungs[key(one)] = replace(_rung(one, "not applied", reason), beside=names)

    def raced(self, one: Candidate, standing: Standing, beside: Sequence[Candidate]) -> None:
        """Note how a fix did in the race that was not kept there."""
        missing = [none.reason for none in standing.not_applied if none.fix == one.fix.id]
        status: Status = "rejected"
        reason = standing.failure
        if reason is not None and reason.code == SearchCode.RACE_FAILS_ALIKE:
            status = "not tried"
        if reason is None and missing and not standing.is_applied:
            status, reason = "not applied", missing[0]
        if reason is None and standing.ratio is not None:
            faster = standing.verdict == "FASTER"
            code = SearchCode.NOT_BESIDE_KEPT if faster else SearchCode[standing.verdict]
            reason = because_of_ratio(code, standing.ratio)
        if reason is not None:
            self._rungs[key(one)] = replace(
                _rung(one, status, reason),
                verdict=standing.verdict if status == "rejected" else None,
                beside=tuple(other.fix.id for other in beside),
                ratio=standing.ratio if status == "rejected" else None,
                raced=standing.ratio,
                step_ms=standing.step_ms or None,
                compile_s=standing.compile_s,
            )
            self._settled(self._rungs[key(one)])

    def note_race(self, one: Candidate, standing: Standing | None) -> None:
        """Note how a fix that was proven did in the race, where it compiled first."""
        if standing is not None:
            rung = self[one]
            compile_s = max(rung.compile_s, standing.compile_s)
            self._rungs[key(one)] = replace(rung, raced=standing.ratio, compile_s=compile_s)

    def note(
        self,
        tried: Sequence[Candidate],
        status: Status,
        result: Contest,
        parity: Parity | None,
        beside: Sequence[Candidate],
        partners: Sequence[Candidate] = (),
    ) -> None:
        """Note how the contest of the fixes `tried` ended. `beside` were applied already, and
        `partners` were tried with them and have no rung."""
        before_ms, after_ms = result.step_ms
        before = result.before[0] if result.before else None
        after = result.after[0] if result.after else None
        self._titles |= {one.fix.id: one.fix.title for one in (*tried, *partners)}
        for one in tried:
            together = tuple(c.fix.id for c in (*tried, *partners) if c is not one)
            earlier = self._otherwise(self._rungs.pop(key(one), None), together)
            self._rungs[key(one)] = replace(
                _rung(one, status, result.reason),
                verdict=None if status == "not applied" else result.verdict,
                beside=tuple(other.fix.id for other in beside),
                together=together,
                earlier=earlier,
                ratio=result.ratio,
                step_ms=after_ms or None,
                before_ms=before_ms or None,
                parity=parity,
                peak_bytes=after.peak_bytes if after is not None else None,
                peak_before_bytes=before.peak_bytes if before is not None else None,
                compile_s=max((trial.compile_s for trial in result.after), default=0.0),
                pays_after=pays_after(result),
                spent_s=result.spent_s,
                bound=result.bound,
                bound_exceeded=result.exceeds_bound,
            )
        self._settled(self._rungs[key(tried[0])])

    def _otherwise(self, was: Rung | None, together: tuple[str, ...]) -> Earlier | None:
        """Return how the fix did with other partners than these."""
        if was is None or was.status not in ("kept", "rejected", "dropped"):
            return None
        if set(was.together) == set(together):
            return was.earlier
        titles = tuple(self._titles[name] for name in was.together)
        return Earlier(together=titles, reason=was.reason)

    def drop(self, one: Candidate, reason: Reason, without: Ratio | None = None) -> None:
        dropped = replace(self[one], status="dropped", reason=reason, without=without)
        self._rungs[key(one)] = dropped
        self._settled(dropped)

    def stays(self, one: Candidate, without: Ratio) -> None:
        self._rungs[key(one)] = replace(self[one], without=without)


def _rung(one: Candidate, status: Status, reason: Reason) -> Rung:
    return Rung(
        fix=one.fix.id, title=one.fix.title, options=one.options, status=status,
        reason=reason, alters=one.fix.alters, bound=one.bound,
    )  # fmt: skip


def pays_after(result: Contest, compile_s: float = 0.0) -> int | None:
    """Return the number of steps after which compiling has paid; None if nothing was compiled, or
    if it never pays."""
    if not result.after:
        return None
    before_ms, after_ms = result.step_ms
    spent_s = max(compile_s, *(trial.compile_s for trial in result.after))
    spent_s -= max((trial.compile_s for trial in result.before), default=0.0)
    if spent_s <= MIN_COMPILING_S or before_ms <= after_ms:
        return None
    return math.ceil(1e3 * spent_s / (before_ms - after_ms))
