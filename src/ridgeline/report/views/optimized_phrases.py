"""Sentences about a search for optimizations: the headline, its doubts, the words of a rung."""

import math
from typing import Literal

from ridgeline import units
from ridgeline.records.facts import Ratio
from ridgeline.records.ladder import (
    Attempt,
    Ladder,
    is_nearly_proven,
    lost_first_pair,
    verdict_of_ratio,
)
from ridgeline.records.optimized import Measured, Optimized, Rung, SearchCode, Total
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.report.document import Tone
from ridgeline.report.numbers import NOTHING, interval, is_ratio, share
from ridgeline.report.reasons import explain, explain_earlier
from ridgeline.statistics.pooled import MAX_PAIRS
from ridgeline.units import plural

_BETTER: dict[Measured, str] = {
    "step time": "as fast", "time a sample": "the throughput", "peak memory": "the memory",
    "energy a sample": "the energy",
}  # fmt: skip
SAID_AS_SHARE: tuple[Measured, ...] = ("peak memory", "energy a sample")
"""Of these people say how much is still used, not how many times better it is."""
MAX_EARLY_STEPS, MAX_EARLY_MS = 2_000, 300e3
"""Many runs are shorter than this many steps, or than five minutes of the baseline: to them a
compilation that pays back later is a loss."""
MIN_NAMED_GAIN = 1.1
"""The smallest gain, as a factor, that a headline names although the fix was not kept. Nobody asks
about a smaller one."""
Remedy = Literal["time", "quiet", "again", ""]
_ADVICE: dict[Remedy, str] = {
    "time": "give it more {budget}",
    "quiet": "measure again when nothing else runs on this machine",
    "again": "call it again, it continues from here",
}


def headline(ladder: Ladder) -> tuple[str, Tone]:
    found, total = ladder.optimized, ladder.optimized.total
    if total is None:
        return _headline_without_total(ladder)
    gain, steps = gained(found.measured, total.ratio), moved(found.measured, total)
    if not total.parity.is_proven:
        return f"Not proven: results {whole_results(found, total)}. {gain}: {steps}", "bad"
    if not found.is_confirmed:
        chance = "though likely" if total.ratio.ci_low > 1 else "and it may be no gain at all"
        return f"Not confirmed, {chance}: {gain}, {steps}", "unsure"
    return f"{gain[:1].upper()}{gain[1:]}: {steps}", "good"


def _headline_without_total(ladder: Ladder) -> tuple[str, Tone]:
    found = ladder.optimized
    if ladder.kept:
        return f"Kept, but not confirmed: {_gain_so_far(ladder)}", "unsure"
    tried = sum(attempt.is_tried for attempt in ladder.attempts)
    better = "faster" if found.measured == "step time" else "better"
    if not tried and found.baseline_ms and not found.stopped:
        return _nothing_to_try(found), "plain"
    if not tried:
        why = f": {explain(found.stopped)}" if found.stopped else ""
        done = "tried to its end" if found.baseline_ms or found.interrupted else "measured"
        return f"Nothing was {done}{why}", "plain"
    best = _best_not_kept(ladder)
    if best is not None and best.rung.ratio is not None:
        lead = "No gain with the same training" if best.is_kept else "Nothing proven"
        why = "see below" if best.is_kept else f"not kept: {why_not_kept(found, best)}"
        gain = gained(found.measured, best.rung.ratio)
        return f"{lead}: {fixes(tried)} tried; {titles(best)}: {gain}, {why}", "unsure"
    return f"Nothing to keep: {fixes(tried)} tried, none proven {better} and equal", "plain"


def _best_not_kept(ladder: Ladder) -> Attempt | None:
    """Return the attempt with the largest gain, if a reader would ask about it: a headline that
    says nothing was gained must name it. A fix that alters the training counts if it was kept."""
    gains = [
        (attempt.rung.ratio.value, attempt)
        for attempt in ladder.attempts
        if attempt.is_tried
        and attempt.rung.status != "dropped"
        and attempt.rung.ratio is not None
        and attempt.rung.ratio.value >= MIN_NAMED_GAIN
        and (attempt.is_kept or not attempt.alters_training)
    ]
    return max(gains, key=lambda pair: pair[0], default=(0.0, None))[1]


