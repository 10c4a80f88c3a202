"""Variants timed against each other: the verdict, the table, the intervals, and what they rest on.

A ratio is the baseline's time over the candidate's: above 1 the candidate is faster.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline import units
from ridgeline.records.comparison import (
    Candidate,
    Comparison,
    Estimate,
    Goal,
    Guard,
    Results,
    Skipped,
    Variant,
)
from ridgeline.records.facts import Verdict
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    ForestChart,
    IntervalMark,
    Item,
    Labelled,
    Level,
    Paragraph,
    Report,
    RoundsChart,
    Row,
    SamplesChart,
    SampleStrip,
    Section,
    Span,
    Table,
    Tone,
    item,
    row,
)
from ridgeline.report.numbers import NOTHING, interval, is_ratio, share, time, times
from ridgeline.report.reasons import explain, record_data
from ridgeline.report.views.timing import forest_title, samples_title
from ridgeline.units import plural

SCHEMA = "ridgeline.comparison/1"
TONES: dict[Verdict, Tone] = {
    "FASTER": "good", "SLOWER": "bad", "SAME": "plain", "UNDECIDED": "unsure", "INVALID": "bad",
}  # fmt: skip
_GOAL_REACHED: dict[Goal, str] = {
    "speed": "FASTER", "memory": "NEEDS LESS MEMORY", "throughput": "HAS MORE THROUGHPUT",
}  # fmt: skip
_THROUGHPUT: dict[Verdict, str] = {
    "FASTER": "MORE THROUGHPUT", "SLOWER": "LESS THROUGHPUT", "SAME": "SAME THROUGHPUT",
    "UNDECIDED": "THROUGHPUT UNDECIDED",
}  # fmt: skip
_MEMORY: dict[str, tuple[str, Tone]] = {
    "LESS": ("LESS MEMORY", "unsure"), "MORE": ("MORE MEMORY", "bad"),
    "SAME": ("SAME MEMORY", "plain"),
}  # fmt: skip
FOOTER = "A ratio is the baseline's time over the candidate's: above 1 the candidate is faster."
MIN_ROUNDS = 6
"""With fewer rounds there is no verdict; twice as many leave room for one."""
DEFAULT_ROUNDS_FACTOR = 4
"""Four times the rounds halve the interval."""


def comparison_report(comparison: Comparison, typed: Sequence[str] = ()) -> Report:
    """Return the report. `typed` is the command line after `ridgeline`, for the command to type
    next."""
    return Report(
        document=lambda: document(comparison, typed),
        data=lambda: data(comparison),
        figures=lambda: figures(comparison),
    )


class Judged(Struct, frozen=True, kw_only=True):
    """The answer about one candidate, by the goal of the comparison."""

    word: str
    """FASTER, LESS MEMORY, …"""
    tone: Tone
    figure: str = ""
    """1.31 × [1.27, 1.35]; "" if no number can be trusted."""
    speed: str = ""
    """What happened to the speed, if speed was not the goal."""

    @property
    def spans(self) -> tuple[Span, ...]:
        rest = f" {self.figure}" if self.figure else ""
        rest += f", {self.speed}" if self.speed else ""
        return Span(self.word, self.tone, bold=True), *([Span(rest, bold=True)] if rest else [])

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


def judged(comparison: Comparison, candidate: Candidate) -> Judged:
    verdict = candidate.verdict
    if verdict == "INVALID":  # a number beside it would be quoted without the verdict
        return Judged(word=verdict, tone="bad")
    if comparison.goal == "memory":
        return _judged_memory(comparison, candidate)
    if comparison.goal == "throughput" and candidate.throughput_ratio is not None:
        return _judged_throughput(comparison, candidate)
    figure = _ratio(candidate.deciding, " ×")
    if candidate.decided_by == "processor_time":
        figure += " by processor time"
    return Judged(word=verdict, tone=TONES[verdict], figure=figure)


def _judged_memory(comparison: Comparison, candidate: Candidate) -> Judged:
    verdict, ratio = comparison.memory_verdict(candidate), candidate.memory_ratio
    speed = f"speed {candidate.verdict} {_ratio(candidate.deciding, ' ×')}"
    if verdict is None or ratio is None:
        return Judged(word="MEMORY NOT MEASURED", tone="unsure", speed=speed)
    if verdict == "LESS" and candidate.verdict == "SLOWER":
        cost = share(1 - candidate.deciding.ratio)
        speed = f"costs {cost} speed: SLOWER {_ratio(candidate.deciding, ' ×')}"
    word, tone = _MEMORY[verdict]
    sizes = memory_change(comparison, candidate)
    figure = times(1 / ratio if verdict == "MORE" else ratio) + (f" ({sizes})" if sizes else "")
    tone = "good" if candidate.goal_met and verdict == "LESS" else tone
    return Judged(word=word, tone=tone, figure=figure, speed=speed)


def _judged_throughput(comparison: Comparison, candidate: Candidate) -> Judged:
    """Return the answer for the goal throughput, where the ratio is of the time an item takes."""
    before, after = items_per_second(comparison.baseline), items_per_second(candidate.variant)
    rates = f" ({before} → {after})" if before and after else ""
    speed = ""
    # With equal items a call, the time of a call would repeat the rate.
    if comparison.baseline.items != candidate.variant.items:
        took = (
            time(variant.summary.median_ns) for variant in (comparison.baseline, candidate.variant)
        )
        speed = f"a {comparison.unit} {' → '.join(took)}"
    figure = f"{_ratio(candidate.deciding, ' ×')}{rates}"
    verdict = candidate.verdict
    return Judged(word=_THROUGHPUT[verdict], tone=TONES[verdict], figure=figure, speed=speed)


def headline(comparison: Comparison) -> tuple[Judged, tuple[str, ...]]:
    """Return the answer on the only candidate or the best one, and the facts beside it: what was
    compared, the verdicts of the others, and whether the results are equal."""
    against = f"against {comparison.baseline.name}"
    number = len(comparison.candidates) + len(comparison.broken)
    if number == 1 and comparison.candidates:
        (only,) = comparison.candidates
        about = (f"{only.variant.name} {against}", f"results {results_words(only.results)}")
        return judged(comparison, only), about
    words = [judged(comparison, candidate).word for candidate in comparison.candidates]
    tally = tally_of([*words, *(skipped.status for skipped in comparison.broken)])
    best = comparison.best
    if best is None:
        word = "NOTHING COMPARED"
        if comparison.candidates:
            word = f"NONE OF {number} {_GOAL_REACHED[comparison.goal]}"
        return Judged(word=word, tone="unsure"), tuple(part for part in (against, tally) if part)
    return judged(comparison, best), (
        f"{best.variant.name} {against}",
        f"results {results_words(best.results)}",
        f"the best of {number}: {tally}",
    )


def document(comparison: Comparison, typed: Sequence[str] = ()) -> Document:
    answer, about = headline(comparison)
    blocks = list(blocks_of(comparison))
    if (step := next_step(comparison)) and (text := step.command(comparison, typed)):
        blocks.append(Commands((Command(step.why, text),)))
    return Document(
        answer=answer.spans,
        about=about,
        blocks=tuple(blocks),
        title=f"{answer.text}: {about[0]}",
        footer=f"{FOOTER} {SCHEMA}",
    )


def blocks_of(comparison: Comparison) -> Iterator[Block]:
    candidates = comparison.candidates
    # FASTER and SLOWER need no sentence: the chart shows the interval and the threshold.
    if len(candidates) == 1 and candidates[0].verdict not in ("FASTER", "SLOWER"):
        yield Paragraph(explain(candidates[0].reason))
    yield _variant_table(comparison)
    marks = [_control_mark(comparison), *(interval_mark(c, c.variant.name) for c in candidates)]
    yield _forest(marks, comparison)
    all_notes = notes(comparison)
    if loud := tuple(note for note in all_notes if note.level != "plain"):
        yield Labelled(loud)
    quiet = (*(note for note in all_notes if note.level == "plain"), *_method(comparison))
    yield Section(title="How it was measured", blocks=(Labelled(quiet),), folded=True)
    yield _samples_chart(comparison)
    for candidate in candidates:
        yield RoundsChart(
            mark=interval_mark(candidate, candidate.variant.name),
            log_ratios=tuple(comparison.log_ratios(candidate)),
            band=comparison.noise_band,
            title=f"Ratio of each round: {candidate.variant.name}",
        )
    for candidate in candidates:
        yield _evidence(candidate, several=len(candidates) > 1)


def _variant_table(comparison: Comparison) -> Table:
    """Return the table of the baseline, the A/A control, and each candidate."""
    several = len(comparison.candidates) + len(comparison.broken) > 1
    first = "first run" if comparison.mode == "scripts" else "first call"
    columns = (
        Column("", "name"),
        Column("verdict", "words"),
        Column(f"time a {comparison.unit}"),
        Column("× baseline"),
        Column("results", "words"),
        *(Column(cost, starts_part=True) for cost in ("peak memory", "items", first, "pays after")),
    )
    control, differs = comparison.control_variant, comparison.control.differs
    rows = [
        row("baseline", "", _median(comparison.baseline), "1", "",
            *_costs(comparison, comparison.baseline), "", tone="quiet"),
        row("A/A control", "", _median(control) if control is not None else "",
            Cell(_ratio(comparison.control.estimate), tone="bad" if differs else "plain"),
            *[""] * 5, tone="plain" if differs else "quiet"),
    ]  # fmt: skip
    for candidate in comparison.candidates:
        answer = judged(comparison, candidate)
        rows.append(
            row(
                candidate.variant.name,
                Cell(answer.word if several else "", tone=answer.tone, bold=True),
                _median(candidate.variant),
                Cell(believed_ratio(candidate), tone="plain" if several else answer.tone),
                results_words(candidate.results, short=True),
                *_costs(comparison, candidate.variant),
                pays_after(comparison, candidate),
            )
        )
    rows += [skipped_row(skipped, len(columns)) for skipped in comparison.broken]
    return Table(columns=columns, rows=tuple(rows))


def skipped_row(skipped: Skipped, columns: int, note: str = "") -> Row:
    tone: Tone = "bad" if skipped.status == "BROKEN" else "unsure"
    status = Cell(skipped.status, tone=tone, bold=True)
    return row(skipped.name, status, *[""] * (columns - 2), note=note, tone="quiet")


def _median(variant: Variant) -> str:
    return time(variant.summary.median_ns) if variant.summary.count else ""


def _costs(comparison: Comparison, variant: Variant) -> tuple[str, str, str]:
    """Return the peak memory, items a second and the first call, where they were measured."""
    return (
        "" if variant.peak_bytes is None else units.bytes_(variant.peak_bytes),
        items_per_second(variant) if comparison.goal == "throughput" else "",
        "" if variant.first_call_ns is None else time(variant.first_call_ns),
    )


def items_per_second(variant: Variant) -> str:
    if variant.items is None or not is_ratio(variant.summary.median_ns):
        return ""
    return f"{units.count(variant.items / (variant.summary.median_ns / 1e9))}/s"


def _ratio(estimate: Estimate, sign: str = "") -> str:
    return interval(estimate.ratio, estimate.ci_low, estimate.ci_high, sign)


def believed_ratio(candidate: Candidate) -> str:
    """Return the ratio, in brackets if it must not be trusted."""
    text = _ratio(candidate.deciding)
    return f"({text})" if candidate.verdict == "INVALID" and text != NOTHING else text


def results_words(results: Results, short: bool = False) -> str:
    """Return "equal (float64 reference, strong)"; for a table "equal, weak check"."""
    if results.status == "not compared":
        return results.status
    if short:
        return results.status if results.strength == "strong" else f"{results.status}, weak check"
    has_method = results.status != "bit-identical" and results.method != "none"
    how = [results.method] if has_method else []
    return f"{results.status} ({', '.join([*how, results.strength])})"


def pays_after(comparison: Comparison, candidate: Candidate) -> str:
    """Return what stands under "pays after": at once, 1,900 calls, never."""
    if candidate.pays_after:
        return plural(candidate.pays_after, comparison.unit)
    return candidate.pays


def memory_change(comparison: Comparison, candidate: Candidate) -> str:
    before, after = comparison.baseline.peak_bytes, candidate.variant.peak_bytes
    if before is None or after is None:
        return ""
    return f"{units.bytes_(before)} → {units.bytes_(after)}"


def tally_of(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _control_mark(comparison: Comparison) -> IntervalMark:
    tone: Tone = "bad" if comparison.control.differs else "plain"
    return _interval_mark("A/A control", comparison.control.estimate, tone)


def interval_mark(candidate: Candidate, name: str) -> IntervalMark:
    return _interval_mark(name, candidate.deciding, TONES[candidate.verdict])


def _interval_mark(name: str, estimate: Estimate, tone: Tone) -> IntervalMark:
    """Return the mark of an interval. An end that is not a number is drawn at the estimate."""
    middle = estimate.ratio
    low, high = (middle if math.isnan(v) else v for v in (estimate.ci_low, estimate.ci_high))
    return IntervalMark(
        name=name, value=middle, low=low, high=high, figure=_ratio(estimate), tone=tone
    )


def _forest(marks: Iterable[IntervalMark], comparison: Comparison) -> ForestChart:
    known = tuple(mark for mark in marks if is_ratio(mark.value))
    return ForestChart(
        marks=known,
        title=forest_title(known[1:]),
        band=comparison.noise_band,
        band_meaning=band_meaning(comparison),
    )


def band_meaning(comparison: Comparison) -> str:
    band = comparison.noise_band
    meaning = "does not matter"
    if band != comparison.threshold:
        meaning = "is how much identical code differed here"
    return f"± {share(band)} {meaning}"


def samples_of(comparison: Comparison) -> list[tuple[str, Variant]]:
    """Return each variant under a unique name: "baseline", "control", the candidates' names."""
    named = [("baseline", comparison.baseline)]
    if comparison.control_variant is not None:
        named.append(("control", comparison.control_variant))
    for candidate in comparison.candidates:
        name, taken, number = candidate.variant.name, {key for key, _ in named}, 2
        while name in taken:
            name, number = f"{candidate.variant.name} ({number})", number + 1
        named.append((name, candidate.variant))
    return named


