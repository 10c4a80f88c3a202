"""Proves what was kept: each fix is left out once, the whole is measured against the unchanged
program in fresh processes, and a larger batch is tried apart."""

import math
from collections.abc import Sequence

from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.contest import (
    MIN_LOG_GAIN,
    Contest,
    Rules,
    because_of_ratio,
    is_confirmed,
    is_doubtful,
)
from ridgeline.optimization.measure import SAMPLE, Measure, samples_s
from ridgeline.optimization.rungs import pays_after
from ridgeline.optimization.search import MIN_CONFIRMING_PAIRS, Search
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import SearchCode, Status, Total
from ridgeline.records.trial import Trial

FIRST_BATCH_FACTOR = 8
"""Factor of the batch that is tried first if time is short: a GPU has mostly gained what it can by
then."""
SURE_RATIO = 1.05
"""A fix that was measured last and alone and surely gains more than this is not left out again."""
MAX_LOSSES = 200
"""Steps of which the losses are kept, to be drawn over each other."""
_PARITY_ORDER = ("equal", "weak", "unknown", "differs")


def leave_out(search: Search) -> None:
    """Measure what is kept without each fix, and drop the fixes that are of no use. Those of which
    least is known come first: fixes that were tried with others, then the smallest gains."""

    def certainty(one: Candidate) -> tuple[bool, float]:
        rung = search.rungs[one]
        return not rung.together, rung.ratio.ci_low if rung.ratio is not None else 0.0

    for one in sorted(search.kept, key=certainty):
        if one not in search.kept:
            continue
        rest = [other for other in search.kept if other is not one]
        search.settled.append(one)
        if not rest or _is_sure(search, one) or not search.has_time_for(rest, search.kept):
            continue
        search.doing(f"without {one.fix.title}")
        result = search.contest(rest, search.kept)
        if result.ratio is None:
            continue
        reason = _why_useless(search, one, result)
        if reason is None:
            search.rungs.stays(one, result.ratio)
            continue
        dependent = [c for c in rest if search.judge.missing(result.before[0], [c])]
        search.kept = [c for c in rest if c not in dependent]
        search.rungs.drop(one, reason, result.ratio)
        for other in dependent:  # such as prefetching without workers
            search.rungs.drop(other, because(SearchCode.NOTHING_WITHOUT, title=one.fix.title))


def _why_useless(search: Search, one: Candidate, result: Contest) -> Reason | None:
    """Return why a kept fix is of no use; None if it is of use. `result` is the contest of all that
    was kept, with the fix against without it."""
    rung, again = search.rungs[one], result.ratio
    assert again is not None
    first = rung.ratio if not rung.together else None
    if result.outcome in ("SAME", "SLOWER") or math.log(again.value) < MIN_LOG_GAIN:
        return because(SearchCode.REDUNDANT, cause=result.reason)
    if first is not None and is_doubtful(first) and not is_confirmed(first, again):
        return because_of_ratio(SearchCode.NOT_REPEATED, again)
    return None


def _is_sure(search: Search, one: Candidate) -> bool:
    rung = search.rungs[one]
    last = set(rung.beside) | {one.fix.id} == {other.fix.id for other in search.kept}
    ratio = rung.ratio
    gains = ratio is not None and ratio.ci_low > SURE_RATIO and not is_doubtful(ratio)
    return last and gains and not rung.together


def confirm(search: Search) -> Total | None:
    """Measure all that was kept against the unchanged program. What was kept alone is dropped here,
    too, if it does not show: of 100 programs that nine fixes do not alter, with processes 3 %
    apart, 12 kept one, and in fresh processes 9 of those gain less than would matter."""
    if not search.kept:
        return None
    search.doing("all kept fixes together, against the baseline")
    total = _total(search, search.kept, search.measure)
    if total is None or total.confirmed or math.log(total.ratio.value) >= MIN_LOG_GAIN:
        return total
    reason = because_of_ratio(SearchCode.NOT_CONFIRMED, total.ratio)
    for one in search.kept:
        search.rungs.drop(one, reason, total.ratio if len(search.kept) == 1 else None)
    search.kept = []
    return None


def enlarge_batch(search: Search, sizes: Candidate) -> Total | None:
    """Enlarge the batch while a sample takes less time. If there is no time for one size after the
    other, a large one is tried first, and smaller ones if it does not fit or is no better."""
    every = [Candidate(fix=sizes.fix, options=o) for o in (sizes.options, *sizes.others)]
    first = _first_size(search, every)
    best = _try_sizes(search, list(search.kept), every[first:])
    if best == search.kept:
        smaller = (_try_sizes(search, best, [one]) for one in reversed(every[:first]))
        best = next((kept for kept in smaller if kept != search.kept), best)
    if best == search.kept:
        return None
    search.doing("with the larger batch, against the baseline")
    return _total(search, best, SAMPLE)