def _nothing_to_try(found: Optimized) -> str:
    altered = [
        rung.reason.facts["alters"]
        for rung in found.rungs
        if rung.status == "not tried" and rung.reason.code == SearchCode.NOT_EXACT
    ]
    rounding, semantics = altered.count("rounding"), altered.count("semantics")
    if not rounding + semantics:
        return "Nothing to try: no fix can win here, for the reasons below"
    number = rounding or semantics
    alter, them = ("alters", "it") if number == 1 else ("alter", "them")
    what = "rounding" if rounding else "what is computed"
    allowed = "" if rounding else f" and allow {them}"
    option = "keep_exact" if found.is_function else "--keep-exact"
    return (
        f"Nothing exact to try: {fixes(number)} {alter} {what}; "
        f"leave {option} out{allowed} to try {them}"
    )


def _gain_so_far(ladder: Ladder) -> str:
    """Return the gain by the pairs of each rung: the most that can be said at any budget."""
    found, last = ladder.optimized, ladder.kept[-1].rung
    whole = ladder.cumulative(last)
    if whole is None:
        return ", ".join(map(titles, ladder.kept))
    if found.measured == "peak memory":
        before, after = units.bytes_(found.baseline_bytes), units.bytes_(last.peak_bytes or 0)
        return f"{1 / whole:.2f} × the memory so far, {before} → {after}"
    gain = 1 / whole if found.measured in SAID_AS_SHARE else whole
    step = f"{milliseconds(last.step_ms)} a step by then"
    return f"{gain:.2f} × {_BETTER[found.measured]} so far, {step}"


def fixes(number: int) -> str:
    return plural(number, "fix", "fixes")


def gained(measured: Measured, ratio: Ratio) -> str:
    """Return "6.73 × [6.60, 6.85] as fast" or "uses 0.61 × [0.59, 0.63] the memory"."""
    if measured in SAID_AS_SHARE:
        ends = (ratio.value, ratio.ci_high, ratio.ci_low)
        value, low, high = (1 / v if is_ratio(v) else math.nan for v in ends)
        return f"uses {interval(value, low, high, ' ×')} {_BETTER[measured]}"
    return f"{factor(ratio)} {_BETTER[measured]}"


def moved(measured: Measured, total: Total) -> str:
    """Return "152 ms → 22.6 ms a step", after what is measured if that is something else."""
    step = f"{milliseconds(total.before_ms)} → {milliseconds(total.after_ms)} a step"
    if measured == "peak memory":
        return f"{memory(total)}, {step}"
    samples = rate(total)
    return f"{samples}, {step}" if samples and measured != "step time" else step


def memory(total: Total) -> str:
    return f"{units.bytes_(total.peak_before_bytes)} → {units.bytes_(total.peak_bytes)}"


def rate(total: Total) -> str:
    before, after = total.before_samples_s, total.after_samples_s
    if before is None or after is None:
        return ""
    numbers = (f"{v:,.0f}" if v >= 100 else units.significant(v) for v in (before, after))
    return f"{' → '.join(numbers)} samples/s"


def factor(ratio: Ratio | None) -> str:
    """Return "6.73 × [6.60, 6.85]"."""
    return interval(ratio.value, ratio.ci_low, ratio.ci_high, " ×") if ratio is not None else ""


def milliseconds(value: float | None) -> str:
    return units.seconds(value / 1e3) if value is not None and is_ratio(value) else NOTHING


def titles(attempt: Attempt) -> str:
    return " + ".join(map(titled, attempt.rungs))


def titled(rung: Rung) -> str:
    options = ", ".join(f"{key} {value}" for key, value in rung.options.items())
    return f"{rung.title} ({options})" if options else rung.title


