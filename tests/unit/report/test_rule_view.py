"""A rule's page and the list of rules."""

import pytest

from ridgeline.report.document import Code, Paragraph, Points, plain
from ridgeline.report.renderers import markdown
from ridgeline.report.views.rule import prose_blocks, rule_document, rules_data, rules_document
from tests.unit.report import made_up_findings as made
from tests.unit.report.rendered import at_terminal, bare_page


def test_markdown_becomes_paragraphs_lists_and_code() -> None:
    text = "One\nparagraph:\n- a point\n  on two lines\n- `b`\n\n```python\nx = 1\n```\n\n1. first"
    paragraph, points, code, numbered = prose_blocks(text)
    assert isinstance(paragraph, Paragraph)
    assert plain(paragraph.text) == "One paragraph:"
    assert isinstance(points, Points)
    assert [plain(point) for point in points.points] == ["a point on two lines", "`b`"]
    assert code == Code("x = 1", "python")
    assert numbered == Points(("first",), numbered=True)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_terminal_wraps_prose_and_leaves_code_as_it_is(width: int) -> None:
    lines = at_terminal(rule_document(made.pages()[0]), width).splitlines()
    assert max(map(len, lines)) <= width
    assert " The loader cannot feed the device   loader-starves · input" in lines
    assert "     loader = DataLoader(data," in lines
    assert "         num_workers=8)" in lines
    assert "   - as many as there are cores" in lines
    assert not any("```" in line or line != line.rstrip() for line in lines)


def test_an_empty_line_parts_paragraphs() -> None:
    lines = at_terminal(rule_document(made.pages()[0])).splitlines()
    first = lines.index("   The device idles while Python decodes.")
    assert lines[first - 1 : first + 3] == [
        " why it costs", lines[first], "", "   A second paragraph.",
    ]  # fmt: skip


def test_pages_and_notes_have_lists_and_code() -> None:
    report = rule_document(made.pages()[0])
    assert "<li>as many as there are cores</li>" in bare_page(report)
    assert "- as many as there are cores\n- and `pin_memory`" in markdown.render(report)


def test_the_list_has_a_line_for_each_rule_under_its_family() -> None:
    text = at_terminal(rules_document(made.pages()), 100)
    assert "   loader-starves  The loader cannot feed the device" in text
    assert "   item-in-loop  The host waits | for a number" in text
    assert text.index("The device waits for data") < text.index("The host waits for the device")


def test_the_data_have_the_fields() -> None:
    found = rules_data(made.pages())
    assert found["schema"] == "ridgeline.rules/1"
    assert found["rules"][0]["why"].startswith("The device idles")
