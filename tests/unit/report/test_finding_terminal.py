"""Findings in a trace's block, at any width."""

import io
import unicodedata

import pytest
from rich.console import Console

from ridgeline.records.finding import Findings
from ridgeline.report import trace_terminal
from tests.unit.report import made_up_findings as found
from tests.unit.report import made_up_trace
from tests.unit.report.made_up_trace import NASTY

WIDTHS = [60, 80, 100, 120, 140, 200]


def of_trace(findings: Findings, width: int = 140) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    trace_terminal.show(made_up_trace.study(), console, findings)
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_says_all_and_no_line_is_too_long(width: int) -> None:
    text = of_trace(found.findings(), width)
    for said in ("data.py:41", "up to 2.5 ×", "same time as 1", "and 1 more below 3 %",
                 "Is the device busy?", "it waits for data 61 %"):  # fmt: skip
        assert said in flat(text)
    for line in text.splitlines():
        assert len(line) <= width or "ridgeline trace" in line or "ridgeline run" in line
        assert line == line.rstrip()


def test_the_next_command_explains_the_first() -> None:
    assert "ridgeline explain loader-starves" in of_trace(found.findings())


def test_where_nothing_is_large_one_sentence_says_so() -> None:
    text = flat(of_trace(found.nothing()))
    assert "nothing above 3 % (1 below it); you are at 71 % of the bfloat16 peak" in text
    assert "1 rule could not look: the trace has no recorded shapes" in text


@pytest.mark.parametrize("nasty", NASTY)
def test_words_from_outside_cannot_move_the_cursor_or_become_markup(nasty: str) -> None:
    text = of_trace(found.nasty(nasty))
    unseen = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unseen <= {"\n"}
    if "[bold]" in nasty:
        assert "[bold]not bold[/bold]" in text
