"""The Markdown texts of the rules: every rule has one, and every text has every section."""

from pathlib import Path

import pytest

import ridgeline.diagnosis.rules
from ridgeline.diagnosis.rule import registered
from ridgeline.diagnosis.rule_texts import parse_rule_text, rule_names, rule_page
from ridgeline.report.views.rule import SECTIONS

RULES = Path(ridgeline.diagnosis.rules.__file__).parent
WHOLE = "# A title\n\n" + "\n\n".join(f"## {heading}\n\nA text." for heading in SECTIONS.values())


def test_every_rule_has_a_text_and_every_text_has_a_rule() -> None:
    texts = {file.stem.replace("_", "-") for file in RULES.glob("*.md")}
    assert texts == set(rule_names()) == {entry.rule.id for entry in registered()}


@pytest.mark.parametrize("rule", rule_names())
def test_every_text_has_every_section(rule: str) -> None:
    page = rule_page(rule)
    assert page.title
    for heading, text in page.parts:
        assert len(text) > 20, heading


def test_a_page_is_read_once() -> None:
    assert rule_page("item-sync") is rule_page("item-sync")


def test_a_text_becomes_its_fields() -> None:
    fields = parse_rule_text(WHOLE)
    assert fields == {"title": "A title", **dict.fromkeys(SECTIONS, "A text.")}


@pytest.mark.parametrize(
    "broken",
    [
        WHOLE.replace("## The fix", "## A fix"),
        WHOLE.replace("## Why it costs\n\nA text.\n\n", ""),
        WHOLE.removeprefix("# A title"),
    ],
    ids=["another heading", "a section is missing", "no title"],
)
def test_a_text_without_its_sections_is_refused(broken: str) -> None:
    with pytest.raises(ValueError, match=r"A title|begin with"):
        parse_rule_text(broken)
