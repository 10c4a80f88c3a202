"""Findings in JSON, Markdown, CSV and on the page."""

import csv
import html
import io
import json
from typing import Any

import pytest

from ridgeline.records.finding import Findings
from ridgeline.report.finding_html import findings_html
from ridgeline.report.finding_markdown import answers_markdown, findings_markdown
from ridgeline.report.trace_csv import to_csv
from ridgeline.report.trace_document import to_json_document
from ridgeline.report.trace_html import to_html
from ridgeline.report.trace_markdown import to_markdown
from tests.unit.report import made_up_findings as made
from tests.unit.report import made_up_trace
from tests.unit.report.made_up_trace import NASTY

FIELDS = {
    "rule", "id", "claim", "share_pct", "gain_bound", "confidence", "file", "line", "module",
    "evidence", "change", "docs", "after", "shares_with", "memory_pct", "doubt", "family",
}  # fmt: skip


def trace() -> dict[str, object]:
    return to_json_document(made_up_trace.study(), (), made.findings())


def test_the_document_has_every_field_of_every_finding() -> None:
    document: dict[str, Any] = trace()
    json.dumps(document, allow_nan=False)
    assert [f["rule"] for f in document["findings"]] == [
        f.rule for f in made.findings().findings
    ]  # those without a line too
    first = document["findings"][0]
    assert first.keys() >= FIELDS
    assert (first["share_pct"], first["gain_bound"], first["line"]) == (60.0, 2.5, 41)
    assert first["evidence"][0] == {
        "what": "input wait", "text": "93 ms, 61 % of the step", "value": 93.0,
        "source": "measured",
    }  # fmt: skip
    assert document["answers"][0]["question"] == "Is the device busy?"
    assert document["ceiling_pct"] == 11.0
    assert document["unlooked"][0] == "slow-kernel: no shapes"


def test_a_document_without_findings_has_the_keys_all_the_same() -> None:
    document = to_json_document(made_up_trace.nothing())
    assert document["findings"] == []
    assert document["answers"] == []
    assert document["ceiling_pct"] is None


def test_markdown_has_a_number_the_evidence_and_the_fix() -> None:
    text = "\n".join(findings_markdown(made.findings()))
    assert "1. **The DataLoader cannot feed the GPU: `decode()` takes 11 ms a sample, 0 w" in text
    assert "`data.py:41`: up to 2.5 ×" in text
    assert "   - input wait: 93 ms, 61 % of the step (measured)" in text
    assert "   - it may be wrong: the disk may be as slow" in text
    assert "   ```python\n   loader = DataLoader(data, num_workers=8, pin_memory=True," in text
    assert "and 1 more below 3 %" in text
    assert "\n\n\n" not in text


def test_the_answers_are_in_both_reports_always() -> None:
    of_trace = to_markdown(made_up_trace.study(), made.findings())
    page = to_html(made_up_trace.study(), made.findings())
    assert "- **Is the device busy?** No: the GPU works 30 %" in of_trace
    assert "<dt>Is the device busy?</dt><dd>No: the GPU works 30 %" in page
    assert answers_markdown(Findings()) == []


def test_the_page_lists_them_before_its_tables() -> None:
    page = to_html(made_up_trace.study(), made.findings())
    assert page.index("<code>decode()</code> takes 11 ms a sample") < page.index("<table")
    assert "<pre>loader = DataLoader(data, num_workers=8" in page
    assert "<code>ridgeline explain loader-starves</code>" in page
    assert "What holds it back" not in to_html(made_up_trace.study())


def test_the_csv_has_a_section_of_them() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(made_up_trace.study(), made.findings()))))
    first = next(row for row in rows if row["section"] == "findings")
    assert (first["name"], first["share_pct"], first["line"], first["kind"]) == (
        "loader-starves", "60.0", "41", "high",
    )  # fmt: skip


def test_where_nothing_is_large_every_format_says_so() -> None:
    said = "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak"
    assert said in "\n".join(findings_markdown(made.nothing()))
    assert said in findings_html(made.nothing())


@pytest.mark.parametrize("nasty", NASTY)
def test_words_from_outside_stay_words(nasty: str) -> None:
    found = made.nasty(nasty)
    page = to_html(made_up_trace.study(), found)
    assert "<script>" not in page
    text = to_markdown(made_up_trace.study(), found)
    for made_text in (page, text):
        made_text.encode()
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(made_text)
    if "<script>" in nasty:
        outside = [x for x in text.splitlines() if "`" not in x and x.strip() != nasty]
        assert not any("<script>" in line for line in outside)
        assert html.escape(nasty) in page
