"""Figures of a page in a real browser: the roofline and the tree answer to pointer and keys."""

import pytest

from ridgeline.records.trace import Roofline
from ridgeline.report.document import Block, Column, Document, Span, Table
from ridgeline.report.document import row as table_row
from ridgeline.report.drawings import Curve, CurvesPlot, IciclePlot, Measure
from ridgeline.report.renderers import html
from ridgeline.report.views.trace_work import roofline_plot
from tests.unit.page.conftest import Open
from tests.unit.report.test_run_work import CEILINGS, row

pytestmark = pytest.mark.slow


def page_of(*blocks: Block) -> str:
    return html.render(Document(answer=(Span("a page"),), blocks=blocks))


def roofline_page() -> str:
    rows = tuple(
        row(i, share=0.5 / (i + 1), flops_s=1e14 / (i + 1), intensity=10.0 + 5 * i)
        for i in range(40)
    )
    plot = roofline_plot(Roofline(rows=rows, modules=(row(900),), ceilings=CEILINGS))
    assert plot is not None
    table = Table(
        columns=(Column("operator", "name"), Column("inputs", "name")),
        rows=tuple(table_row(r.op, r.shape) for r in rows),
    )
    return page_of(plot, table)


def test_a_point_of_the_roofline_shows_its_row(opened: Open) -> None:
    page = opened(roofline_page())
    canvas = page.page.locator("figure[data-view=RooflinePlot] .stage > canvas")
    canvas.focus()
    for _ in range(31):
        canvas.press("ArrowRight")
    assert "aten::op30" in page.page.locator(".tip").inner_text()
    assert "50 % of its roof" in page.page.locator(".tip").inner_text()
    hidden = page.page.locator("tr", has_text="[30, 64]")
    assert not hidden.is_visible()
    canvas.press("Enter")
    assert hidden.is_visible()
    assert "shown" in (hidden.get_attribute("class") or "")
    assert page.complaints == []