def _first_size(search: Search, every: Sequence[Candidate]) -> int:
    """Return which size to try first. On a CPU it is the smallest: a step of eight times the
    samples takes eight times as long, and so does a trial."""
    left_s = search.bench.left_s() - search.reserve_s()
    latest = search.history.latest(())
    factors = [int(one.options.get("factor", 1)) for one in every]
    small = [n for n, factor in enumerate(factors) if factor <= FIRST_BATCH_FACTOR]
    if latest is None or latest.device == "cpu" or not small:
        return 0
    return 0 if left_s >= (len(small) + 1) * search.one_size_s(every[0]) else small[-1]


def _try_sizes(
    search: Search, best: list[Candidate], sizes: Sequence[Candidate]
) -> list[Candidate]:
    """Return what is kept with the last of these sizes that is better than the one before it."""
    for size in sizes:
        after = [*search.kept, size]
        if not search.has_time_for(best, after):
            break
        search.doing(f"{size.fix.title} × {size.options.get('factor', '')}")
        result, parity = search.judged_contest(best, after, [size], SAMPLE)
        better = result.outcome == "FASTER"
        missing = not better and result.after and search.judge.missing(result.after[0], [size])
        if result.outcome == "CUT":
            search.rungs.not_tried(size, result.reason)
            break
        status: Status = "kept" if better else "not applied" if missing else "rejected"
        search.rungs.note([size], status, result, parity, best)
        if not better:
            break
        for other in best:
            if other.fix.id == size.fix.id:
                search.rungs.drop(other, because(SearchCode.LARGER_BATCH_BETTER))
        best = after
    return best


def _total(search: Search, kept: Sequence[Candidate], measure: Measure) -> Total | None:
    # If there is no time for two pairs, one that is decisive is enough. The most pairs are those of
    # any contest: with four, 36 of 100 fixes that gain 5 % were confirmed where processes differ by
    # 3 %, with six 52.
    enough_time = search.bench.left_s() > search.pairs_s(kept)
    min_pairs = MIN_CONFIRMING_PAIRS if enough_time else 1
    result = search.contest((), kept, Rules(measure=measure, min_pairs=min_pairs, fresh=True))
    if result.ratio is None:
        cut = result.outcome == "CUT"
        search.trouble = (
            result.reason if cut else because(SearchCode.PROOF_FAILED, cause=result.reason)
        )
        return None
    return total_of(search, kept, result)


def total_of(search: Search, kept: Sequence[Candidate], result: Contest) -> Total:
    """Return the total that a contest of all that is kept against the baseline shows."""
    assert result.ratio is not None
    before_ms, after_ms = result.step_ms
    # These processes find their compilations cached: a user waits for as long as earlier ones took.
    compile_s = max(
        *(trial.compile_s for trial in result.after), *(search.rungs[one].compile_s for one in kept)
    )

    def distance(trial: Trial) -> int:
        return _PARITY_ORDER.index(search.judge.parity(trial, kept).equality)

    return Total(
        ratio=result.ratio,
        between=result.between,
        confirmed=result.outcome == "FASTER",
        fixes=tuple(one.fix.id for one in kept),
        before_ms=before_ms,
        after_ms=after_ms,
        before_samples_s=samples_s(result.before, before_ms),
        after_samples_s=samples_s(result.after, after_ms),
        parity=search.judge.compared(max(result.after, key=distance), kept),
        peak_before_bytes=max((trial.peak_bytes for trial in result.before), default=0),
        peak_bytes=max((trial.peak_bytes for trial in result.after), default=0),
        compile_s=compile_s,
        pays_after=pays_after(result, compile_s),
        losses_before=losses_of(result.before[0]) if result.before else (),
        losses_after=losses_of(result.after[0]),
        applied=result.after[0].applied,
    )


def losses_of(trial: Trial) -> tuple[float | None, ...]:
    """Return the losses of the first steps, watched ones and those after them."""
    seen = {number: step.loss for number, step in enumerate(trial.watched)}
    seen |= {step.number: step.loss for step in trial.later}
    last = min(max(seen, default=-1) + 1, MAX_LOSSES)
    losses = [seen.get(number) for number in range(last)]
    if all(loss is None for loss in losses):
        return ()
    return tuple(x if x is not None and math.isfinite(x) else None for x in losses)