def _samples_chart(comparison: Comparison) -> SamplesChart:
    strips = tuple(
        SampleStrip(name=name, samples_ns=variant.samples_ns, median_ns=variant.summary.median_ns,
                    is_baseline=name in ("baseline", "control"))
        for name, variant in samples_of(comparison)
    )  # fmt: skip
    return SamplesChart(strips=strips, title=samples_title(strips))


def _evidence(candidate: Candidate, several: bool) -> Section:
    """Return how results were compared, and every guard against cheating."""
    results = candidate.results
    lines = (results_words(results), results.detail, *results.reasons)
    items = [item("results", *(line for line in lines if line))]
    if candidate.verdict in ("FASTER", "SLOWER"):
        items.insert(0, item(candidate.verdict, explain(candidate.reason)))
    items += [
        item(guard.name, f"{guard.outcome}{f': {guard.detail}' if guard.detail else ''}")
        for guard in candidate.guards
    ]
    title = f"Results and guards: {candidate.variant.name}" if several else "Results and guards"
    return Section(title=title, blocks=(Labelled(tuple(items)),), detail="page", folded=True)


def notes(comparison: Comparison) -> list[Item]:
    """Return the notes on a comparison: errors first, then warnings, then the rest."""
    all_notes = [
        *_broken_notes(comparison), *_control_notes(comparison), *_verdict_notes(comparison),
        *_result_notes(comparison), *_guard_notes(comparison), *_order_notes(comparison),
        *_variant_notes(comparison),
        *(item("host", explain(one)) for one in comparison.surroundings.disturbances),
        *(item("note", text) for text in comparison.notes),
    ]  # fmt: skip
    levels: list[Level] = ["error", "warning", "plain"]
    return sorted(dict.fromkeys(all_notes), key=lambda note: levels.index(note.level))


