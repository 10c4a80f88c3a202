"""What was kept, proven: each change left out once, the whole against the unchanged program in
fresh processes, and, apart, with a larger batch."""

from collections.abc import Sequence

from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.contest import (
    MATTERS,
    Contest,
    Rules,
    because_of_ratio,
    doubtful,
    still_there,
)
from ridgeline.optimization.measure import SAMPLE, Measure, samples_s
from ridgeline.optimization.rungs import pays_after
from ridgeline.optimization.search import CONFIRMING, Search
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import SearchCode, Status, Total
from ridgeline.records.trial import Trial

AT_ONCE = 8
"""Times the batch: what a GPU has left to gain it mostly has by then."""
SURE = 1.05
"""A change known to gain more than this, measured last and alone, is not left out again to see."""


def leave_out(search: Search) -> None:
    """Those of which least is known first: what was put on with others, then the smallest gains."""
    for one in sorted(search.kept, key=lambda one: _doubt(search, one)):
        if one not in search.kept:
            continue
        rest = [other for other in search.kept if other is not one]
        search.settled.append(one)
        if not rest or _sure(search, one) or not search.time_for(rest, search.kept):
            continue
        search.say(f"without {one.fix.title}")
        result = search.against(rest, search.kept)
        if result.ratio is None:
            continue
        reason = _of_no_use(search, one, result)
        if reason is not None:
            lone = [c for c in rest if search.judge.missing(result.before[0], [c])]
            search.kept = [c for c in rest if c not in lone]
            search.table.drop(one, reason, result.ratio)
            for other in lone:  # prefetching without workers
                search.table.drop(other, because(SearchCode.NOTHING_WITHOUT, title=one.fix.title))
        else:
            search.table.stays(one, result.ratio)


def _of_no_use(search: Search, one: Candidate, result: Contest) -> Reason | None:
    """Return why a kept fix is of no use; None if it is of use. `result` is the contest of all that
    was kept, with the fix against without it."""
    rung, again = search.table[one], result.ratio
    assert again is not None
    known = rung.ratio if not rung.together else None
    if result.outcome in ("SAME", "SLOWER") or again.value < 1 + MATTERS:
        return because(SearchCode.REDUNDANT, cause=result.reason)
    if known is not None and doubtful(known) and not still_there(known, again):
        return because_of_ratio(SearchCode.NOT_REPEATED, again)
    return None


def _doubt(search: Search, one: Candidate) -> tuple[bool, float]:
    rung = search.table[one]
    return not rung.together, rung.ratio.ci_low if rung.ratio is not None else 0.0


def _sure(search: Search, one: Candidate) -> bool:
    rung = search.table[one]
    last = set(rung.beside) | {one.fix.id} == {other.fix.id for other in search.kept}
    gains = rung.ratio is not None and rung.ratio.ci_low > SURE and not doubtful(rung.ratio)
    return last and gains and not rung.together


def confirm(search: Search) -> Total | None:
    """All that was kept against the unchanged program. What was kept alone is left out here, too:
    of 100 programs that nine changes do not alter, with processes 3 % apart, 12 kept one, and in
    fresh processes 9 of those gain less than would matter."""
    if not search.kept:
        return None
    search.say("all that was kept, against the program as it is")
    total = _total(search, search.kept, search.measure)
    if total is None or total.confirmed or total.ratio.value >= 1 + MATTERS:
        return total
    reason = because_of_ratio(SearchCode.NOT_CONFIRMED, total.ratio)
    for one in search.kept:
        search.table.drop(one, reason, total.ratio if len(search.kept) == 1 else None)
    search.kept = []
    return None


def larger(search: Search, sizes: Candidate) -> Total | None:
    """The batch grown while a sample takes less time. Where there is no time for one size after the
    other, a large one first, and smaller ones if it does not fit or is no better."""
    every = [Candidate(fix=sizes.fix, options=o) for o in (sizes.options, *sizes.others)]
    first = _first_size(search, every)
    now = _grown(search, list(search.kept), every[first:])
    if now == search.kept:
        smaller = (_grown(search, now, [one]) for one in reversed(every[:first]))
        now = next((found for found in smaller if found != search.kept), now)
    if now == search.kept:
        return None
    search.say("with the larger batch, against the program as it is")
    return _total(search, now, SAMPLE)


def _first_size(search: Search, every: Sequence[Candidate]) -> int:
    """On a CPU a step of eight times the samples takes eight times as long, and so does a trial."""
    room = search.bench.left_s() - search.reserve_s()
    latest = search.arms.latest(())
    small = [n for n, one in enumerate(every) if int(one.options.get("factor", 1)) <= AT_ONCE]
    if latest is None or latest.device == "cpu" or not small:
        return 0
    return 0 if room >= (len(small) + 1) * search.one_size_s(every[0]) else small[-1]


def _grown(search: Search, now: list[Candidate], sizes: Sequence[Candidate]) -> list[Candidate]:
    """What is kept, with the last of these that is better than the one before it."""
    for one in sizes:
        after = [*search.kept, one]
        if not search.time_for(now, after):
            break
        search.say(f"{one.fix.title} × {one.options.get('factor', '')}")
        result, parity = search.judged(now, after, [one], SAMPLE)
        better = result.outcome == "FASTER"
        missing = not better and result.after and search.judge.missing(result.after[0], [one])
        if result.outcome == "CUT":
            search.table.untried(one, result.reason)
            break
        status: Status = "kept" if better else "not applied" if missing else "rejected"
        search.table.note([one], status, result, parity, now)
        if not better:
            break
        for other in now:
            if other.fix.id == one.fix.id:
                search.table.drop(other, because(SearchCode.LARGER_BATCH_BETTER))
        now = after
    return now


def _total(search: Search, kept: Sequence[Candidate], measure: Measure) -> Total | None:
    # Where the time does not last for them, one that is decisive is enough.
    least = CONFIRMING if search.bench.left_s() > search.pairs_s(kept) else 1
    # As many pairs at most as any: with four, 36 of 100 changes that gain 5 % were confirmed where
    # processes differ by 3 %, with six 52.
    rules = Rules(measure=measure, least=least, fresh=True)
    result = search.against((), kept, rules)
    if result.ratio is None:
        cut = result.outcome == "CUT"
        search.trouble = (
            result.reason if cut else because(SearchCode.PROOF_FAILED, cause=result.reason)
        )
        return None
    before, after = result.step_ms
    # What these processes compile, earlier ones have compiled: theirs is the time a user waits.
    compiles_s = max(
        *(trial.compile_s for trial in result.after), *(search.table[one].compile_s for one in kept)
    )
    return Total(
        ratio=result.ratio,
        confirmed=result.outcome == "FASTER",
        fixes=tuple(one.fix.id for one in kept),
        before_ms=before,
        after_ms=after,
        before_samples_s=samples_s(result.before),
        after_samples_s=samples_s(result.after),
        parity=search.judge.compared(_worst(search, result, kept), kept),
        peak_before_bytes=max((trial.peak_bytes for trial in result.before), default=0),
        peak_bytes=max((trial.peak_bytes for trial in result.after), default=0),
        compile_s=compiles_s,
        pays_after=pays_after(result, compiles_s),
        applied=result.after[0].applied,
    )


def _worst(search: Search, result: Contest, kept: Sequence[Candidate]) -> Trial:
    order = ("equal", "weak", "unknown", "differs")
    return max(
        result.after, key=lambda trial: order.index(search.judge.parity(trial, kept).equality)
    )
