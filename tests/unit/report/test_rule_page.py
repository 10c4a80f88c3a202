"""A rule's page, in docs and at the terminal."""

import io

import pytest
from rich.console import Console

from ridgeline.report.rule_page import (
    document,
    index_markdown,
    page_markdown,
    show_index,
    show_page,
)
from tests.unit.report import made_up_findings as made


def test_a_page_has_every_part_in_its_order() -> None:
    text = page_markdown(made.pages()[0])
    assert text.startswith("# The loader cannot feed the device\n\n`loader-starves` · input")
    parts = [line for line in text.splitlines() if line.startswith("## ")]
    assert parts == [
        "## What it looks at", "## When it reports", "## Why it costs", "## The fix",
        "## When it may be wrong",
    ]  # fmt: skip
    assert "```python\nloader = DataLoader(data,\n    num_workers=8)\n```" in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_the_index_has_a_table_for_each_family() -> None:
    text = index_markdown(made.pages())
    assert "2 rules" in text
    assert "| [loader-starves](loader-starves.md) | The loader cannot feed the device |" in text
    assert "| The host waits \\| for a number |" in text
    assert text.index("The device waits for data") < text.index("The host waits for the device")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_terminal_wraps_prose_and_leaves_code_as_it_is(width: int) -> None:
    out = io.StringIO()
    show_page(made.pages()[0], Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "     loader = DataLoader(data," in lines
    assert "         num_workers=8)" in lines
    assert "   - as many as there are cores" in lines
    assert not any("```" in line or line != line.rstrip() for line in lines)


def test_the_index_at_the_terminal_has_a_line_a_rule() -> None:
    out = io.StringIO()
    show_index(made.pages(), Console(file=out, width=100))
    assert "   loader-starves  The loader cannot feed the device" in out.getvalue()


def test_the_document_has_the_fields() -> None:
    found = document(made.pages())
    assert found["schema"] == "ridgeline.rules/1"
    assert found["rules"][0]["why"].startswith("The device idles")