def _broken_notes(comparison: Comparison) -> Iterator[Item]:
    for skipped in comparison.broken:
        level: Level = "error" if skipped.status == "BROKEN" else "warning"
        text = f"{skipped.name}: {skip_reason(skipped)}"
        yield item(skipped.status.lower(), text, level=level)


def skip_reason(skipped: Skipped) -> str:
    return "; ".join(text for text in (skipped.reason, skipped.hint) if text)


def _control_notes(comparison: Comparison) -> Iterator[Item]:
    if comparison.control.differs:
        figure = _ratio(comparison.control.estimate, " ×")
        yield item("control", f"identical code measured different: A/A {figure}", level="error")


def _verdict_notes(comparison: Comparison) -> Iterator[Item]:
    """Yield why a candidate has no clear verdict. With one candidate it stands under the
    headline."""
    if len(comparison.candidates) == 1:
        return
    for candidate in comparison.candidates:
        if candidate.verdict in ("INVALID", "UNDECIDED", "SAME"):
            level: Level = "error" if candidate.verdict == "INVALID" else "plain"
            why = explain(candidate.reason)
            yield item(
                "verdict", f"{candidate.variant.name} {candidate.verdict}: {why}", level=level
            )


CandidateNotes = list[tuple[Candidate, Level, str]]


