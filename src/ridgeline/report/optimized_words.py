"""What trying changes came to, in words: the headline, what was checked, how it was measured."""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.comparison import Estimate
from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Measured, Optimized, Rung, SearchCode, Total
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.report.comparison_numbers import NOTHING, interval, is_ratio, share
from ridgeline.report.optimized_chain import cumulative
from ridgeline.report.optimized_ladder import (
    UNPROVEN,
    Line,
    confirmed,
    given_up,
    in_process,
    interrupted,
    likely,
    lines,
    titles,
)
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain, explain_earlier

Tone = Literal["good", "bad", "unsure", "plain"]
_BETTER = {
    "step time": "as fast", "time a sample": "the throughput", "peak memory": "the memory",
    "energy a sample": "the energy",
}  # fmt: skip
_LOW_IS_SAID: tuple[Measured, ...] = ("peak memory", "energy a sample")
"""Of these people say how much is still used, not how many times better it is."""
_LATE_STEPS, _LATE_MS = 2_000, 300e3
"""Many runs are shorter than this many steps, or than five minutes of the unchanged program: to
them what has to be compiled is a loss."""


MIN_NAMED_GAIN = 1.1
"""The smallest gain, as a factor, that a headline names although the change was not kept. Nobody
asks about a smaller one."""


class Headline(Struct, frozen=True):
    text: str
    tone: Tone


def headline(found: Optimized) -> Headline:
    total = found.total
    if total is None:
        return _without_total(found)
    gain, steps = gained(found.measured, total.ratio), moved(found.measured, total)
    if total.parity.equality in UNPROVEN:
        said = f"Not proven: results {whole_word(found, total)}. {gain}: {steps}"
        return Headline(said, "bad")
    if not confirmed(found):
        chance = "though likely" if total.ratio.ci_low > 1 else "and it may be no gain at all"
        return Headline(f"Not confirmed, {chance}: {gain}, {steps}", "unsure")
    return Headline(f"{gain[:1].upper()}{gain[1:]}: {steps}", "good")


def again(found: Optimized) -> str:
    """Where the whole was measured once more."""
    return "in new trials" if in_process(found) else "on fresh processes"


def twice(found: Optimized) -> str:
    """How far apart the unchanged program comes out."""
    of = "runs of the same step" if in_process(found) else "processes of the same program"
    return f"two {of} differ by {share(found.noise) if found.noise else NOTHING} here"


def _without_total(found: Optimized) -> Headline:
    kept = [line for line in lines(found) if line.kept and not line.apart]
    if kept:
        return Headline(printable(f"Kept, but not confirmed: {_so_far(found, kept)}"), "unsure")
    tried = sum(line.tried for line in lines(found))
    better = "faster" if found.measured == "step time" else "better"
    if not tried and found.baseline_ms and not found.stopped:
        return Headline(_nothing_to_try(found), "plain")
    if not tried:
        why = f": {explain(found.stopped)}" if found.stopped else ""
        done = "tried to its end" if found.baseline_ms or interrupted(found) else "measured"
        return Headline(printable(f"Nothing was {done}{why}"), "plain")
    number = units.plural(tried, "change")
    if (best := _best_left_out(found)) is not None and best.rung.ratio is not None:
        lead = "No gain with the same training" if best.kept else "Nothing proven"
        why = "listed apart below" if best.kept else f"not kept: {reason(found, best)}"
        gain = gained(found.measured, best.rung.ratio)
        said = f"{lead}: {number} tried; {titles(best.rungs)}: {gain}, {why}"
        return Headline(printable(said), "unsure")
    said = f"Nothing to keep: {number} tried, none proven {better} and equal"
    return Headline(said, "plain")


def _best_left_out(found: Optimized) -> Line | None:
    """Return the line of the report with the largest gain, if a reader would ask about it: a
    headline that says nothing was gained must name it. A change that alters the training counts
    too, if it was kept."""
    asked = [
        line
        for line in lines(found)
        if line.tried
        and line.rung.status != "dropped"
        and line.rung.ratio is not None
        and line.rung.ratio.value >= MIN_NAMED_GAIN
        and (not line.apart or line.kept)
    ]
    gains = [(line.rung.ratio.value, line) for line in asked if line.rung.ratio is not None]
    return max(gains, key=lambda one: one[0], default=(0.0, None))[1]


