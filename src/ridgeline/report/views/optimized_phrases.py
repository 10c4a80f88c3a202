"""Sentences about a search for optimizations: the headline, its doubts, the words of a rung; and
the command to type next."""

import math
import shlex
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
from ridgeline.records.optimized import Measured, Optimized, Rung, SearchCode, TimeSpent, Total
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.records.trial import TrialFailure
from ridgeline.report.document import Command, Tone
from ridgeline.report.numbers import NOTHING, interval, is_ratio, share
from ridgeline.report.reasons import explain, explain_earlier
from ridgeline.statistics.pooled import MAX_PAIRS
from ridgeline.units import plural

_BETTER: dict[Measured, str] = {
    "step time": "as fast", "time a sample": "the throughput", "peak memory": "the memory",
    "energy a sample": "the energy",
}  # fmt: skip
REPORTED_AS_SHARE: tuple[Measured, ...] = ("peak memory", "energy a sample")
"""Measures that are reported as the share still used, not as how many times better they are."""
MAX_EARLY_STEPS, MAX_EARLY_MS = 2_000, 300e3
"""Many runs are shorter than this many steps, or than five minutes of the baseline. A compilation
that pays back later makes them slower."""
MIN_NAMED_GAIN = 1.1
"""The smallest gain, as a factor, that a headline names although the fix was not kept."""
Remedy = Literal["time", "quiet", "again", ""]
_ADVICE: dict[Remedy, str] = {
    "time": "give it more {budget}",
    "quiet": "measure again when nothing else runs on this machine",
    "again": "call it again: it continues from here",
}

MIN_STEPS, MAX_STEPS = 20, 60
"""Bounds on the steps of each of the 21 to 27 processes that `compare` runs. A process takes 3 to
4 s of a core to start, so with a second of steps in each the whole takes two minutes."""
COMPARED_STEPS_S = 1.0
DEFAULT_LOSS_TOLERANCE = 1e-3
"""The relative difference of losses that `compare` allows by default."""
_MORE_TIME_HELPS = (
    SearchCode.OUT_OF_TIME, SearchCode.TOO_LITTLE_TIME, TrialFailure.OUT_OF_TIME,
)  # fmt: skip
_GOALS_OF_COMPARE = ("memory", "throughput")
_OPTIMIZER_CHECKS = {"settings", "learning rates", "gradient norms"}
"""Checks that are made only if an optimizer took steps."""


def headline(ladder: Ladder) -> tuple[str, Tone]:
    text, tone = _headline(ladder)
    result = ladder.optimized
    if result.fits is None:
        return text, tone
    peak, budget = units.bytes_(result.peak_bytes), units.bytes_(result.fit_bytes)
    if not result.fits:
        return f"Does not fit {budget}: the measured peak is {peak}. {text}", "bad"
    if result.total is None:
        return f"Fits {budget} as it is: the measured peak is {peak}", "good"
    return f"Fits {budget}: the measured peak is {peak}. {text}", tone


def _headline(ladder: Ladder) -> tuple[str, Tone]:
    result, total = ladder.optimized, ladder.optimized.total
    if total is None:
        return _headline_without_total(ladder)
    gain, steps = gained(result.measured, total.ratio), moved(result.measured, total)
    if not total.parity.is_proven:
        return f"Not proven: results {whole_results(result, total)}. {gain}: {steps}", "bad"
    if not result.is_confirmed:
        chance = "though likely" if total.ratio.ci_low > 1 else "and it may be no gain at all"
        return f"Not confirmed, {chance}: {gain}, {steps}", "unsure"
    return f"{gain[:1].upper()}{gain[1:]}: {steps}", "good"


def _headline_without_total(ladder: Ladder) -> tuple[str, Tone]:
    result = ladder.optimized
    if ladder.kept:
        return f"Kept, but not confirmed: {_gain_so_far(ladder)}", "unsure"
    if raced := _raced_only(result):
        return raced, "unsure"
    tried = sum(attempt.is_tried for attempt in ladder.attempts)
    better = "faster" if result.measured == "step time" else "better"
    if not tried and result.baseline_ms and not result.stopped:
        return _nothing_to_try(result), "plain"
    if not tried:
        why = f": {explain(result.stopped)}" if result.stopped else ""
        is_search_cut = bool(result.baseline_ms) or result.interrupted
        lead = "No fix was tried to its end" if is_search_cut else "Nothing was measured"
        return f"{lead}{why}", "plain"
    best = _best_not_kept(ladder)
    if best is not None and best.rung.ratio is not None:
        lead = "No gain with the same training" if best.is_kept else "Nothing proven"
        why = "see below" if best.is_kept else f"not kept: {why_not_kept(result, best)}"
        gain = gained(result.measured, best.rung.ratio)
        return f"{lead}: {fixes(tried)} tried; {titles(best)}: {gain}, {why}", "unsure"
    return f"Nothing to keep: {fixes(tried)} tried, none proven {better} and equal", "plain"