def _result_notes(comparison: Comparison) -> Iterator[Item]:
    texts: CandidateNotes = []
    for candidate in comparison.candidates:
        results = candidate.results
        if results.status == "different":
            if candidate.verdict != "INVALID" or not results.detail:  # else the verdict has it
                texts.append((candidate, "error", results.detail or "different"))
        elif results.strength != "strong":
            kind = "weak check" if results.strength == "weak" else "not checked"
            why = "; ".join(results.reasons) or results.detail
            texts.append((candidate, "warning", f"{kind}: {why}" if why else kind))
        # With several candidates the table is enough for strong results.
        elif results.detail and len(comparison.candidates) == 1:
            texts.append((candidate, "plain", results.detail))
    yield from _grouped(comparison, "results", texts)


def _guard_notes(comparison: Comparison) -> Iterator[Item]:
    texts: CandidateNotes = []
    for candidate in comparison.candidates:
        for guard in candidate.guards:
            # The guard that made it INVALID is named in the verdict's reason.
            if guard.outcome in ("failed", "warned") and guard != candidate.disqualifying_guard:
                level: Level = "error" if guard.outcome == "failed" else "warning"
                texts.append((candidate, level, guard_text(guard)))
        missed = [guard.name for guard in candidate.guards if guard.outcome == "not looked for"]
        passed = sum(guard.outcome == "passed" for guard in candidate.guards)
        if missed or passed:
            rest = f"; not looked for: {', '.join(missed)}" if missed else ""
            texts.append((candidate, "plain", f"{passed} passed{rest}"))
    yield from _grouped(comparison, "guards", texts)


