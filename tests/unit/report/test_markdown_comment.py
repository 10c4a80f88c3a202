"""Markdown that fits a comment on a pull request."""

import re

import pytest
from msgspec.structs import replace

from ridgeline.report.document import (
    Block,
    Claim,
    Claims,
    Column,
    Document,
    Paragraph,
    Section,
    Span,
    Table,
    item,
    row,
)
from ridgeline.report.renderers import markdown
from ridgeline.report.views.run import document as run_document
from tests.unit.report import made_up_findings, made_up_run

LIMIT = 65_536


def document(*blocks: Block) -> Document:
    return Document(answer=(Span("the answer"),), facts=("step 12 ms",), blocks=blocks)


def claim(number: int, code_lines: int = 3) -> Claim:
    return Claim(
        text=f"claim {number}", place=f"train.py:{number}", gain="up to 2 ×",
        doubt="the clock was wrong", code=tuple(f"line_{i} = {i}" for i in range(code_lines)),
        evidence=(item("input wait", "12 ms (measured)"),),
    )  # fmt: skip


def table(rows: int) -> Table:
    named = (row(f"kernel number {i} with a name of some length", f"{i}") for i in range(rows))
    return Table(columns=(Column("kernel", "name"), Column("ms")), rows=tuple(named))


def outside_folds(text: str) -> str:
    return re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)


def test_a_finding_is_a_line_and_the_rest_is_folded() -> None:
    text = markdown.render(document(Claims((claim(1), claim(2)))))
    assert text.count("<details>") == text.count("</details>") == 2
    shown = outside_folds(text)
    assert "1. **claim 1** `train.py:1`: up to 2 ×" in shown
    assert "2. **claim 2** `train.py:2`: up to 2 ×" in shown
    for folded in ("12 ms (measured)", "the clock was wrong", "line_2 = 2"):
        assert text.count(folded) == 2
        assert folded not in shown


def test_what_is_folded_belongs_to_the_number_of_its_finding() -> None:
    """An indent of three keeps it in the list; without an empty line GitHub reads no Markdown."""
    lines = markdown.render(document(Claims((claim(1),)))).splitlines()
    first = lines.index("   <details><summary>the fix, and the evidence</summary>")
    assert lines[first + 1] == ""
    assert "   ```python" in lines[first:]
    assert all(line == "" or line.startswith("   ") for line in lines[first:])


def test_a_finding_without_evidence_has_nothing_to_unfold() -> None:
    assert "details" not in markdown.render(document(Claims((Claim(text="bare"),))))


def test_a_run_is_short_and_has_verdict_and_numbers_before_what_is_folded() -> None:
    summary = replace(made_up_run.summary(), findings=made_up_findings.findings())
    text = markdown.render(run_document(summary))
    shown = outside_folds(text)
    assert shown.startswith("### input-bound: ")
    assert "step 152 ms" in shown
    assert f"`{summary.findings.findings[0].place}`: " in shown
    assert len(shown) < 0.6 * len(text)


@pytest.mark.parametrize(
    "blocks",
    [(table(5_000),), (table(5_000), table(5_000)), tuple(table(18) for _ in range(200)),
     tuple(Section(title=f"part {i}", blocks=(table(60),), folded=True) for i in range(40)),
     (Claims(tuple(claim(i, code_lines=900) for i in range(12))), table(30)),
     (Paragraph("first"), Paragraph("word " * 20_000))],
    ids=["one table", "two tables", "many tables", "many sections", "long code", "long text"],
)  # fmt: skip
def test_a_long_report_is_shortened_until_it_fits(blocks: tuple[Block, ...]) -> None:
    report = document(*blocks)
    assert len(markdown.render(report, full=True)) > LIMIT
    text = markdown.render(report)
    assert len(text) <= LIMIT
    assert text.startswith("### the answer\n\nstep 12 ms\n")
    assert text.count("<details>") == text.count("</details>")
    assert "more" in text or "does not fit" in text or "claim 11" in text


def test_findings_are_kept_when_there_is_no_room_for_their_code() -> None:
    text = markdown.render(document(Claims(tuple(claim(i, code_lines=900) for i in range(12)))))
    assert all(f"**claim {i}** `train.py:{i}`: up to 2 ×" in text for i in range(12))


def test_rows_that_were_asked_for_are_all_there() -> None:
    for text in (
        markdown.render(document(table(3_000)), full=True),
        markdown.render(document(table(3_000)), max_rows=3_000),
    ):
        assert "kernel number 2999 " in text
