"""What the waterfall shows: how high each rung on the way stands, and how surely."""

from msgspec import Struct

from ridgeline import units
from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Optimized, Rung, Total
from ridgeline.report.comparison_numbers import is_ratio
from ridgeline.report.optimized_chain import cumulative
from ridgeline.report.optimized_ladder import confirmed, path, titles
from ridgeline.report.optimized_words import again, factor, milliseconds
from ridgeline.report.plain import printable


class Level(Struct, frozen=True, kw_only=True):
    """A row of the waterfall. Values are in the scale's own unit."""

    title: str
    before: float
    """Where the row above ended; 0 where the bar stands on the ground."""
    value: float
    low: float | None = None
    high: float | None = None
    """By the interval of its ratio."""
    figure: str = ""
    note: str = ""
    kind: str = "gain"
    """base, gain, gone (dropped later), lost (it rose) or end"""


class Scale(Struct, frozen=True):
    title: str
    unit: str
    divisor: float = 1.0
    """From the record's unit to the one that is drawn."""


def scale(found: Optimized) -> Scale:
    if not _absolute(found):
        told = f"{found.measured}, rung by rung: a share of the unchanged program's, by the ratios"
        return Scale(told, "")
    if found.measured == "peak memory":
        gib = found.baseline_bytes >= 2**30
        return Scale(
            "peak memory, rung by rung", "GiB" if gib else "MiB", 2.0**30 if gib else 2.0**20
        )
    return Scale("step time, rung by rung", "ms")


def levels(found: Optimized) -> tuple[Level, ...]:
    """The unchanged program, each rung that was on the way, and the whole on fresh processes."""
    lines = path(found)
    if not lines:
        return ()
    absolute = _absolute(found)
    by = scale(found).divisor
    start = (_baseline(found) if absolute else 1.0) / by
    note = _said(found, start * by) if absolute else ""
    made = [Level(title="baseline", before=0.0, value=start, figure=note, kind="base")]
    for line in lines:
        rung, above = line.rung, made[-1].value
        whole = cumulative(found, rung)
        value = _own(found, rung) / by if absolute else 1 / whole if whole else above
        low, high = _around(value, rung.ratio)
        kind = "lost" if value > above else "gain" if line.kept else "gone"
        made.append(
            Level(
                title=printable(titles(line.rungs)), before=above, value=value, low=low, high=high,
                figure=factor(rung.ratio), kind=kind,
                note=_note(_said(found, value * by) if absolute else "", whole, line.kept),
            )
        )  # fmt: skip
    return (*made, *([_end(found, found.total, by, absolute)] if found.total is not None else ()))


def _end(found: Optimized, total: Total, by: float, absolute: bool) -> Level:
    value = 1 / _gain(total.ratio)
    if absolute:
        memory = found.measured == "peak memory"
        known = float(total.peak_bytes if memory else total.after_ms)
        value = known / by if is_ratio(known) else 0.0
    low, high = _around(value, total.ratio)
    sure = confirmed(found)
    return Level(
        title=f"confirmed {again(found)}" if sure else f"{again(found)}: not confirmed",
        before=0.0, value=value, low=low, high=high, figure=factor(total.ratio),
        note=f"{_said(found, value * by)} · against the baseline".removeprefix(" · ")
        if absolute else "against the baseline",
        kind="end" if sure else "lost",
    )  # fmt: skip


def _note(figure: str, whole: float | None, kept: bool) -> str:
    said = "dropped later" if not kept else f"{whole:.2f} × baseline" if whole else ""
    return " · ".join(part for part in (figure, said) if part)


def _absolute(found: Optimized) -> bool:
    """Whether the record has the figure itself for every row, not only ratios."""
    if found.measured == "energy a sample" or not _baseline(found):
        return False
    return all(_own(found, line.rung) for line in path(found))


def _baseline(found: Optimized) -> float:
    known = found.baseline_bytes if found.measured == "peak memory" else found.baseline_ms
    return float(known) if is_ratio(known) else 0.0


def _own(found: Optimized, rung: Rung) -> float:
    known = rung.peak_bytes if found.measured == "peak memory" else rung.step_ms
    return float(known) if is_ratio(known) and known is not None else 0.0


def _gain(ratio: Ratio | None) -> float:
    return ratio.value if ratio is not None and is_ratio(ratio.value) else 1.0


def _said(found: Optimized, value: float) -> str:
    return units.bytes_(value) if found.measured == "peak memory" else milliseconds(value)


def _around(value: float, ratio: Ratio | None) -> tuple[float | None, float | None]:
    """The ends of the ratio's interval, as values; None where it has none."""
    if ratio is None or not all(map(is_ratio, (ratio.value, ratio.ci_low, ratio.ci_high))):
        return None, None
    return value * ratio.value / ratio.ci_high, value * ratio.value / ratio.ci_low