def _nothing_to_try(found: Optimized) -> str:
    altered = [
        rung.reason.facts["alters"]
        for rung in found.rungs
        if rung.status == "not tried" and rung.reason.code == SearchCode.NOT_EXACT
    ]
    rounding, semantics = altered.count("rounding"), altered.count("semantics")
    if not rounding + semantics:
        return "Nothing to try: no change can win here, for the reasons below"
    number = rounding or semantics
    alter, them = ("alters", "it") if number == 1 else ("alter", "them")
    what = "rounding" if rounding else "what is computed"
    allowed = "" if rounding else f" and allow {them}"
    option = "keep_exact" if in_process(found) else "--keep-exact"
    return (
        f"Nothing exact to try: {units.plural(number, 'change')} {alter} {what}; "
        f"leave {option} out{allowed} to try {them}"
    )


def _so_far(found: Optimized, kept: Sequence[Line]) -> str:
    """By the pairs of each rung: the most that can be said at any budget."""
    last = kept[-1].rung
    whole = cumulative(found, last)
    if whole is None:
        return ", ".join(titles(line.rungs) for line in kept)
    if found.measured == "peak memory":
        before, after = units.bytes_(found.baseline_bytes), units.bytes_(last.peak_bytes or 0)
        return f"{1 / whole:.2f} × the memory so far, {before} → {after}"
    gain = 1 / whole if found.measured in _LOW_IS_SAID else whole
    step = f"{milliseconds(last.step_ms)} a step by then"
    return f"{gain:.2f} × {_BETTER[found.measured]} so far, {step}"


def gained(measured: Measured, ratio: Ratio) -> str:
    """6.73 × [6.60, 6.85] as fast; uses 0.61 × [0.59, 0.63] the memory."""
    if measured in _LOW_IS_SAID:
        return f"uses {factor(upside_down(ratio))} {_BETTER[measured]}"
    return f"{factor(ratio)} {_BETTER[measured]}"


def moved(measured: Measured, total: Total) -> str:
    """152 ms → 22.6 ms a step."""
    step = f"{milliseconds(total.before_ms)} → {milliseconds(total.after_ms)} a step"
    if measured == "peak memory":
        before, after = units.bytes_(total.peak_before_bytes), units.bytes_(total.peak_bytes)
        return f"{before} → {after}, {step}"
    samples = rate(total)
    return f"{samples}, {step}" if samples and measured != "step time" else step


def rate(total: Total) -> str:
    before, after = total.before_samples_s, total.after_samples_s
    if before is None or after is None:
        return ""
    return f"{_count(before)} → {_count(after)} samples/s"


def factor(ratio: Ratio | None) -> str:
    """6.73 × [6.60, 6.85]"""
    if ratio is None:
        return ""
    estimate = Estimate(
        ratio=ratio.value, ci_low=ratio.ci_low, ci_high=ratio.ci_high, level=ratio.level,
        p_value=1.0, rounds=ratio.pairs, method="", autocorrelation=0.0, within_low=ratio.ci_low,
        within_high=ratio.ci_high,
    )  # fmt: skip
    return interval(estimate, " ×")


def upside_down(ratio: Ratio) -> Ratio:
    """After over before, with its interval."""
    value, low, high = (1 / v if is_ratio(v) else math.nan for v in _of(ratio))
    return Ratio(value=value, ci_low=high, ci_high=low, pairs=ratio.pairs, level=ratio.level)


def milliseconds(value: float | None) -> str:
    return units.seconds(value / 1e3) if value is not None and is_ratio(value) else NOTHING


def results_word(parity: Parity | None, alters: Alters = "rounding") -> str:
    """A word or two for a column; the sentences are `parity.why` and its checks."""
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


def whole_word(found: Optimized, total: Total) -> str:
    """Of all that was kept: the most that any of it may alter."""
    kept = {rung.alters for rung in found.rungs if rung.fix in total.fixes or not total.fixes}
    return results_word(total.parity, "nothing" if kept == {"nothing"} else "rounding")


def pays_word(found: Optimized, steps: int | None) -> str:
    """Of what is faster: what saves memory wins no time back."""
    if steps:
        return units.plural(steps, "step")
    return "" if found.measured == "peak memory" else "at once"


def reason(found: Optimized, line: Line) -> str:
    """Why a line was not kept."""
    known = {rung.fix: rung.title for rung in found.rungs}
    own = {rung.fix for rung in line.rungs}
    partners = [known.get(name, name) for name in line.fixes if name not in own]
    why = bare(line.rung) or line.rung.status
    said = f"with {', '.join(partners)}: {why}" if partners else why
    return printable("; ".join(part for part in (said, explain_earlier(line.rung.earlier)) if part))


def bare(rung: Rung) -> str:
    """Its reason without the figures that have columns of their own."""
    if rung.ratio is None:
        return explain(rung.reason)
    if given_up(rung):
        return "worse in its first pair, and not tried again"
    if likely(rung):
        number = rung.ratio.pairs
        verb = "is" if number == 1 else "are"
        return f"probably better, not proven: {units.plural(number, 'pair')} {verb} not enough"
    return explain(rung.reason, figures=False)


