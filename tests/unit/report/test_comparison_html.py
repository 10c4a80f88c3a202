"""The page: whole, alone, and unimpressed by names."""

from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from ridgeline.records.comparison import Comparison, PairFolder, Skipped
from ridgeline.report.renderers.html import asset
from ridgeline.report.views import comparison as view
from ridgeline.report.views import pair_folder
from tests.unit.report.made_up_comparison import (
    candidate,
    comparison,
    folder,
    saving_memory,
    undecided,
    with_names,
)
from tests.unit.report.rendered import FETCHED, bare_page


def html(c: Comparison) -> str:
    return bare_page(view.document(c))


def folder_html(folder: PairFolder) -> str:
    return bare_page(pair_folder.document(folder))


VOID = {"meta", "link", "br", "hr", "img", "input"}


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> set[str]:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser.seen


@pytest.mark.parametrize(
    "page",
    [html(comparison()), html(undecided()), html(saving_memory()), folder_html(folder())],
    ids=["faster", "undecided", "memory", "folder"],
)
def test_a_page_is_whole_and_fetches_nothing(page: str) -> None:
    assert tags(page) >= {"html", "head", "title", "main", "table", "svg"}
    assert not FETCHED.search(page)
    assert "prefers-color-scheme:dark" in asset("style.css")


def test_the_answer_is_the_title_and_the_heading() -> None:
    page = html(comparison())
    assert "<title>FASTER 1.31 × [1.27, 1.35]: fast.py:step against slow.py:step</title>" in page
    assert '<h1><span class="good">FASTER</span><span class="plain"> 1.31 × [1.27' in page


def test_all_three_plots_are_there_with_words_for_those_who_cannot_see_them() -> None:
    page = html(comparison())
    assert page.count('role="img"') == 3
    assert "times as fast as the baseline. A/A control 1.001 [0.993, 1.009];" in page
    assert "Samples over the rounds: half take at most" in page
    assert "Ratio of each round: fast.py:step" in page


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x>', "</style></svg>"])
def test_html_in_a_name_is_escaped(name: str) -> None:
    assert tags(html(with_names(name))) == tags(html(with_names("plain")))


def test_without_samples_the_page_has_its_table_and_its_intervals() -> None:
    page = html(comparison(candidate(of_variant={"samples_ns": ()}), baseline=candidate().variant))
    assert "Ratio of each round" not in page
    assert "times as fast as the baseline" in page


def test_guards_and_versions_are_listed_in_full() -> None:
    page = html(comparison())
    assert "<dd>not looked for: no ceiling is known</dd>" in page
    assert "torch 2.13.0" in page


def test_a_folder_has_a_row_for_each_pair_and_a_fold_for_each_measured() -> None:
    page = folder_html(folder())
    assert page.count("<details>") == 5 * 3  # each with its method and its evidence folded inside
    assert "fp8 needs a GPU of Hopper or later; run it on one" in page
    assert "Every pair on one axis" in page


def test_a_folder_in_which_nothing_ran_is_a_page_too() -> None:
    only = Skipped(name="precision", status="SKIP", reason="no GPU")
    page = folder_html(replace(folder(), pairs=(only,)))
    assert "no GPU" in page
    assert "svg" not in tags(page)
