"""The findings and answers of a trace's report, in every format."""

import csv
import html
import io
import json
import unicodedata
from typing import Any

import pytest

from ridgeline.records.finding import Findings
from ridgeline.report.views.trace_data import data
from tests.unit.report import made_up_findings as made
from tests.unit.report import made_up_trace
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import trace_as, trace_at_terminal

WIDTHS = [60, 80, 100, 120, 140, 200]
FIELDS = {
    "rule", "id", "claim", "share_pct", "gain_bound", "confidence", "file", "line", "module",
    "evidence", "change", "docs", "after", "shares_with", "memory_pct", "doubt", "family",
}  # fmt: skip


def trace() -> dict[str, object]:
    return data(made_up_trace.study(), (), made.findings())


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
    document = data(made_up_trace.nothing())
    assert document["findings"] == []
    assert document["answers"] == []
    assert document["ceiling_pct"] is None


def test_the_answers_are_in_markdown_and_on_the_page() -> None:
    text = trace_as(".md", made_up_trace.study(), made.findings())
    page = trace_as(".html", made_up_trace.study(), made.findings())
    assert "- **Is the device busy?** No: the GPU works 30 %" in text
    assert '<dt class="plain">Is the device busy?</dt><dd>No: the GPU works 30 %' in page


def test_the_page_lists_them_before_its_tables() -> None:
    page = trace_as(".html", made_up_trace.study(), made.findings())
    assert page.index("<code>decode()</code> takes 11 ms a sample") < page.index("<table")
    assert "<pre>loader = DataLoader(data, num_workers=8" in page
    assert "<code>ridgeline explain loader-starves</code>" in page
    assert "what holds it back" not in trace_as(".html", made_up_trace.study())


def test_the_csv_has_a_section_of_them() -> None:
    text = trace_as(".csv", made_up_trace.study(), made.findings())
    rows = list(csv.DictReader(io.StringIO(text)))
    first = next(row for row in rows if row["section"] == "findings")
    assert (first["name"], first["share_pct"], first["line"], first["kind"]) == (
        "loader-starves", "60.0", "41", "high",
    )  # fmt: skip


@pytest.mark.parametrize("nasty", NASTY)
def test_markup_in_user_text_is_escaped(nasty: str) -> None:
    found = made.nasty(nasty)
    page = trace_as(".html", made_up_trace.study(), found)
    assert "<script>" not in page
    text = trace_as(".md", made_up_trace.study(), found)
    for made_text in (page, text):
        made_text.encode()
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(made_text)
    if "<script>" in nasty:
        outside = [x for x in text.splitlines() if "`" not in x and x.strip() != nasty]
        assert not any("<script>" in line for line in outside)
        assert html.escape(nasty) in page


def at_terminal(findings: Findings, width: int = 140) -> str:
    return trace_at_terminal(made_up_trace.study(), width, findings)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_shows_all_findings_and_no_line_is_too_long(width: int) -> None:
    text = at_terminal(made.findings(), width)
    for said in ("data.py:41", "up to 2.5 ×", "same time as 1", "and 1 more below 3 %",
                 "Is the device busy?", "it waits for data 61 %"):  # fmt: skip
        assert said in flat(text)
    for line in text.splitlines():
        assert len(line) <= width or "ridgeline trace" in line or "ridgeline run" in line
        assert line == line.rstrip()


def test_the_next_command_explains_the_first() -> None:
    assert "ridgeline explain loader-starves" in at_terminal(made.findings())


def test_a_trace_without_large_findings_has_one_sentence() -> None:
    text = flat(at_terminal(made.nothing()))
    assert "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak" in text
    assert "1 rule could not check: the trace has no recorded shapes" in text


@pytest.mark.parametrize("nasty", NASTY)
def test_user_text_cannot_move_the_cursor_or_become_markup(nasty: str) -> None:
    text = at_terminal(made.nasty(nasty))
    unseen = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unseen <= {"\n"}
    if "[bold]" in nasty:
        assert "[bold]not bold[/bold]" in text