def about(found: Optimized) -> list[str]:
    """What stands under the headline: the program, the proof, its cost."""
    said = [
        " · ".join(part for part in (printable(found.command), printable(found.device)) if part)
    ]
    total = found.total
    if total is not None:
        said.append(f"results {whole_word(found, total)}: {printable(_why(total.parity))}")
        said.append(_costs(found, total))
        said.append(_not_copied(found))
    if found.measured in _LOW_IS_SAID:
        said.append(f"below, × is {found.measured} before over after: above 1 is less")
    return [text for text in said if text]


def _not_copied(found: Optimized) -> str:
    written = found.written
    if written is None or written.files or written.diff_file or not written.by_hand:
        return ""
    return "no copy was written: what to write by hand, and where, stands below"


def _why(parity: Parity) -> str:
    return parity.why.removeprefix("differs: ").removeprefix("weak: ")


def _costs(found: Optimized, total: Total) -> str:
    """What the headline does not say."""
    parts = [rate(total)] if found.measured == "step time" else []
    if total.peak_bytes and total.peak_before_bytes and found.measured != "peak memory":
        before, after = units.bytes_(total.peak_before_bytes), units.bytes_(total.peak_bytes)
        parts.append(f"peak memory {before} → {after}")
    if pays_late(found):
        return " · ".join(part for part in parts if part)
    if total.compile_s >= 1:
        parts.append(f"compiling takes {units.seconds(total.compile_s)}")
    if total.pays_after:
        steps = units.plural(total.pays_after, "step")
        parts.append(f"paid back after {steps}: a shorter run is slower with it")
    return " · ".join(part for part in parts if part)


def pays_late(found: Optimized) -> str:
    """Of a gain that only long runs see. What saves memory does so at once."""
    total = found.total
    if total is None or not total.pays_after or found.measured == "peak memory":
        return ""
    late = total.pays_after > _LATE_STEPS or total.pays_after * total.before_ms > _LATE_MS
    steps = units.plural(total.pays_after, "step")
    takes = units.seconds(total.compile_s)
    return f"compiling takes {takes} and pays only in runs of more than {steps}" if late else ""


def diagnosed(found: Optimized) -> list[tuple[str, str]]:
    """Where nothing was won, what the time goes on all the same; else what it went on, and does."""
    won = [("was", found.diagnosis), ("is now", found.afterwards)]
    told = won if found.total is not None else [("diagnosis", found.diagnosis)]
    return [(label, printable(text)) for label, text in told if text]


def effort(found: Optimized) -> str:
    parts = [f"{units.plural(found.trials, 'trial')} in {units.seconds(found.spent_s)}"]
    if found.remembered:
        parts.append(f"{found.remembered} more of an earlier call")
    if found.noise:
        parts.append(twice(found))
    return " · ".join(parts)


def method(found: Optimized) -> list[str]:
    """How it was measured, a line each."""
    pairs = found.total.ratio.pairs if found.total is not None else 0
    end = f" At the end all that was kept ran in {units.plural(pairs, 'fresh pair')}." * bool(pairs)
    each = (
        "Every trial is the step itself in this process, from the state in which everything was"
        if in_process(found)
        else "Every trial is the program itself in a process of its own, the change put on from "
        "outside"
    )
    level = f"{100 * found.total.ratio.level:.0f} %" if found.total is not None else "95 %"
    control = f"{factor(found.control)}" if found.control is not None else "not measured"
    return [
        f"{each}; with and without the change alternate, pair by pair.{end}",
        f"A ratio is the {found.measured} before over the {found.measured} after: above 1 is "
        "better. Of a step time the middle of the settled steps counts. × baseline of a rung is "
        "the ratios up to it multiplied: the unchanged program's own step was taken long before.",
        f"Intervals ({level}) come from the spread of pairs, pooled over all trials: "
        f"{twice(found)}. Few pairs have to be surer than that: 99.8 % of one, 98.8 % of three.",
        f"A/A control, the unchanged program against itself: {control}.",
        "Results are compared with repeats of the unchanged program at the same seed and data: "
        f"{checked(found)}.",
    ]


def checked(found: Optimized) -> str:
    """What was compared, by the checks themselves."""
    parities = [rung.parity for rung in found.rungs] + [found.total and found.total.parity]
    names = [check.what for parity in parities if parity for check in parity.checks]
    return printable(", ".join(dict.fromkeys(names))) or "nothing could be compared"


def named(rungs: tuple[Rung, ...]) -> str:
    return printable(" · ".join(dict.fromkeys(rung.title for rung in rungs)))


def _of(ratio: Ratio) -> tuple[float, float, float]:
    return ratio.value, ratio.ci_low, ratio.ci_high


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else units.significant(value)