def guard_text(guard: Guard) -> str:
    return f"{guard.name}{f': {guard.detail}' if guard.detail else ''}"


def _grouped(comparison: Comparison, label: str, texts: CandidateNotes) -> Iterator[Item]:
    """Yield notes that hold for all candidates once, and others under the names of their
    candidates."""
    names: dict[tuple[Level, str], list[str]] = {}
    for candidate, level, text in texts:
        names.setdefault((level, text), []).append(candidate.variant.name)
    for (level, text), who in names.items():
        prefix = "" if len(who) == len(comparison.candidates) else f"{', '.join(who)}: "
        yield item(label, f"{prefix}{text}", level=level)


def _order_notes(comparison: Comparison) -> Iterator[Item]:
    order, drift = comparison.order, comparison.drift
    if order.significant:
        where = f" ({order.where})" if order.where else ""
        text = f"the position in a round changed times by up to {share(order.share)}{where}"
        yield item("order", text, level="warning")
    if drift.significant:
        direction = "slower" if drift.share > 0 else "faster"
        yield item(
            "drift",
            f"the baseline got {share(abs(drift.share))} {direction} from the first round to the "
            "last; this affects absolute times, but not ratios, which are taken within rounds",
            level="warning",
        )


def _variant_notes(comparison: Comparison) -> Iterator[Item]:
    named = [
        ("baseline", comparison.baseline),
        *((candidate.variant.name, candidate.variant) for candidate in comparison.candidates),
    ]
    for name, variant in named:
        if not variant.steady:
            calls = f" after {plural(variant.warmup_calls, 'call')}" if variant.warmup_calls else ""
            yield item("warm-up", f"{name} had not reached a steady state{calls}", level="warning")
        if variant.recompiles:
            count = plural(variant.recompiles, "compilation")
            yield item("compile", f"{name}: {count} during the rounds", level="warning")
    discarded = max(variant.discarded for _, variant in named)
    if discarded:  # a round is discarded whole, so each variant lost as many samples
        text = f"{plural(discarded, 'round')} discarded, because the device was throttled"
        yield item("discarded", text, level="warning")
    yield from _processor_time_notes(comparison)
    outliers = "; ".join(
        _outliers(name, variant) for name, variant in named if variant.outliers.total
    )
    if outliers:
        yield item("outliers", f"counted and kept: {outliers}")