def _raced_only(result: Optimized) -> str:
    """Return the headline of a search that won its race and did not come to the proof, else ""."""
    race = result.race
    if race is None or race.ratio is None or race.ratio.ci_low <= 1:
        return ""
    rungs = [rung for rung in result.rungs if rung.fix in race.fixes]
    if not rungs or any(rung.status != "not tried" for rung in rungs):
        return ""
    names = " + ".join(map(titled, rungs))
    return (
        f"Not proven: {names}: {gained(result.measured, race.ratio)} in the race; "
        "the results were not checked in fresh processes"
    )


def _best_not_kept(ladder: Ladder) -> Attempt | None:
    """Return the attempt with the largest gain, if it is large enough that a headline which says
    "no gain" must name it. A fix that alters the training counts only if it was kept."""
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


def _nothing_to_try(result: Optimized) -> str:
    altered = [
        rung.reason.facts["alters"]
        for rung in result.rungs
        if rung.status == "not tried" and rung.reason.code == SearchCode.NOT_EXACT
    ]
    rounding, semantics = altered.count("rounding"), altered.count("semantics")
    if not rounding + semantics:
        return "Nothing to try: no fix can win here, for the reasons below"
    number = rounding or semantics
    alter, them = ("alters", "it") if number == 1 else ("alter", "them")
    what = "rounding" if rounding else "what is computed"
    allowed = "" if rounding else f" and allow {them}"
    option = "keep_exact" if result.is_function else "--keep-exact"
    return (
        f"Nothing exact to try: {fixes(number)} {alter} {what}; "
        f"leave {option} out{allowed} to try {them}"
    )


def _gain_so_far(ladder: Ladder) -> str:
    """Return the gain that the pairs of the rungs show, if the whole was not confirmed."""
    result, last = ladder.optimized, ladder.kept[-1].rung
    whole = ladder.cumulative(last)
    if whole is None:
        return ", ".join(map(titles, ladder.kept))
    if result.measured == "peak memory":
        before, after = units.bytes_(result.baseline_bytes), units.bytes_(last.peak_bytes or 0)
        return f"{1 / whole:.2f} × the memory so far, {before} → {after}"
    gain = 1 / whole if result.measured in REPORTED_AS_SHARE else whole
    step = f"{milliseconds(last.step_ms)} a step by then"
    return f"{gain:.2f} × {_BETTER[result.measured]} so far, {step}"


def fixes(number: int) -> str:
    return plural(number, "fix", "fixes")


def gained(measured: Measured, ratio: Ratio) -> str:
    """Return "6.73 × [6.60, 6.85] as fast" or "uses 0.61 × [0.59, 0.63] the memory"."""
    if measured in REPORTED_AS_SHARE:
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
    """Return a word or two for a column of a table. `parity.why` and its checks have the
    sentences."""
    if parity is None:
        return ""
    known = [check.difference for check in parity.checks if check.difference is not None]
    if parity.equality == "equal":
        if known and not any(known):
            return "identical"
        return "equal" if alters == "nothing" else "equal to rounding"
    if parity.equality == "weak" and any(check.what == MEANS for check in parity.checks):
        return "alike, weakly"  # compared on other samples
    return {"weak": "equal, weakly", "differs": "differ", "unknown": "not known"}[parity.equality]


def whole_results(result: Optimized, total: Total) -> str:
    """Return the word for all kept fixes together, by the most that any of them may alter."""
    kept = {rung.alters for rung in result.rungs if rung.fix in total.fixes or not total.fixes}
    return results_word(total.parity, "nothing" if kept == {"nothing"} else "rounding")


def pays_after(result: Optimized, steps: int | None) -> str:
    """Return when a compilation is paid back; "" if memory is the goal, because it saves no
    time."""
    if steps:
        return plural(steps, "step")
    return "" if result.measured == "peak memory" else "at once"


def why_not_kept(result: Optimized, attempt: Attempt) -> str:
    known = {rung.fix: rung.title for rung in result.rungs}
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


def costs(result: Optimized, total: Total) -> tuple[str, ...]:
    """Return what the headline does not say: the rate, the memory, the time to compile."""
    parts = [rate(total)] if result.measured == "step time" else []
    if total.peak_bytes and total.peak_before_bytes and result.measured != "peak memory":
        parts.append(f"peak memory {memory(total)}")
    if total.compile_s >= 1 and not _late_payback(result):
        parts.append(f"compiling takes {units.seconds(total.compile_s)}")
    if total.pays_after and not _late_payback(result):
        steps = plural(total.pays_after, "step")
        parts.append(f"paid back after {steps}: a shorter run is slower with it")
    return tuple(part for part in parts if part)