def test_the_roofline_is_filtered_and_switched(opened: Open) -> None:
    page = opened(roofline_page())
    figure = page.page.locator("figure[data-view=RooflinePlot]")
    figure.locator("input[type=search]").fill("op7")
    canvas = figure.locator(".stage > canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    canvas.press("ArrowRight")  # the only one that is left comes round again
    assert "aten::op7" in page.page.locator(".tip").inner_text()
    figure.locator("input[type=search]").fill("")
    figure.get_by_role("button", name="modules (1)").click()
    canvas.focus()
    canvas.press("ArrowRight")
    assert "aten::op900" in page.page.locator(".tip").inner_text()


def tree_page() -> str:
    return page_of(IciclePlot(
        title="a tree",
        names=("root", "left", "right", "leaf of the right"),
        parents=(-1, 0, 0, 2),
        measures=(
            Measure(name="time", unit="ns", values=(1000.0, 300.0, 700.0, 650.0)),
            Measure(name="bytes", unit="bytes", values=(2048.0, 2048.0, 0.0, 0.0)),
        ),
        notes=("", "note <b>of</b> left", "", ""),
    ))  # fmt: skip


def test_a_tree_zooms_in_by_enter_and_out_by_escape(opened: Open) -> None:
    page = opened(tree_page())
    canvas = page.page.locator("figure[data-view=IciclePlot] canvas")
    trail = page.page.locator("figure[data-view=IciclePlot] .trail button")
    canvas.focus()
    canvas.press("ArrowDown")
    canvas.press("ArrowDown")  # the widest node below the root
    tip = page.page.locator(".tip")
    assert tip.inner_text().splitlines()[0] == "right"
    assert "700 ns, 70 % of all" in tip.inner_text()
    canvas.press("ArrowRight")
    assert "note <b>of</b> left" in tip.inner_text()
    canvas.press("ArrowLeft")
    canvas.press("Enter")
    assert trail.all_inner_texts() == ["all", "root", "right"]
    canvas.press("Escape")
    assert trail.all_inner_texts() == ["all", "root"]
    canvas.press("Escape")
    assert trail.count() == 0
    assert page.complaints == []


def test_a_tree_is_searched_and_measured_otherwise(opened: Open) -> None:
    page = opened(tree_page())
    figure = page.page.locator("figure[data-view=IciclePlot]")
    figure.locator("input[type=search]").fill("leaf")
    assert "65 %" in figure.locator(".trail").inner_text()
    figure.get_by_role("button", name="bytes").click()
    canvas = figure.locator("canvas")
    canvas.focus()
    canvas.press("ArrowDown")
    canvas.press("ArrowDown")
    assert page.page.locator(".tip").inner_text().splitlines()[0] == "left"


@pytest.mark.parametrize("width", [360, 1400])
def test_figures_fit_a_narrow_window(opened: Open, width: int) -> None:
    for text in (roofline_page(), tree_page()):
        page = opened(text, viewport={"width": width, "height": 700}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_folded_table_is_filtered_as_a_whole(opened: Open) -> None:
    page = opened(roofline_page()).page
    assert page.locator("tbody tr:visible").count() == 15
    page.locator("input[placeholder='filter rows']").fill("op39")
    assert page.locator("tbody tr:visible").count() == 1
    page.locator("input[placeholder='filter rows']").fill("")
    page.locator("label.all input").check()
    assert page.locator("tbody tr:visible").count() == 40


def comparison_page() -> str:
    from ridgeline.report.views.comparison import document
    from tests.unit.report.made_up_comparison import candidate, comparison, samples

    odd = "</script><b>up</b>"
    times = samples(7e6)
    return html.render(document(comparison(candidate(odd, of_variant={"samples_ns": times}))))


def test_samples_are_shown_in_four_ways(opened: Open) -> None:
    page = opened(comparison_page())
    figure = page.page.locator("figure[data-view=SamplesChart]")
    assert figure.locator("svg").is_visible()
    for name in ("over each other", "cumulative", "histogram"):
        figure.get_by_role("button", name=name).click()
        assert not figure.locator("svg").is_visible()
        figure.locator("canvas:visible").wait_for()  # a figure is drawn with the next frame
        assert figure.locator("canvas:visible").count() == 1
        assert "</script><b>up</b>" in figure.locator(".u-legend:visible").inner_text()
    figure.get_by_role("button", name="each variant on its own scale").click()
    assert figure.locator("svg").is_visible()
    assert figure.locator("canvas:visible").count() == 0
    assert page.complaints == []


def test_a_mark_of_a_static_picture_has_a_tip(opened: Open) -> None:
    page = opened(comparison_page()).page
    page.locator("svg circle[aria-label^='A/A control']").first.hover()
    assert page.locator(".tip").inner_text().startswith("A/A control: 1.00")


def test_curves_are_read_and_hidden_by_keys(opened: Open) -> None:
    page = opened(page_of(CurvesPlot(
        title="two curves", x=(1.0, 2.0, 3.0), x_name="step", unit="ms", stepped="around",
        stacked=True, curves=(
            Curve(name="forward", kind="forward", values=(1.0, 2.0, 4.0)),
            Curve(name="backward", kind="backward", values=(5.0, 6.0, 7.0)),
        ),
    )))  # fmt: skip
    stage = page.page.locator("figure[data-view=CurvesPlot] .stage")
    page.page.locator(".u-legend").wait_for()
    stage.focus()
    for _ in range(2):
        stage.press("ArrowRight")
    page.page.wait_for_timeout(100)
    assert page.page.locator(".u-legend .u-value").all_inner_texts() == ["2", "6 ms", "2 ms"]
    name = page.page.locator(".u-legend th", has_text="backward")
    name.focus()
    name.press("Enter")
    assert "u-off" in (page.page.locator(".u-legend tr.u-off").get_attribute("class") or "")
    assert page.complaints == []
