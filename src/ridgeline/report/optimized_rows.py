"""The ladder as rows of words, before they have a format: the unchanged program, its control, what
was tried in the order it was tried, and the whole on fresh processes."""

from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.optimized import Optimized, Total
from ridgeline.report.comparison_numbers import is_ratio
from ridgeline.report.optimized_chain import cumulative
from ridgeline.report.optimized_ladder import (
    UNPROVEN,
    Line,
    apart,
    better,
    confirmed,
    titles,
    tried,
)
from ridgeline.report.optimized_words import (
    Tone,
    again,
    factor,
    gained,
    pays_word,
    rate,
    reason,
    results_word,
    whole_word,
)
from ridgeline.report.plain import printable

Kind = Literal["baseline", "control", "rung", "confirmed"]
COLUMNS = (
    "rung", "step ms", "× baseline", "× rung before", "results", "memory", "pays after", "kept",
)  # fmt: skip
NUMBERS = ("step ms", "× baseline", "× rung before", "memory", "pays after")
KEPT = "✓"


class Row(Struct, frozen=True, kw_only=True):
    kind: Kind
    title: str
    step_ms: str = ""
    whole: str = ""
    """Times better than the unchanged program, by the ratios on the way there."""
    ratio: str = ""
    """Than the rung before, with its interval; of the control and the whole, than the baseline."""
    results: str = ""
    memory: str = ""
    pays: str = ""
    kept: str = ""
    """A tick, or the reason."""
    tone: Tone = "plain"

    @property
    def cells(self) -> tuple[str, ...]:
        """As `COLUMNS`."""
        return (
            self.title, self.step_ms, self.whole, self.ratio, self.results, self.memory, self.pays,
            self.kept,
        )  # fmt: skip


def rows(found: Optimized) -> list[Row]:
    made = [_baseline(found)]
    if found.control is not None:
        made.append(Row(kind="control", title="A/A control", ratio=factor(found.control)))
    made += [row(found, line) for line in tried(found)]
    if found.total is not None:
        made.append(_confirmed(found, found.total))
    return made


def row(found: Optimized, line: Line) -> Row:
    rung = line.rung
    return Row(
        kind="rung",
        title=printable(titles(line.rungs)),
        step_ms=step(rung.step_ms),
        # What was tried and left is on no way from the baseline.
        whole=_times(cumulative(found, rung)) if line.kept or rung.status == "dropped" else "",
        ratio=factor(rung.ratio),
        results=results_word(rung.parity, rung.alters),
        memory=_bytes(rung.peak_bytes),
        pays=pays_word(found, rung.pays_after) if line.kept else "",
        kept=KEPT if line.kept else told(found, line),
        tone=_tone(line),
    )


def told(found: Optimized, line: Line) -> str:
    """Why a line was not kept, with what became of it where the reason does not say it."""
    why = reason(found, line)
    return f"dropped: {why}" if line.rung.status == "dropped" else why


class Apart(Struct, frozen=True, kw_only=True):
    """A change, or the whole with it, that is not the same training."""

    title: str
    gain: str
    rate: str = ""
    results: str = ""
    memory: str = ""
    kept: str = ""


def apart_rows(found: Optimized) -> list[Apart]:
    made = [
        Apart(
            title=printable(titles(line.rungs)),
            gain=factor(line.rung.ratio),
            results=results_word(line.rung.parity),
            memory=_bytes(line.rung.peak_bytes),
            kept=KEPT if line.kept else told(found, line),
        )
        for line in apart(found)
    ]
    total = found.with_batch
    if total is not None:
        made.append(
            Apart(
                title="all that was kept, with it",
                gain=gained("time a sample", total.ratio),
                rate=rate(total),
                results=results_word(total.parity),
                memory=_bytes(total.peak_bytes),
                kept="" if better(total) else "not confirmed",
            )
        )
    return made


def step(ms: float | None) -> str:
    if ms is None or not is_ratio(ms):
        return ""
    if ms < 1:
        return units.significant(ms)
    return f"{ms:,.{0 if ms >= 1000 else 1 if ms >= 10 else 2}f}"


def _times(value: float | None) -> str:
    if value is None or not is_ratio(value):
        return ""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} ×"


def _baseline(found: Optimized) -> Row:
    return Row(
        kind="baseline", title="baseline", step_ms=step(found.baseline_ms), whole="1.00 ×",
        memory=_bytes(found.baseline_bytes),
    )  # fmt: skip


def _confirmed(found: Optimized, total: Total) -> Row:
    return Row(
        kind="confirmed",
        title=f"confirmed {again(found)}" if confirmed(found) else again(found),
        step_ms=step(total.after_ms),
        whole=_times(total.ratio.value),
        ratio=factor(total.ratio),
        results=whole_word(found, total),
        memory=_bytes(total.peak_bytes),
        pays=pays_word(found, total.pays_after) if confirmed(found) else "",
        kept="" if confirmed(found) else "not confirmed",
        tone="good" if confirmed(found) else "bad",
    )


def _tone(line: Line) -> Tone:
    rung = line.rung
    if line.kept:
        return "good"
    if rung.parity is not None and rung.parity.equality in UNPROVEN:
        return "bad"
    return "bad" if rung.ratio is None else "unsure"


def _bytes(value: int | None) -> str:
    return units.bytes_(value) if value else ""
