"""The Markdown, the drawing and the page of an outcome: whole, alone, and unimpressed by names."""

import itertools
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio
from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized
from ridgeline.report.document import WaterfallLevel
from ridgeline.report.renderers import charts
from ridgeline.report.renderers import markdown as markdown_renderer
from ridgeline.report.views import optimized_pictures as view
from ridgeline.report.views.optimized import data, document
from tests.unit.report.made_up_optimized import (
    ALL,
    climbed,
    hostile,
    less_memory,
    many,
    nothing_kept,
    rung,
    total,
    unconfirmed,
    with_batch,
)
from tests.unit.report.rendered import FETCHED, bare_page

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "input"}


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(found: Optimized) -> str:
    return bare_page(document(found))


def markdown(found: Optimized, picture: str = "") -> str:
    return markdown_renderer.render(document(found), picture=picture)


def waterfall(found: Optimized, headed: bool = True) -> str:
    return charts.waterfall(view.waterfall(Ladder(found)), headed=headed)


def levels(found: Optimized) -> tuple[WaterfallLevel, ...]:
    return view.levels(Ladder(found))


def texts(drawn: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ALL)
def test_a_page_is_whole_fetches_nothing_and_runs_nothing(name: str) -> None:
    made = page(ALL[name]())
    parser = Balance()
    parser.feed(made)
    parser.close()
    assert parser.open == []
    assert {"main", "table", "svg", "title"} <= set(parser.seen)
    assert "script" not in parser.seen
    assert not FETCHED.search(made)
    assert "Content-Security-Policy" in made


def test_the_page_has_the_answer_the_patch_the_proof_and_what_was_not_tried() -> None:
    made = page(climbed())
    assert '<h1><span class="good">6.73 × [6.61, 6.85] as fast' in made
    assert '<span class="plus">+loader = DataLoader(data, batch_size=32, num_workers=8)' in made
    assert '<span class="place">--- train.py' in made
    assert "largest difference 2e-07 at step 3, allowed 1e-05" in made
    assert "<summary>Every fix, tried or not (24)</summary>" in made
    assert '<h1><span class="unsure">' in page(unconfirmed())


@pytest.mark.parametrize("name", ALL)
def test_a_drawing_is_xml_that_stands_alone_with_words_for_those_who_cannot_see(name: str) -> None:
    drawn = waterfall(ALL[name]())
    root = ElementTree.fromstring(drawn)
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert "prefers-color-scheme: dark" in drawn
    assert "nan" not in drawn
    assert root.find(f".//{SVG}script") is None


def test_the_waterfall_steps_down_from_the_baseline_to_what_was_confirmed() -> None:
    found = levels(climbed())
    assert [level.kind for level in found] == ["base", "gain", "gone", "gain", "gain", "end"]
    assert [round(level.value, 1) for level in found] == [152.0, 61.3, 52.8, 48.0, 22.4, 22.6]
    assert all(a.value == b.before for a, b in itertools.pairwise(found[:-1]))
    one = found[1]
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.value < one.high
    assert one.high == pytest.approx(152.0 / (2.48 * 0.985))
    assert levels(unconfirmed())[-1].kind == "gain"


def test_each_rung_is_labelled_with_its_ratio() -> None:
    said = texts(waterfall(climbed()))
    for words in ("2.48 × [2.44, 2.52]", "6.73 × [6.61, 6.85]", "3.10 × [3.05, 3.15]",
                  "torch.compile + CUDA graphs"):  # fmt: skip
        assert words in said
    assert any("not the same training" in words for words in texts(waterfall(with_batch())))
    assert "Step time, rung by rung" in said
    assert "Peak memory, rung by rung" in texts(waterfall(less_memory()))


def test_names_stay_left_of_the_bars_and_never_overlap() -> None:
    found = many()
    wide = replace(found.rungs[0], title="WWWW MMMM @@@@ " * 12)
    root = ElementTree.fromstring(waterfall(replace(found, rungs=(wide, *found.rungs[1:]))))
    names = [
        (float(node.get("y", "0")), node.text or "")
        for node in root.iter(f"{SVG}text")
        if node.get("x") == "16.0" and node.get("class") in (None, "bold")
    ]
    heights = sorted(y for y, _ in names)
    assert len(names) > 24
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 13
    assert max(len(words) for _, words in names) <= 39
    assert all(len(words) <= 27 for _, words in names if "WWWW" in words)


def test_a_goal_without_absolute_figures_is_drawn_by_ratios() -> None:
    found = levels(replace(climbed(), measured="energy a sample"))
    assert found[0].value == 1.0
    assert found[1].value == pytest.approx(1 / 2.48)
    assert found[1].note == "2.48 × baseline"
    assert found[-1].value == pytest.approx(1 / 6.73)


def test_rejected_fixes_are_drawn_and_an_empty_result_is_not() -> None:
    said = texts(waterfall(nothing_kept()))
    assert "What was tried, against the program before it: nothing was kept" in said
    assert "0.93 × [0.91, 0.95]" in said
    assert "Nothing was measured." in texts(waterfall(Optimized(command="a.py")))
    assert waterfall(Optimized(command="a.py"), headed=False) == ""
    assert "<svg" not in page(Optimized(command="a.py"))


