"""Sixty and more texts that a terminal, a spreadsheet or Markdown could obey, in every text field
of four kinds of results."""

import csv
import io
import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from ridgeline.cli.output import formatted
from ridgeline.report.document import Report
from ridgeline.report.views.comparison import comparison_report
from ridgeline.report.views.optimized import optimized_report
from ridgeline.report.views.run import run_report
from ridgeline.report.views.trace import trace_report
from tests.unit.hostile import ESCAPES, filled, rotated
from tests.unit.report import (
    made_up_comparison,
    made_up_findings,
    made_up_optimized,
    made_up_run,
    made_up_trace,
)
from tests.unit.report.rendered import at_terminal
from tests.unit.report.test_trace_escaping import UNSEEN

MARKDOWN_TAGS = re.compile(r"</?(details|summary|sub|br)\b[^>]*>|<!-- ridgeline[^>]*-->")
CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
"""Code of Markdown, inline or fenced, in which nothing else is Markdown."""


def reports(by: int) -> Iterator[tuple[str, Report]]:
    texts = rotated(ESCAPES, by)
    found = filled(made_up_findings.findings(), texts)
    run = replace(made_up_run.summary(), python=made_up_run.python())
    yield "run", run_report(replace(filled(run, texts), findings=found))
    yield "trace", trace_report(filled(made_up_trace.several(), texts), found)
    yield "compare", comparison_report(filled(made_up_comparison.comparison(), texts))
    yield "optimize", optimized_report(filled(made_up_optimized.climbed(), texts))


def test_the_texts_are_as_many_as_promised() -> None:
    assert len(set(ESCAPES)) >= 60


@pytest.mark.parametrize("by", range(0, len(ESCAPES), 9))
def test_no_text_of_a_result_acts_on_a_terminal_or_a_table(by: int) -> None:
    for name, report in reports(by):
        assert UNSEEN.search(at_terminal(report.document(), full=True)) is None, name
        assert UNSEEN.search(formatted(report, ".json").replace("\n", "")) is None, name
        notes = MARKDOWN_TAGS.sub("", formatted(report, ".md"))
        assert UNSEEN.search(notes) is None, name
        assert not re.search(r"<(b|script|img|!--)", CODE.sub("", notes.replace("\\`", ""))), name
        if report.figures is None:
            continue
        cells = [cell for row in csv.reader(io.StringIO(formatted(report, ".csv"))) for cell in row]
        risky = [c for c in cells if c[:1] in "=+-@\t\r" and not re.fullmatch(r"-?[\d.e+-]*", c)]
        assert risky == [], name
        assert UNSEEN.search("".join(cells).replace("\t", "")) is None, name