def results_word(parity: Parity | None, alters: Alters = "rounding") -> str:
    """Return a word or two for a column; the sentences are `parity.why` and its checks."""
    if parity is None:
        return ""
    known = [check.difference for check in parity.checks if check.difference is not None]
    if parity.equality == "equal":
        if known and not any(known):
            return "identical"
        return "equal" if alters == "nothing" else "equal to rounding"
    if parity.equality == "weak" and any(check.what == MEANS for check in parity.checks):
        return "alike, weakly"  # on other samples
    return {"weak": "equal, weakly", "differs": "differ", "unknown": "not known"}[parity.equality]


def whole_results(found: Optimized, total: Total) -> str:
    """Return the word for all that was kept: by the most that any of it may alter."""
    kept = {rung.alters for rung in found.rungs if rung.fix in total.fixes or not total.fixes}
    return results_word(total.parity, "nothing" if kept == {"nothing"} else "rounding")


def pays_after(found: Optimized, steps: int | None) -> str:
    """Return when a compilation is won back. What saves memory wins no time back."""
    if steps:
        return plural(steps, "step")
    return "" if found.measured == "peak memory" else "at once"


def why_not_kept(found: Optimized, attempt: Attempt) -> str:
    known = {rung.fix: rung.title for rung in found.rungs}
    own = {rung.fix for rung in attempt.rungs}
    partners = [known.get(name, name) for name in attempt.fixes if name not in own]
    why = without_figures(attempt.rung) or attempt.rung.status
    text = f"with {', '.join(partners)}: {why}" if partners else why
    earlier = explain_earlier(attempt.rung.earlier)
    return "; ".join(part for part in (text, earlier) if part)


def without_figures(rung: Rung) -> str:
    """Return the reason of a rung without the figures that have columns of their own."""
    if rung.ratio is None:
        return explain(rung.reason)
    if lost_first_pair(rung):
        return "worse in its first pair, and not tried again"
    if is_nearly_proven(rung):
        number = rung.ratio.pairs
        verb = "is" if number == 1 else "are"
        return f"probably better, not proven: {plural(number, 'pair')} {verb} not enough"
    return explain(rung.reason, figures=False)


def costs(found: Optimized, total: Total) -> tuple[str, ...]:
    """Return what the headline does not say: the rate, the memory, what compiling takes."""
    parts = [rate(total)] if found.measured == "step time" else []
    if total.peak_bytes and total.peak_before_bytes and found.measured != "peak memory":
        parts.append(f"peak memory {memory(total)}")
    if total.compile_s >= 1 and not _late_payback(found):
        parts.append(f"compiling takes {units.seconds(total.compile_s)}")
    if total.pays_after and not _late_payback(found):
        steps = plural(total.pays_after, "step")
        parts.append(f"paid back after {steps}: a shorter run is slower with it")
    return tuple(part for part in parts if part)


def effort(found: Optimized) -> str:
    parts = [f"{plural(found.trials, 'trial')} in {units.seconds(found.spent_s)}"]
    if found.remembered:
        parts.append(f"{plural(found.remembered, 'trial')} more of an earlier call")
    if found.noise:
        parts.append(noise(found))
    return " · ".join(parts)


def where_confirmed(found: Optimized) -> str:
    return "in new trials" if found.is_function else "on fresh processes"


def noise(found: Optimized) -> str:
    """Return how far apart two trials of the baseline come out."""
    two = "runs of the same step" if found.is_function else "processes of the same program"
    return f"two {two} differ by {share(found.noise) if found.noise else NOTHING} here"


def doubts(ladder: Ladder) -> tuple[str, ...]:
    """Return all that stands under the headline, a line each."""
    found = ladder.optimized
    texts = (
        doubt(ladder), *found.caveats, _late_payback(found), _control_doubt(found),
        _bound_doubt(ladder),
    )  # fmt: skip
    return tuple(text for text in texts if text)