def _outliers(name: str, variant: Variant) -> str:
    total, severe = (
        variant.outliers.total,
        variant.outliers.severe_low + variant.outliers.severe_high,
    )
    count = len(variant.samples_ns) or variant.summary.count
    if severe == total:
        return f"{name} {severe} severe of {count}"
    return f"{name} {total} of {count}" + (f", {severe} severe" if severe else "")


def _processor_time_notes(comparison: Comparison) -> Iterator[Item]:
    """Yield notes on candidates whose verdict rests on processor time, or is contradicted by it."""
    texts: CandidateNotes = []
    for candidate in comparison.candidates:
        ratio = candidate.cpu_ratio
        if candidate.decided_by == "processor_time":
            text = f"wall time alone gives {_ratio(candidate.estimate, ' ×')}"
            if candidate.verdict in ("FASTER", "SLOWER"):  # else the verdict has the reason
                text += f"; {explain(candidate.reason)}"
            texts.append((candidate, "plain", text))
        elif ratio is None or not is_ratio(ratio):
            continue
        elif candidate.verdict == "FASTER" and ratio < 1 / (1 + comparison.threshold):
            text = f"faster by wall time, but with more processor time ({times(ratio)})"
            texts.append((candidate, "plain", text))
        elif candidate.verdict == "SLOWER" and ratio > 1 + comparison.threshold:
            text = f"slower by wall time, but with less processor time ({times(ratio)})"
            texts.append((candidate, "plain", text))
    yield from _grouped(comparison, "cpu time", texts)


def _method(comparison: Comparison) -> Iterator[Item]:
    host = comparison.surroundings
    yield item("rounds", _rounds(comparison))
    if how := intervals(comparison):
        yield item("intervals", how)
    by_item = any(candidate.throughput_ratio is not None for candidate in comparison.candidates)
    if comparison.goal == "throughput" and by_item:
        yield item("ratios", "of time an item, because throughput is the goal")
    threads = f"{plural(host.threads, 'thread')} on {plural(host.cores, 'core')}"
    where = (comparison.mode, f"{comparison.cache} cache", host.device, threads)
    yield item("measured", " · ".join([*filter(None, where), f"seed {comparison.seed}"]))
    if host.versions:
        versions = " · ".join(f"{name} {version}" for name, version in host.versions.items())
        yield item("versions", versions)


def _rounds(comparison: Comparison) -> str:
    looks, rounds = comparison.looks, comparison.rounds
    planned = looks[-1] if looks else rounds
    text = plural(rounds, "round") + (f" of {planned:,}" if planned > rounds else "")
    look = f" at look {looks.index(rounds) + 1} of {len(looks)}" if rounds in looks else ""
    why = {
        "decided": f"stopped when the verdict was clear{look}",
        "budget": "stopped when the time was spent",
        "all rounds": "all that were planned",
        "interrupted": "interrupted",
    }[comparison.stopped]
    spent, budget = _clock(comparison.spent_s), _clock(comparison.budget_s)
    return f"{text}, {why}; {spent} of the budget of {budget}"


def _clock(value: float) -> str:
    return units.seconds(float(units.significant(value, 2))) if math.isfinite(value) else "no limit"


