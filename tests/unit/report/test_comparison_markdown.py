"""A comment on a pull request: the verdict first, no cell that breaks out of its table."""

import re

import pytest
from msgspec.structs import replace

from ridgeline.records.comparison import Comparison, PairFolder
from ridgeline.report.renderers import markdown as renderer
from ridgeline.report.renderers.markdown import escaped
from ridgeline.report.views import comparison as view
from ridgeline.report.views import pair_folder
from tests.unit.report.made_up_comparison import (
    candidate,
    comparison,
    folder,
    saving_memory,
    undecided,
    weak,
    with_names,
)


def markdown(c: Comparison) -> str:
    return renderer.render(view.document(c))


def folder_markdown(folder: PairFolder) -> str:
    return renderer.render(pair_folder.document(folder))


def test_the_verdict_is_the_heading() -> None:
    assert markdown(comparison()).startswith("### FASTER 1.31 × [1.27, 1.35]\n")
    assert markdown(saving_memory()).startswith("### LESS MEMORY 3.2 × (1.17 GiB → 370 MiB), costs")


def test_undecided_says_why_before_the_table() -> None:
    text = markdown(undecided())
    assert text.index("the interval reaches from") < text.index("| baseline |")


def test_the_table_is_rectangular_with_numbers_to_the_right() -> None:
    table = [line for line in markdown(comparison()).splitlines() if line.startswith("|")]
    assert table[0] == "|  | time a call | × baseline | results |"
    assert table[1] == "| --- | ---: | ---: | --- |"
    assert {line.count("|") for line in table} == {5}
    assert table[-1] == "| fast.py:step | 9.4 ms | 1.31 [1.27, 1.35] | equal |"


def test_warnings_are_seen_and_the_rest_is_folded() -> None:
    text = markdown(comparison(candidate(results=weak("the input never changes"))))
    fold = text.index("<details>")
    assert text.index("weak check: the input never changes") < fold
    assert text.index("60 rounds of 240") > fold
    assert text.index("roofline floor**: not looked for") > fold


def test_markdown_inside_details_stands_after_an_empty_line() -> None:
    assert "</summary>\n\n- " in markdown(comparison())


@pytest.mark.parametrize("name", ["a|b", "<script>", "</td></details>", "`x`|[y](javascript:z)"])
def test_markdown_in_a_name_is_escaped(name: str) -> None:
    text = markdown(with_names(name))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert set(re.findall(r"<[^>]*>", text)) == {
        "<details>", "<summary>", "</summary>", "</details>"
    }  # fmt: skip
    assert "](" not in text.replace("\\](", "")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("my_step.py", "my_step.py"),
        ("__init__.py", r"\_\_init\_\_.py"),
        ("a*b", r"a\*b"),
        ("[1.27, 1.35]", "[1.27, 1.35]"),
        ("two\nlines", "two lines"),
        ("a & b < c", "a &amp; b &lt; c"),
    ],
)
def test_a_cell_shows_what_was_written(text: str, written: str) -> None:
    assert escaped(text) == written


def test_a_folder_is_one_table_and_a_fold_for_each_measured_pair() -> None:
    text = folder_markdown(folder())
    assert text.startswith("### 7 pairs in examples/pairs: 2 FASTER,")
    assert "| precision | SKIP |" in text
    assert "fp8 needs a GPU of Hopper or later; run it on one |" in text
    assert "<details><summary>attention: Attention written out</summary>" in text
    assert text.count("<details>") == text.count("</details>") == 5 * 3
    assert "\nFASTER 1.31 ×" in text


def test_a_comparison_without_samples_is_rendered() -> None:
    c = replace(comparison(candidate(of_variant={"samples_ns": ()})), notes=("odd",))
    assert "- **note**: odd" in markdown(c)
