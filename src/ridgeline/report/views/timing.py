"""How long one call takes: the median with its interval, and every sample."""

from collections.abc import Sequence

from ridgeline import units
from ridgeline.records.latency import Latency
from ridgeline.report.document import (
    Block,
    Column,
    Document,
    IntervalMark,
    Paragraph,
    SamplesChart,
    SampleStrip,
    Span,
    Table,
    row,
)
from ridgeline.report.numbers import median, time


def document(name: str, latency: Latency) -> Document:
    summary = latency.summary
    each = f" of {latency.block_calls:,} calls" if latency.block_calls > 1 else ""
    strip = SampleStrip(name=name, samples_ns=latency.samples_ns, median_ns=summary.median_ns)
    blocks: list[Block] = [Paragraph(text, "warning") for text in latency.warnings]
    if latency.samples_ns:
        blocks += [SamplesChart(strips=(strip,), title="Every sample, in order"), _table(latency)]
    return Document(
        answer=(Span(f"{name}: {median(summary)}"),),
        about=(f"{units.plural(summary.count, 'sample')}{each}", latency.clock),
        blocks=tuple(blocks),
    )


def forest_title(candidates: Sequence[IntervalMark]) -> str:
    """Return what the intervals of candidates show, in a few words."""
    if len(candidates) == 1:
        return f"{candidates[0].name}: {candidates[0].figure} times as fast as the baseline"
    return "How many times as fast as the baseline each candidate is"


def samples_title(strips: Sequence[SampleStrip]) -> str:
    """Return what the samples of variants show, in a few words."""
    medians = [time(strip.median_ns) for strip in strips]
    if len(medians) < 2:
        return "Every sample over the rounds"
    return f"Samples over the rounds: half take at most {', '.join(medians[:-1])} and {medians[-1]}"


def _table(latency: Latency) -> Table:
    summary = latency.summary
    known = (
        ("least", summary.min_ns), ("mean", summary.mean_ns), ("median", summary.median_ns),
        ("95 % of the samples below", summary.p95_ns), ("99 % below", summary.p99_ns),
        ("most", summary.max_ns), ("standard deviation", summary.std_ns),
        ("median by the wall clock", latency.wall_median_ns),
        ("host's time to start it", latency.issue_median_ns),
    )  # fmt: skip
    return Table(
        columns=(Column("time", "words"), Column("of a call")),
        rows=tuple(row(label, time(value)) for label, value in known if value is not None),
        detail="page",
    )
