"""Nothing a trace names can act on a terminal, a spreadsheet or a page."""

import csv
import io
import json
import re

import pytest

from ridgeline.cli.output import formatted
from ridgeline.report.plain import json_text, kernel_name, place_name, printable, shorten
from ridgeline.report.views.trace_comparison import trace_comparison_report
from tests.unit.report import made_up_trace as made
from tests.unit.report.rendered import FETCHED, at_terminal, bare, trace_as, trace_at_terminal

UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800]")


@pytest.mark.parametrize("text", made.NASTY)
def test_invisible_characters_are_spelled_out(text: str) -> None:
    assert UNSEEN.search(printable(text)) is None
    assert "\n" not in printable(text)


def test_visible_characters_are_unchanged() -> None:
    for text in ("aten::add_", "größe × 3", "日本語", "a b", ""):
        assert printable(text) == text


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", [40, 100, 250])
def test_no_control_byte_reaches_a_terminal(full: bool, width: int) -> None:
    text = trace_at_terminal(made.nasty(), width, full=full)
    assert UNSEEN.search(text) is None


def test_markup_in_a_name_is_shown_not_obeyed() -> None:
    assert "[bold]not bold[/bold]" in trace_at_terminal(made.nasty(), 100, full=True)


def test_a_json_document_has_no_unseen_characters() -> None:
    text = trace_as(".json", made.nasty())
    assert UNSEEN.search(text) is None
    assert json.loads(text)["missing"] == ["".join(made.NASTY).replace("\ud800", "?")]
    assert json_text('"\U000e0001"') == '"\\udb40\\udc01"'


def test_no_cell_of_a_csv_is_a_formula() -> None:
    cells = [
        cell for row in csv.reader(io.StringIO(trace_as(".csv", made.nasty()))) for cell in row
    ]
    risky = [c for c in cells if c[:1] in "=+-@\t\r" and not re.fullmatch(r"-?[\d.e+-]*", c)]
    assert risky == []
    assert any(cell.startswith("'=HYPERLINK") for cell in cells)
    assert UNSEEN.search("".join(cells)) is None


def test_markdown_has_no_tags_and_whole_tables() -> None:
    text = trace_as(".md", made.nasty())
    bare = text.replace("<details><summary>", "").replace("</summary>", "")
    outside_code = re.sub(r"`[^`\n]*`", "", bare.replace("</details>", ""))
    assert "<" not in outside_code
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1, block
    assert UNSEEN.search(text) is None


def test_a_page_runs_no_script_but_its_own_and_loads_nothing() -> None:
    text = trace_as(".html", made.nasty())
    assert "<script>" not in text
    assert not FETCHED.search(text)
    assert UNSEEN.search(text) is None


def test_a_comparison_is_printable_too() -> None:
    report = trace_comparison_report(made.comparison())
    assert UNSEEN.search(at_terminal(report.document(), 90)) is None
    assert UNSEEN.search(formatted(report, ".md")) is None
    assert UNSEEN.search(bare(formatted(report, ".html"))) is None


def test_a_long_name_is_cut_in_the_middle() -> None:
    assert shorten("ampere_sgemm_128x64_tn", 11) == "amper…64_tn"
    assert [len(shorten("x" * 40, n)) for n in range(5)] == [0, 1, 2, 3, 4]


def test_a_kernel_is_called_by_what_it_computes() -> None:
    assert kernel_name(made.KERNEL) == "vectorized_elementwise_kernel<4, CUDAFunctor_add, Array>"
    nested = "void at::native::elementwise_kernel<128, 4, at::native::impl<at::native::BinaryFunctor<float, at::native::MulFunctor<float> > > >(int)"  # noqa: E501
    assert kernel_name(nested) == "elementwise_kernel<128, 4, impl> MulFunctor"
    for plain in ("Memcpy HtoD (Pageable -> Device)", "enumerate(DataLoader)#next", "triton_poi_0"):
        assert kernel_name(plain) == plain


def test_a_template_without_end_is_still_a_name() -> None:
    assert kernel_name("void f::g<" + "<a, " * 50_000) == "f::g<"


def test_a_place_keeps_the_line_and_two_folders() -> None:
    assert place_name(made.LOADER) == "data/loader.py:41 decode"
    assert place_name(None) == ""