def test_a_drawing_survives_figures_that_are_not_numbers() -> None:
    wild = Ratio(value=math.nan, ci_low=0.0, ci_high=math.inf, pairs=1)
    endless = Ratio(value=1.3, ci_low=1e-22, ci_high=5e21, pairs=1)
    rungs = (
        rung("a", "A", "kept", ratio=wild, step_ms=math.inf, without=wild),
        rung("b", "B", "kept", ratio=endless, step_ms=90.0, before_ms=100.0, without=endless),
    )
    found = replace(climbed(), rungs=rungs, total=replace(total(), ratio=wild, after_ms=math.nan))
    drawn = waterfall(found)
    assert ElementTree.fromstring(drawn) is not None
    assert not re.search(r'"-?(nan|inf)', drawn)
    assert markdown(found)
    assert page(found)


def test_a_fence_cannot_be_closed_from_inside() -> None:
    made = markdown(climbed())
    block = made[made.index("````diff") :]
    assert block[: block.index("\n````\n")].endswith('``` = "a fence of the user\'s own"')
    assert "\n``` = " not in made.replace(block, "")


def test_the_markdown_has_every_fix_with_its_reason() -> None:
    found = climbed()
    made = markdown(found)
    assert made.startswith("### 6.73 × [6.61, 6.85] as fast: 152 ms → 22.6 ms a step\n")
    _, _, every = made.partition("<summary>Every fix")
    for one in found.rungs:
        assert f"| {one.title}" in every
    assert "| at most 1.01 × to gain |" in every
    assert "| confirmed in fresh processes | 22.6 | 6.73 × | 6.73 × [6.61, 6.85] |" in made
    for section in ("## Leave-one-out", "## The patch", "## Results",
                    "<summary>How it was measured"):  # fmt: skip
        assert section in made
    assert "![" not in made
    assert "](a%20ladder.svg)" in markdown(found, "a ladder.svg")
    assert "## Not the same training" in markdown(with_batch())
    assert "## Not the same" not in made


def test_without_a_gain_every_format_has_the_diagnosis() -> None:
    found = replace(nothing_kept(), diagnosis="input-bound: 71 % of a step waits <for> a batch")
    made = markdown(found)
    assert made.index("**diagnosis**: input-bound: 71 % of a step") < made.index("× rung before")
    html = page(found)
    said = "diagnosis</dt><dd>input-bound: 71 % of a step waits &lt;for"
    assert html.index(said) < html.index("× rung before")
    assert data(found)["diagnosis"] == found.diagnosis
    assert "diagnosis</dt>" not in page(nothing_kept())
    assert "**diagnosis**" not in markdown(replace(climbed(), diagnosis="compute-bound"))


def test_with_a_gain_every_format_says_what_limits_the_program_now() -> None:
    found = replace(climbed(), diagnosis="input-bound: a", afterwards="compute-bound: <b>")
    made, html = markdown(found), page(found)
    assert "**was**: input-bound: a\n- **is now**: compute-bound: " in made
    assert "was</dt><dd>input-bound: a</dd>" in html
    assert "is now</dt><dd>compute-bound: &lt;b&gt;</dd>" in html
    assert data(found)["afterwards"] == "compute-bound: <b>"


def test_no_page_has_a_leave_one_out_section_without_measurements() -> None:
    alone = tuple(replace(one, without=None) for one in climbed().rungs)
    found = replace(climbed(), rungs=alone)
    for made in (markdown, page):
        assert "all but this one" in made(climbed())
        assert "all but this one" not in made(found)
        assert "eave-one-out" not in made(found)


def test_markdown_in_user_text_is_escaped() -> None:
    made = markdown(hostile())
    assert "\x1b" not in made
    assert "\u202e" not in made
    outside = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", made)
    outside = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)  # inside backticks nothing is markup
    assert "<script>" not in outside
    assert "\n# head" not in outside
    tables = [line for line in outside.splitlines() if line.startswith("| ")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in tables if "a \\`\\`\\` b" in line}
    assert cells <= {3, 7, 10}  # of the tables of two, six and nine columns


def test_tabs_of_a_patch_stay_and_its_carriage_returns_go() -> None:
    written = climbed().written
    assert written is not None
    diff = "+\tif a:\r\n+\t\tb()\r\n"
    found = replace(climbed(), written=replace(written, diff=diff))
    assert "+\tif a:\n+\t\tb()\n" in markdown(found)
    assert "\\t" not in page(found)
    assert "\\r" not in page(found)


def test_a_long_answer_is_folded_and_its_figures_are_not_cut() -> None:
    long = replace(total(), ratio=Ratio(value=1.33, ci_low=0.97, ci_high=1.81, pairs=2))
    found = replace(climbed(), total=replace(long, confirmed=False))
    first, second, *_ = texts(waterfall(found))
    assert first.startswith("Not confirmed, and it may be no gain at all")
    assert second.endswith("a step")
