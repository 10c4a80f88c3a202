"""The pictures of a search. The ladder as a waterfall goes from the baseline down to what was
confirmed, and has below it what each kept fix still gives when it alone is left out. The race shows
the ratio of each set, and the best set over time. Losses are drawn with and without the fixes."""

from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.records.facts import Ratio
from ridgeline.records.ladder import MIN_FACTOR, Attempt, Ladder, verdict_of_ratio, verdict_of_rung
from ridgeline.records.optimized import Optimized, RaceSummary, Rung, Total
from ridgeline.report.document import (
    Block,
    ForestChart,
    IntervalMark,
    Section,
    Tone,
    WaterfallChart,
    WaterfallLevel,
)
from ridgeline.report.drawings import Curve, CurvesPlot
from ridgeline.report.numbers import is_ratio
from ridgeline.report.views.optimized_phrases import (
    factor,
    gained,
    headline,
    milliseconds,
    titled,
    titles,
    where_confirmed,
)
from ridgeline.units import plural

MIN_DRAWN_LOSSES = 3


class Scale(Struct, frozen=True):
    title: str
    unit: str = ""
    divisor: float = 1.0
    """The factor from the record's unit to the one that is drawn."""
    is_absolute: bool = True
    """Whether the record has the figure itself for every row, not only ratios."""


def waterfall(ladder: Ladder) -> WaterfallChart:
    result = ladder.optimized
    scale = _scale(ladder)
    rows = levels(ladder)
    return WaterfallChart(
        levels=rows,
        axis_title=scale.title,
        unit=scale.unit,
        bars=_left_out_bars(ladder) if rows else _tried_bars(ladder),
        bars_title="Each left out: the whole against the whole without it"
        if rows
        else "What was tried, against the program before it: nothing was kept",
        foot=_foot(result),
        title=headline(ladder)[0],
        about=" · ".join(part for part in (result.command, result.device) if part),
    )


def levels(ladder: Ladder) -> tuple[WaterfallLevel, ...]:
    """Return the baseline, each rung that was on the way, and the whole on fresh processes."""
    result, scale = ladder.optimized, _scale(ladder)
    if not ladder.path:
        return ()
    start = _baseline(result) if scale.is_absolute else 1.0
    figure = _figure(result, start) if scale.is_absolute else ""
    first = WaterfallLevel(
        title="baseline", before=0.0, value=start / scale.divisor, figure=figure, kind="base"
    )
    made = [first]
    for attempt in ladder.path:
        made.append(_rung_level(ladder, attempt, scale, made[-1].value))
    end = [_end_level(result, result.total, scale)] if result.total is not None else []
    return (*made, *end)


def _rung_level(ladder: Ladder, attempt: Attempt, scale: Scale, above: float) -> WaterfallLevel:
    result, rung = ladder.optimized, attempt.rung
    whole = ladder.cumulative(rung)
    value = 1 / whole if whole else above
    if scale.is_absolute:
        value = _own_figure(result, rung) / scale.divisor
    low, high = _ends(value, rung.ratio)
    reached = f"{whole:.2f} × baseline" if whole else ""
    notes = (
        _figure(result, value * scale.divisor) if scale.is_absolute else "",
        reached if attempt.is_kept else "dropped later",
    )
    return WaterfallLevel(
        title=titles(attempt),
        before=above,
        value=value,
        low=low,
        high=high,
        figure=factor(rung.ratio),
        note=" · ".join(note for note in notes if note),
        kind="lost" if value > above else "gain" if attempt.is_kept else "gone",
    )


def _end_level(result: Optimized, total: Total, scale: Scale) -> WaterfallLevel:
    value = 1 / total.ratio.value if is_ratio(total.ratio.value) else 1.0
    note = "against the baseline"
    if scale.is_absolute:
        known = float(total.peak_bytes if result.measured == "peak memory" else total.after_ms)
        value = known / scale.divisor if is_ratio(known) else 0.0
        note = f"{_figure(result, value * scale.divisor)} · {note}"
    low, high = _ends(value, total.ratio)
    where = where_confirmed(result)
    return WaterfallLevel(
        title=f"confirmed {where}" if result.is_confirmed else f"{where}: not confirmed",
        before=0.0,
        value=value,
        low=low,
        high=high,
        figure=factor(total.ratio),
        note=note,
        kind="end" if result.is_confirmed else "lost",
    )


def _scale(ladder: Ladder) -> Scale:
    result = ladder.optimized
    has_figures = result.measured != "energy a sample" and _baseline(result)
    if not has_figures or not all(_own_figure(result, a.rung) for a in ladder.path):
        title = f"{result.measured}, rung by rung: a share of the baseline's, by the ratios"
        return Scale(title, is_absolute=False)
    if result.measured == "peak memory":
        is_large = result.baseline_bytes >= 2**30
        unit, divisor = ("GiB", 2.0**30) if is_large else ("MiB", 2.0**20)
        return Scale("peak memory, rung by rung", unit, divisor)
    return Scale("step time, rung by rung", "ms")


def _baseline(result: Optimized) -> float:
    known = result.baseline_bytes if result.measured == "peak memory" else result.baseline_ms
    return float(known) if is_ratio(known) else 0.0


def _own_figure(result: Optimized, rung: Rung) -> float:
    known = rung.peak_bytes if result.measured == "peak memory" else rung.step_ms
    return float(known) if is_ratio(known) and known is not None else 0.0


def _figure(result: Optimized, value: float) -> str:
    return units.bytes_(value) if result.measured == "peak memory" else milliseconds(value)