def intervals(comparison: Comparison) -> str:
    """Return how the intervals were computed, and at which level each: higher than that of the
    whole."""
    candidates = comparison.candidates
    methods = dict.fromkeys(c.deciding.method for c in candidates if c.deciding.method)
    how = "; ".join(methods)
    wanted = 1 - comparison.alpha
    level = max((c.deciding.level for c in candidates), default=wanted)
    if not how or not math.isfinite(level):
        return how
    whole = f"{units.significant(100 * wanted, 3)} %"
    if level <= wanted + 1e-9:
        return f"{how}, at {whole}"
    several = " and candidates" if len(candidates) > 1 else ""
    each = units.significant(100 * level, 3)
    return f"{how}, at {each} % each: {whole} over all looks{several}"


class NextStep(Struct, frozen=True):
    """An option with which to repeat a comparison."""

    why: str
    option: str
    value: str = ""

    def command(self, comparison: Comparison, typed: Sequence[str] = ()) -> str:
        """Return the typed command with the option in it, or a command made of the names if they
        are targets; else the argument of the Python call, "" if there is none."""
        words = [self.option, *([self.value] if self.value else [])]
        if typed:
            return shlex.join(["ridgeline", *self._inserted(typed, words)])
        names = [comparison.baseline.name, *(c.variant.name for c in comparison.candidates)]
        if all(name.partition(":")[0].endswith(".py") for name in names):
            return shlex.join(["ridgeline", "compare", *names, *words])
        seconds = self.value.removesuffix("s")
        return f"budget={seconds}" if self.option == "--budget" else ""

    def _inserted(self, typed: Sequence[str], words: Sequence[str]) -> list[str]:
        """Return the typed words with the option added. An earlier value of it is removed; words
        after `--` belong to the scripts."""
        end = list(typed).index("--") if "--" in typed else len(typed)
        before, own = [], iter(typed[:end])
        for word in own:
            if word == self.option and self.value:
                next(own, None)
            elif not (word == self.option or word.startswith(f"{self.option}=")):
                before.append(word)
        return [*before, *words, *typed[end:]]


def next_step(comparison: Comparison) -> NextStep | None:
    verdicts = {candidate.verdict for candidate in comparison.candidates}
    if "INVALID" in verdicts:
        return None
    if comparison.order.significant or comparison.control.differs:
        # A repetition would meet the same disturbance; separate processes may not.
        isolated = NextStep("in processes of their own", "--isolate")
        return isolated if comparison.mode == "one process" else None
    if "UNDECIDED" in verdicts and is_ratio(comparison.budget_s):
        if not (factor := _rounds_factor(comparison)):
            return None
        budget = f"{math.ceil(_needed_s(comparison, factor))}s"
        return NextStep(f"with {factor} × the rounds", "--budget", budget)
    if "FASTER" in verdicts and verdicts <= {"FASTER", "SAME"}:
        return NextStep("to guard it in CI", "--fail-if", "slower")
    return None


def _needed_s(comparison: Comparison, factor: int) -> float:
    """Return the budget for so many times the rounds. Start-up, checks and warm-up come once, and
    a budget that was too short is never advised again."""
    if not comparison.rounds_s:
        return factor * comparison.budget_s
    once_s = max(comparison.spent_s - comparison.rounds_s, 0.0)
    return max(once_s + factor * comparison.rounds_s, comparison.budget_s + comparison.rounds_s)


def _rounds_factor(comparison: Comparison) -> int:
    """Return how many times as many rounds would decide; 0 if no number would."""
    if comparison.rounds < MIN_ROUNDS:
        return math.ceil(2 * MIN_ROUNDS / max(comparison.rounds, 1))
    undecided = [c.reason for c in comparison.candidates if c.verdict == "UNDECIDED"]
    factors = [r.facts["rounds_factor"] for r in undecided if "rounds_factor" in r.facts]
    known = [factor for factor in factors if isinstance(factor, int)]
    return 0 if 0 in known else max(known, default=DEFAULT_ROUNDS_FACTOR)


_SUMMARY = ("median", "mean", "std", "min", "max", "iqr", "p95", "p99")
_ANSWER = (
    "summary", "verdict", "ratio", "ci_low", "ci_high", "why", "goal_met", "results", "guards",
)  # fmt: skip