def doubt(ladder: Ladder) -> str:
    """Return why the headline is no proven win, what the copy is worth, and what to do; "" where
    it is one, or where nothing was kept."""
    found, total = ladder.optimized, ladder.optimized.total
    files = found.written.files if found.written is not None else ()
    copy = f"{files[0]} was written all the same" if files else ""
    if total is not None and not total.parity.is_proven:
        return f"{copy}: do not use it before you know why its results differ" if copy else ""
    if not is_unsure(ladder):
        return ""
    parts = [_why_unsure(found, total) if total is not None else _why_no_total(found)]
    parts += [f"{copy}: treat it as a guess"] if copy else []
    advice = _ADVICE.get(remedy(ladder), "").format(
        budget="budget" if found.is_function else "--budget"
    )
    parts += [f"what to do: {advice}"] if advice else []
    return "; ".join(parts)


def _why_unsure(found: Optimized, total: Total) -> str:
    pairs, is_one = plural(total.ratio.pairs, "fresh pair"), total.ratio.pairs == 1
    if total.ratio.ci_low > 1:
        verb = "is" if is_one else "are"
        return f"{pairs} {verb} not enough to be sure of it: {noise(found)}"
    return f"{pairs} cannot tell it from no gain: {noise(found)}"


def _why_no_total(found: Optimized) -> str:
    if found.interrupted:
        return "it was interrupted before the whole was confirmed"
    return explain(found.stopped) or "there was no time to confirm the whole"


def is_unsure(ladder: Ladder) -> bool:
    """Return whether something was kept, its results are equal, and it is not known to be
    better."""
    found = ladder.optimized
    if found.total is not None:
        return not found.is_confirmed and found.total.parity.is_proven
    return bool(ladder.kept)


def remedy(ladder: Ladder) -> Remedy:
    """Return what would confirm it: more pairs, or, where as many were run as ever are, a machine
    that is less noisy."""
    found = ladder.optimized
    if not is_unsure(ladder):
        return ""
    if found.interrupted:
        return "again"
    if found.total is None:
        # More time does not help if a process of the whole failed.
        has_failed = found.stopped is not None and found.stopped.code == SearchCode.PROOF_FAILED
        return "" if has_failed else "time"
    return "time" if found.total.ratio.pairs < MAX_PAIRS else "quiet"


def _late_payback(found: Optimized) -> str:
    """Return a sentence if only long runs gain. What saves memory does so at once."""
    total = found.total
    if total is None or not total.pays_after or found.measured == "peak memory":
        return ""
    is_late = (
        total.pays_after > MAX_EARLY_STEPS or total.pays_after * total.before_ms > MAX_EARLY_MS
    )
    if not is_late:
        return ""
    takes, steps = units.seconds(total.compile_s), plural(total.pays_after, "step")
    return f"compiling takes {takes} and pays only in runs of more than {steps}"


def _control_doubt(found: Optimized) -> str:
    """Only a difference that matters is a doubt: 1.003 × [1.001, 1.005] of a quiet GPU is none."""
    if found.control is None or verdict_of_ratio(found.control) not in ("FASTER", "SLOWER"):
        return ""
    return (
        f"the baseline differed from itself, {factor(found.control)}: the machine was disturbed, "
        "and ratios of this size prove little"
    )


def _bound_doubt(ladder: Ladder) -> str:
    """Name the fixes that gained more than their bound."""
    wrong = [
        f"{titles(attempt)} gained {factor(attempt.rung.ratio)} where at most "
        f"{attempt.rung.bound:.2f} × was thought possible"
        for attempt in ladder.attempts
        if attempt.rung.bound_exceeded
    ]
    if not wrong:
        return ""
    return f"{'; '.join(wrong)}: from then on, no fix was skipped because of such an estimate"


def disagreement(ladder: Ladder) -> str:
    """Return what stands under a ladder that does not end where the whole does, else ""."""
    total, product = ladder.optimized.total, ladder.product
    if not ladder.disagrees or total is None or product is None:
        return ""
    picked = ", or they looked better than they are when they were picked"
    return (
        f"The rungs come to {product:.3g} ×, outside the interval of the whole, "
        f"{factor(total.ratio)}: the machine was disturbed while they were measured"
        f"{picked if product > total.ratio.value else ''}. "
        f"What was measured {where_confirmed(ladder.optimized)} counts."
    )
