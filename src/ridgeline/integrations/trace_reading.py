"""`ridgeline.read_trace`: traces read and analysed from Python."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.records.finding import Findings
from ridgeline.records.timeline import TracePage
from ridgeline.records.trace import TraceStudy
from ridgeline.report.document import Document
from ridgeline.report.notebook import ShownAsPage
from ridgeline.report.views.trace import headline, trace_report
from ridgeline.trace.study import study
from ridgeline.trace.trace import Trace


class TraceReading(ShownAsPage):
    """One or several traces, read and analysed. `print` it for the report; a notebook shows its
    page.

    .verdict  what held the device back, in a sentence
    .study    the findings, a record: .idle.causes, .kernels, .roofline, .ranks …
    .traces   the events as numpy columns: .traces[0].device.dur, .ops.name …
    .findings what holds the program back, with the place and the fix
    .sql(q)   any question, over the views `events`, `kernels`, `ops` … ; rows as tuples
    """

    def __init__(
        self,
        study: TraceStudy,
        traces: tuple[Trace, ...],
        diagnose: Callable[[], Findings],
        steps: str | None = None,
    ) -> None:
        self.study = study
        self.traces = traces
        self._diagnose = diagnose
        self._steps = steps

    @cached_property
    def findings(self) -> Findings:
        """Return what holds the traced program back, with place and fix. It is computed once."""
        return self._diagnose()

    def document(self) -> Document:
        return trace_report(self.study, self.findings).document()

    def page_document(self) -> Document:
        page = trace_report(self.study, self.findings, page=self._page).page
        return self.document() if page is None else page()

    def _page(self) -> TracePage:
        from ridgeline.diagnosis.recorded_run import Attempts
        from ridgeline.diagnosis.run_page import trace_page

        attempts, findings = Attempts(), self.findings
        page = attempts.part(
            "the timeline", lambda: trace_page(self.traces, self.study, findings, self._steps)
        )
        return page or TracePage()

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
    found, traces = study(paths, steps=steps, limit=rows, cache=cache, max_events=max_events)

    def diagnose() -> Findings:
        from ridgeline.diagnosis.trace_findings import diagnose_trace

        return diagnose_trace(found, traces, paths, steps, cache)

    return TraceReading(found, traces, diagnose, steps)
