"""`ridgeline.read_trace`: traces read and analysed from Python."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.records.trace import TraceStudy
from ridgeline.report.views.trace import headline
from ridgeline.trace.study import study
from ridgeline.trace.trace import Trace


class TraceReading:
    """One or several traces, read and analysed.

    .verdict  what held the device back, in a sentence
    .study    the findings, a record: .idle.causes, .kernels, .roofline, .ranks …
    .traces   the events as numpy columns: .traces[0].device.dur, .ops.name …
    .sql(q)   any question, over the views `events`, `kernels`, `ops` … ; rows as tuples
    """

    def __init__(self, study: TraceStudy, traces: tuple[Trace, ...]) -> None:
        self.study = study
        self.traces = traces

    def __repr__(self) -> str:
        return f"<{self.study.label}: {self.verdict}>"

    @property
    def verdict(self) -> str:
        return headline(self.study)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        from ridgeline.trace.exports.sql import query as ask

        _, rows = ask(self.traces, query)
        return list(rows)


def read_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    steps: str | None = None,
    rows: int = 50,
    cache: bool = True,
    max_events: int | None = None,
) -> TraceReading:
    """Read a trace, or a list of traces that are the ranks of one job.

    `steps` narrows the window ("3-5"), `rows` bounds each table, `cache=False` leaves no Parquet
    beside the file. A file of more than `max_events` is refused, by default of more than half of
    the free memory has room for. Raises RidgelineError with one sentence where a file is no trace.
    """
    many = [path] if isinstance(path, str | os.PathLike) else list(path)
    paths = [Path(p) for p in many]
    return TraceReading(*study(paths, steps=steps, limit=rows, cache=cache, max_events=max_events))