def effort(result: Optimized) -> str:
    parts = [f"{plural(result.trials, 'trial')} in {units.seconds(result.spent_s)}"]
    if result.race is not None and result.race.measured:
        parts.append(f"{plural(result.race.measured, 'set')} of fixes raced in one process")
    if result.remembered:
        parts.append(f"{plural(result.remembered, 'trial')} reused from an earlier call")
    if result.noise:
        parts.append(noise(result))
    return " · ".join(parts)


def time_spent(time: TimeSpent) -> str:
    """Return what the time of the call went into."""
    parts = {
        "diagnosing": time.diagnosing_s, "racing": time.racing_s, "proving": time.proving_s,
        "writing": time.writing_s,
    }  # fmt: skip
    return " · ".join(f"{name} {units.seconds(s)}" for name, s in parts.items() if s >= 0.05)


def where_confirmed(result: Optimized) -> str:
    return "in new trials" if result.is_function else "in fresh processes"


def noise(result: Optimized) -> str:
    """Return how far two trials of the baseline lie apart."""
    two = "runs of the same step" if result.is_function else "processes of the same program"
    return f"two {two} differ by {share(result.noise) if result.noise else NOTHING} here"


def doubts(ladder: Ladder) -> tuple[str, ...]:
    """Return the doubts that stand under the headline, one a line."""
    result = ladder.optimized
    texts = (
        doubt(ladder), *result.caveats, _late_payback(result), _control_doubt(result),
        _bound_doubt(ladder),
    )  # fmt: skip
    return tuple(text for text in texts if text)


def doubt(ladder: Ladder) -> str:
    """Return why the headline is not a proven gain, what the copy is worth, and what to do; "" if
    it is one, or if nothing was kept."""
    result, total = ladder.optimized, ladder.optimized.total
    files = result.written.files if result.written is not None else ()
    copy = f"{files[0]} was written all the same" if files else ""
    if total is not None and not total.parity.is_proven:
        return f"{copy}: do not use it before you know why its results differ" if copy else ""
    if not is_unsure(ladder):
        return ""
    parts = [_why_unsure(result, total) if total is not None else _why_no_total(result)]
    parts += [f"{copy}: treat it as a guess"] if copy else []
    advice = _ADVICE.get(remedy(ladder), "").format(
        budget="budget" if result.is_function else "--budget"
    )
    parts += [f"what to do: {advice}"] if advice else []
    return "; ".join(parts)


def _why_unsure(result: Optimized, total: Total) -> str:
    pairs, is_one = plural(total.ratio.pairs, "fresh pair"), total.ratio.pairs == 1
    if total.ratio.ci_low > 1:
        verb = "is" if is_one else "are"
        return f"{pairs} {verb} not enough to be sure of it: {noise(result)}"
    return f"{pairs} cannot tell it from no gain: {noise(result)}"


def _why_no_total(result: Optimized) -> str:
    if result.interrupted:
        return "it was interrupted before the kept fixes were confirmed together"
    return explain(result.stopped) or "there was no time to confirm the kept fixes together"


def is_unsure(ladder: Ladder) -> bool:
    """Return whether something was kept, its results are equal, and it is not known to be
    better."""
    result = ladder.optimized
    if result.total is not None:
        return not result.is_confirmed and result.total.parity.is_proven
    return bool(ladder.kept)


def remedy(ladder: Ladder) -> Remedy:
    """Return what would confirm the gain: more pairs, or a quieter machine if the maximum of pairs
    was run."""
    result = ladder.optimized
    if not is_unsure(ladder):
        return ""
    if result.interrupted:
        return "again"
    if result.total is None:
        # More time does not help if a process of the whole failed.
        has_failed = result.stopped is not None and result.stopped.code == SearchCode.PROOF_FAILED
        return "" if has_failed else "time"
    return "time" if result.total.ratio.pairs < MAX_PAIRS else "quiet"


def _late_payback(result: Optimized) -> str:
    """Return a sentence if only long runs gain; "" if memory is the goal, which is saved at
    once."""
    total = result.total
    if total is None or not total.pays_after or result.measured == "peak memory":
        return ""
    is_late = (
        total.pays_after > MAX_EARLY_STEPS or total.pays_after * total.before_ms > MAX_EARLY_MS
    )
    if not is_late:
        return ""
    takes, steps = units.seconds(total.compile_s), plural(total.pays_after, "step")
    return f"compiling takes {takes} and pays only in runs of more than {steps}"