def _ends(value: float, ratio: Ratio | None) -> tuple[float | None, float | None]:
    """Return the ends of the ratio's interval as values; None where it has none."""
    if ratio is None or not all(map(is_ratio, (ratio.value, ratio.ci_low, ratio.ci_high))):
        return None, None
    return value * ratio.value / ratio.ci_high, value * ratio.value / ratio.ci_low


def _left_out_bars(ladder: Ladder) -> tuple[IntervalMark, ...]:
    known = [(rung, ratio) for rung, ratio in ladder.left_out if is_ratio(ratio.value)]
    if len(known) < 2:
        return ()
    return tuple(_bar(titled(rung), ratio, "good") for rung, ratio in known)


def _tried_bars(ladder: Ladder) -> tuple[IntervalMark, ...]:
    tones: dict[str, Tone] = {"FASTER": "good", "SLOWER": "bad"}
    return tuple(
        _bar(titles(attempt), ratio, tones.get(verdict_of_rung(attempt.rung), "plain"))
        for attempt in ladder.tried
        if (ratio := attempt.rung.ratio) is not None and is_ratio(ratio.value)
    )


def _bar(name: str, ratio: Ratio, tone: Tone) -> IntervalMark:
    return IntervalMark(
        name=name,
        value=ratio.value,
        low=ratio.ci_low,
        high=ratio.ci_high,
        figure=factor(ratio),
        tone=tone,
    )


def _foot(result: Optimized) -> tuple[str, ...]:
    first = "× with 95 % intervals: how many times better than the rung before."
    if result.control is not None:
        first += f" The baseline against itself: {factor(result.control)}."
    if result.with_batch is None:
        return (first,)
    gain = gained("time a sample", result.with_batch.ratio)
    sure = "" if result.with_batch.is_better else ", not confirmed"
    return first, f"With another batch size, which is not the same training: {gain}{sure}."


def times(value: float | None) -> str:
    if value is None or not is_ratio(value):
        return ""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} ×"


def race_section(result: Optimized) -> Iterator[Block]:
    """Return the ratio of each fix in the race, the best first."""
    raced = [(rung, rung.raced) for rung in result.rungs if rung.raced is not None]
    raced = [(rung, ratio) for rung, ratio in raced if is_ratio(ratio.value)]
    if not raced:
        return
    race, marks = result.race, []
    if race is not None and race.ratio is not None and is_ratio(race.ratio.value):
        marks.append(_raced_mark("all that it proposed", race.ratio))
    for rung, ratio in sorted(raced, key=lambda pair: -pair[1].value):
        marks.append(_raced_mark(titled(rung), ratio))
    if race is not None and race.control is not None and is_ratio(race.control.value):
        marks.append(_raced_mark("A/A control", race.control))
    better = sum(ratio.ci_low > 1 for _, ratio in raced)
    title = f"In the race {better} of {plural(len(raced), 'set')} were surely faster"
    if race is not None and race.ratio is not None and race.ratio.ci_low > 1:
        title += f"; what it proposed was {factor(race.ratio)} as fast"
    chart = ForestChart(
        marks=tuple(marks), band=MIN_FACTOR - 1,
        band_meaning=f"differences below {100 * (MIN_FACTOR - 1):.0f} %, which do not matter",
        title="Each set in one process, against what was kept by then", detail="page",
    )  # fmt: skip
    yield Section(title=title, blocks=(chart, *_course(race)), detail="page")


def _course(race: RaceSummary | None) -> Iterator[CurvesPlot]:
    """Return how the best set became faster while the race went on."""
    if race is None or not race.course:
        return
    best = max(moment.best for moment in race.course)
    reached = next(moment for moment in race.course if moment.best == best)
    yield CurvesPlot(
        title=f"After {units.seconds(reached.at_s)} and {plural(reached.measured, 'set')} the race "
        f"had found {times(best)}",
        x=(0.0, *(moment.at_s for moment in race.course)), x_name="time since the race began",
        x_unit="s", unit="", stepped="after",
        curves=(Curve(name="best so far", values=(1.0, *(m.best for m in race.course))),),
        caption="How many times as fast as the baseline the kept set was. Each point is a heat.",
    )  # fmt: skip


def _raced_mark(name: str, ratio: Ratio) -> IntervalMark:
    verdict = verdict_of_ratio(ratio)
    tones: dict[str, Tone] = {"FASTER": "good", "SLOWER": "bad", "UNDECIDED": "unsure"}
    return IntervalMark(
        name=name, value=ratio.value, low=ratio.ci_low, high=ratio.ci_high, figure=factor(ratio),
        tone=tones.get(verdict, "plain"),
    )  # fmt: skip


def losses_section(result: Optimized) -> Iterator[Block]:
    """Return the losses of the baseline and of the program with all kept fixes, on the same data
    and over each other."""
    total = result.total
    if total is None:
        return
    steps = min(len(total.losses_before), len(total.losses_after))
    if steps < MIN_DRAWN_LOSSES:
        return
    pairs = zip(total.losses_before[:steps], total.losses_after[:steps], strict=True)
    largest = max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)
    differ = f"differ by at most {units.significant(largest, 2)}" if largest else "are equal"
    plot = CurvesPlot(
        title=f"With and without the fixes, the losses of a step on the same data {differ}",
        from_zero=False,
        x=tuple(float(step) for step in range(steps)),
        x_name="step",
        unit="",
        curves=(
            Curve(name="baseline", values=total.losses_before[:steps]),
            Curve(name="with all kept fixes", values=total.losses_after[:steps]),
        ),
        caption="Where one curve is seen, the other lies below it.",
    )
    yield Section(title="Losses", blocks=(plot,), detail="page")