def data(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON document. Figures are in the unit their name ends with; null is "not
    measured" or not a number. The answer on an only candidate stands at the top as well."""
    c = comparison
    candidates = [_candidate_data(c, candidate) for candidate in c.candidates]
    answer = {key: candidates[0][key] for key in _ANSWER} if len(candidates) == 1 else {}
    levels = [k.estimate.level for k in c.candidates] or [c.control.estimate.level]
    same = (
        *("goal", "threshold", "alpha"),
        *("rounds", "stopped", "mode", "unit", "cache", "budget_s", "spent_s", "seed"),
    )
    return {
        "schema": SCHEMA,
        **answer,
        "control": {
            **msgspec.to_builtins(c.control.estimate),
            "floor": c.control.floor,
            "differs": c.control.differs,
        },
        "baseline": _variant_data(c.baseline),
        "candidates": candidates,
        "broken": [skipped_data(skipped) for skipped in c.broken],
        **{name: getattr(c, name) for name in same},
        "level": min(levels),
        "looks": list(c.looks),
        "drift": msgspec.to_builtins(c.drift),
        "order_effect": msgspec.to_builtins(c.order),
        "surroundings": record_data(c.surroundings, "disturbances"),
        "notes": list(c.notes),
        "samples": {
            key: {
                "count": len(variant.samples_ns),
                "unit": "ns",
                "values": list(variant.samples_ns),
            }
            for key, variant in samples_of(c)
        },
    }


def _candidate_data(comparison: Comparison, candidate: Candidate) -> dict[str, Any]:
    k = candidate
    return {
        "name": k.variant.name,
        "summary": judged(comparison, k).text,
        "verdict": k.verdict,
        **msgspec.to_builtins(k.deciding),
        "decided_by": k.decided_by or None,
        "by_clock": msgspec.to_builtins(k.estimate),
        "by_processor_time": msgspec.to_builtins(k.processor_estimate),
        "why": explain(k.reason),
        "goal_met": k.goal_met,
        "results": {**msgspec.to_builtins(k.results), "ok": k.results.ok},
        "guards": [msgspec.to_builtins(guard) for guard in k.guards],
        "cpu_ratio": k.cpu_ratio,
        "memory_ratio": k.memory_ratio,
        "throughput_ratio": k.throughput_ratio,
        "pays_after": k.pays_after,
        "pays": k.pays,
        **_variant_data(k.variant),
    }


def _variant_data(variant: Variant) -> dict[str, Any]:
    summary = variant.summary
    items = None
    if variant.items is not None and summary.median_ns > 0:
        items = variant.items / (summary.median_ns / 1e9)
    same = (
        *("clock", "warmup_calls", "steady", "recompiles"),
        *("peak_bytes", "peak_method", "items", "discarded"),
    )
    return {
        "name": variant.name,
        **{f"{name}_ms": _ms(getattr(summary, f"{name}_ns")) for name in _SUMMARY},
        "median_ci_low_ms": _ms(summary.ci_low_ns),
        "median_ci_high_ms": _ms(summary.ci_high_ns),
        "sample_count": summary.count,
        "refused": list(summary.refused),
        "calls_per_sample": variant.block_calls,
        "cpu_median_ms": _ms(variant.cpu_median_ns),
        "first_call_ms": _ms(variant.first_call_ns),
        "warmup_ms": _ms(variant.warmup_ns),
        **{name: getattr(variant, name) for name in same},
        "items_per_second": items,
        "outliers": msgspec.to_builtins(variant.outliers),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def skipped_data(skipped: Skipped) -> dict[str, Any]:
    return {name: getattr(skipped, name) for name in ("name", "status", "reason", "hint")}


def figures(comparison: Comparison) -> Figures:
    """Return one row for each sample, round by round; within a round in the order of the table, not
    in the order in which the variants ran."""
    named = samples_of(comparison)
    longest = max(len(variant.samples_ns) for _, variant in named)
    rows = [
        [i + 1, name, variant.samples_ns[i]]
        for i in range(longest)
        for name, variant in named
        if i < len(variant.samples_ns)
    ]
    return Figures(("round", "variant", "ns"), rows)