def _control_doubt(result: Optimized) -> str:
    """Return a doubt if the A/A control shows a difference that matters. 1.003 × [1.001, 1.005] on
    a quiet GPU does not."""
    if result.control is None or verdict_of_ratio(result.control) not in ("FASTER", "SLOWER"):
        return ""
    return (
        f"the baseline differed from itself, {factor(result.control)}: the machine was disturbed, "
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
    """Return a remark if the race or the product of the rungs disagrees with what was confirmed,
    else ""."""
    total, product, race = ladder.optimized.total, ladder.product, ladder.optimized.race
    raced = race.ratio if race is not None else None
    if total is not None and raced is not None and _lie_apart(raced, total.ratio):
        return (
            f"The race measured {factor(raced)}, fresh processes {factor(total.ratio)}: the "
            "intervals do not meet. What was measured in fresh processes counts."
        )
    if not ladder.disagrees or total is None or product is None:
        return ""
    selection_bias = ", or fixes were kept because their measurement was lucky"
    return (
        f"The ratios of the rungs multiply to {product:.3g} ×, outside the confirmed interval, "
        f"{factor(total.ratio)}: the machine was disturbed while they were measured"
        f"{selection_bias if product > total.ratio.value else ''}. "
        f"What was measured {where_confirmed(ladder.optimized)} counts."
    )


def _lie_apart(first: Ratio, second: Ratio) -> bool:
    return first.ci_low > second.ci_high or second.ci_low > first.ci_high


def next_command(ladder: Ladder) -> Command | None:
    """Return what to type next, and why; None if there is nothing to do."""
    result = ladder.optimized
    if result.is_confirmed and (check := _compare(result)):
        return Command("check it yourself", check)
    helps = remedy(ladder)
    if helps == "time" and result.longer:
        return Command("with more time", result.longer)
    if result.stopped is not None and result.stopped.code in _MORE_TIME_HELPS and result.longer:
        quiet = "on a quiet machine, " if helps == "quiet" else ""
        return Command(f"{quiet}with more time", result.longer)
    if helps == "quiet" and result.resume:
        return Command("on a quiet machine", result.resume)
    # A program that could not be timed cannot be timed in a second call either.
    if result.stopped and result.resume and (result.baseline_ms or result.interrupted):
        return Command("continue", result.resume)
    words = _words(result.command)
    # `ridgeline run` goes inside torchrun, not before it.
    if result.total is None and words and words[0] != "torchrun" and not result.is_function:
        return Command("see where its time goes", f"ridgeline run {result.command}")
    return None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _compare(result: Optimized) -> str:
    """Return the command that compares the copy with the original; "" if `compare` cannot. It names
    a number of steps, because otherwise whole programs would run."""
    written, total = result.written, result.total
    words = _words(result.command)
    if written is None or not written.files or total is None or not words:
        return ""
    if any(check.what == MEANS for check in total.parity.checks):
        return ""  # the copy draws other samples, so its losses differ by more than any tolerance
    script, *arguments = words
    copy = written.files[0]
    # `compare` takes what follows a colon for the name of a function.
    if not script.endswith(".py") or ":" in script + copy:
        return ""
    typed = ["ridgeline", "compare", _as_path(script), _as_path(copy)]
    if _takes_steps(total.parity):
        typed += ["--by", "step", "--steps", str(steps_to_compare(total))]
    typed += ["--goal", result.goal] if result.goal in _GOALS_OF_COMPARE else []
    if tolerance := tolerance_of(total.parity):
        typed += ["--tolerance", f"{tolerance:g}"]
    return shlex.join([*typed, *(["--", *arguments] if arguments else [])])


def steps_to_compare(total: Total) -> int:
    """Return how many steps take the baseline about a second."""
    known = is_ratio(total.before_ms)
    wanted = round(1e3 * COMPARED_STEPS_S / total.before_ms) if known else MAX_STEPS
    return min(max(wanted, MIN_STEPS), MAX_STEPS)


def _as_path(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def _takes_steps(parity: Parity) -> bool:
    """Return whether an optimizer took steps. A program that only infers, or that moves its
    parameters itself, is compared by whole runs."""
    names = {check.what for check in parity.checks}
    if "applied steps" in names:
        return bool(names & _OPTIMIZER_CHECKS)
    return bool(names - {"evaluation"})


def tolerance_of(parity: Parity) -> float | None:
    """Return the tolerance that losses needed, rounded up to one digit; None if the default of
    `compare` is enough."""
    allowed = [check.allowed for check in parity.checks if check.what == "losses"]
    most = max((value for value in allowed if value and math.isfinite(value)), default=0.0)
    if most <= DEFAULT_LOSS_TOLERANCE:
        return None
    digit = 10.0 ** math.floor(math.log10(most))
    return round(math.ceil(most / digit) * digit, 12)
