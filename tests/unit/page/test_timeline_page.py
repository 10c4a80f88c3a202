"""The timeline in a real browser: from a finding to its events and from an event to its line,
without a request."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page

from ridgeline.cli.output import formatted
from ridgeline.diagnosis.run_page import source_lines
from ridgeline.records.facts import Place
from ridgeline.records.finding import Finding, Findings, LineChange
from ridgeline.records.timeline import TracePage
from ridgeline.report.views.trace import trace_report
from ridgeline.trace.study import study
from ridgeline.trace.timeline import timeline
from tests.unit.page.conftest import Open
from tests.unit.report.made_up_trace import NASTY
from tests.unit.trace.traces_made import Made

pytestmark = pytest.mark.slow

SOURCE = """import torch

class Pictures:
    def __init__(self):
        self.kept = []

    def __getitem__(self, i):
        return decode(i)

def main():
    for batch in loader:
        model(batch)
"""
LINES = {"getitem": 7, "decode": 8, "main": 10}


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The page of a trace of two steps that wait for `Pictures.__getitem__`."""
    (tmp_path / "train.py").write_text(SOURCE)
    made = Made()
    for step in (0, 1):
        at = 10_000 * step + 100
        made.span(f"ProfilerStep#{step}", at, 9_800)
        made.frame(f"train.py({LINES['main']}): main", at, 9_800)
        made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, 7_000)
        made.frame(f"train.py({LINES['getitem']}): __getitem__", at + 20, 6_900)
        made.op("aten::mm", at + 7_100, 90, **{"Input Dims": [[32, 8], [8, 4]]})
        made.launch("sgemm <b>&", at + 7_110, at + 7_200, 1_500, step + 1)
    path = made.write(tmp_path)
    found, traces = study([path], cache=False)
    finding = Finding(
        rule="loader-starves", family="input", claim="The GPU waits for __getitem__()",
        share_pct=70.0, gain_bound=3.3, confidence="high", file="train.py", line=LINES["decode"],
        function="Pictures.__getitem__", change="loader = Loader(workers=4)",
        edits=(LineChange(file="train.py", line=11, before=("a",), after=("b",)),),
    )  # fmt: skip
    places = [Place("train.py", line) for line in LINES.values()]
    page = TracePage(
        timeline=timeline(traces, found), source=tuple(source_lines([tmp_path], places))
    )
    report = trace_report(found, Findings(findings=(finding,)), page=lambda: page)
    return formatted(report, ".html")


def selected(page: Page) -> dict[str, str]:
    """Return what the panel says of the selected event."""
    panel = page.locator(".event")
    names = panel.locator("dt").all_inner_texts()
    values = panel.locator("dd").all_inner_texts()
    title = panel.locator("h4")
    name = title.inner_text() if title.count() else ""
    return {"name": name, **dict(zip(names, values, strict=True))}


def pixels(page: Page) -> str:
    return str(page.locator(".lanes canvas").evaluate("canvas => canvas.toDataURL()"))


def after_frame(page: Page) -> None:
    page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")


def wait_until(page: Page, expression: str) -> None:
    """Wait for an expression to be true. The page's policy does not let Playwright wait itself."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"never true: {expression}")


def test_two_clicks_lead_from_a_finding_to_its_events_and_to_its_line(
    text: str, opened: Open
) -> None:
    page = opened(text)
    page.page.locator("button[data-way=timeline]").click()
    event = selected(page.page)
    assert event["name"] == "__getitem__()"
    assert event["kind"].startswith("input")
    page.page.locator(".event button.place").click()
    pointed = page.page.locator(".source .pointed .number")
    assert pointed.inner_text() == str(LINES["getitem"])
    page.page.locator("button[data-way=source]").click()
    assert page.page.locator(".source .pointed .number").inner_text() == str(LINES["decode"])
    assert page.page.locator(".source .pointed .mark").count() == 1
    assert page.complaints == []
    assert [url.partition(":")[0] for url in page.requests] == ["file"]


def test_a_finding_also_marks_the_phases_and_gaps_that_its_events_cost(
    text: str, opened: Open
) -> None:
    page = opened(text).page
    page.locator("button[data-way=timeline]").click()
    marked = int(page.locator(".timeline .count").inner_text().split(":")[0].split()[-1])
    drawn = json.loads(page.locator("figure[data-view=Timeline] script").inner_text())
    (kind,) = [i for i, one in enumerate(drawn["all_kinds"]) if one["name"] == "input"]
    here = drawn["all_places"].index(f"train.py:{LINES['getitem']}")
    phases = [lane for lane in drawn["lanes"] if lane["kind"] == "phases"]
    expected = sum(
        drawn["kinds"][work] == kind and drawn["places"][work] in (here, -1)
        for lane in drawn["lanes"] for work in lane["works"]
    )  # fmt: skip
    assert any(drawn["kinds"][work] == kind for lane in phases for work in lane["works"])
    assert marked == expected


def test_the_line_of_a_finding_leads_back_to_its_events(text: str, opened: Open) -> None:
    page = opened(text).page
    page.locator(".source .mark button").click()
    assert selected(page)["place"].startswith(f"train.py:{LINES['getitem']}")


def test_the_fix_is_shown_before_and_after(text: str, opened: Open) -> None:
    page = opened(text).page
    assert page.locator("pre.diff .minus").inner_text() == "- a"
    assert page.locator("pre.diff .plus").inner_text() == "+ b"


def test_search_counts_what_it_finds_and_goes_from_one_to_the_next(text: str, opened: Open) -> None:
    page = opened(text).page
    page.locator(".timeline input").fill("sgemm")
    drawn = json.loads(page.locator("figure[data-view=Timeline] script").inner_text())
    works = [i for i, name in enumerate(drawn["names"]) if "sgemm" in drawn["texts"][name]]
    (device,) = [lane for lane in drawn["lanes"] if lane["kind"] == "device"]
    kernels = sum(work in works for work in device["works"])
    assert kernels == 2
    # idle gaps before and after these kernels name them too
    assert int(page.locator(".timeline .count").inner_text().split()[0]) >= kernels
    page.locator(".timeline input").press("Enter")
    first = selected(page)
    page.locator(".timeline input").press("Enter")
    assert selected(page) != first
    page.locator(".timeline input").fill("nothing has this name")
    assert page.locator(".timeline .count").inner_text() == "no event"


def test_everything_can_be_done_with_keys(text: str, opened: Open) -> None:
    page = opened(text).page
    canvas = page.locator(".lanes canvas")
    canvas.focus()
    pictures = [pixels(page)]
    for key in ("w", "d", "a", "s", "ArrowRight", "f", "0"):
        page.keyboard.press(key)
        after_frame(page)
        pictures.append(pixels(page))
    whole, closer, right, back, out = pictures[:5]
    assert len({whole, closer, right}) == 3
    assert back == closer
    assert out == whole
    assert selected(page)["name"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"


def test_the_wheel_zooms_only_a_timeline_that_was_clicked(text: str, opened: Open) -> None:
    page = opened(text, viewport={"width": 1000, "height": 700}).page
    canvas = page.locator(".lanes canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover()
    before = pixels(page)
    at = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    wait_until(page, f"scrollY !== {at}")
    assert pixels(page) == before
    canvas.click(position={"x": 500, "y": 8})
    after_frame(page)
    before = pixels(page)
    at = page.evaluate("scrollY")
    page.mouse.wheel(0, -200)
    after_frame(page)
    assert pixels(page) != before
    assert page.evaluate("scrollY") == at


def test_an_event_is_told_where_the_pointer_is(text: str, opened: Open) -> None:
    page = opened(text).page
    canvas = page.locator(".lanes canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    for y in range(30, int(box["height"]), 8):
        canvas.hover(position={"x": box["width"] * 0.4, "y": y})
        if "__getitem__" in page.locator(".tip").inner_text():
            break
    else:
        pytest.fail("no tip told the function under the pointer")
    assert f"train.py:{LINES['getitem']}" in page.locator(".tip").inner_text()


def test_a_kernel_leads_to_the_call_that_launched_it_and_back(text: str, opened: Open) -> None:
    page = opened(text).page
    page.locator(".timeline input").fill("sgemm matmul")
    page.locator(".timeline input").press("Enter")
    kernel = selected(page)
    assert kernel["name"] == "sgemm <b>&"
    page.locator(".event dd", has_text="before, by").locator("button").click()
    assert selected(page)["name"] == "cudaLaunchKernel"
    page.locator(".event dd", has_text="later").locator("button").click()
    assert selected(page) == kernel


def test_perfetto_is_opened_by_a_click_alone(text: str, opened: Open) -> None:
    page = opened(text)
    page.page.evaluate("""() => {
        window.seen = [];
        window.open = (url) => {
            window.seen.push(url);
            return { postMessage: (what, origin) => window.seen.push([what, origin]) };
        };
    }""")
    after_frame(page.page)
    assert page.page.evaluate("seen") == []
    page.page.get_by_text("open in Perfetto").click()
    wait_until(page.page, "seen.length > 1")
    origin, asked, *_ = page.page.evaluate("seen")
    assert origin == "https://ui.perfetto.dev"
    assert asked == ["PING", origin]
    assert [url.partition(":")[0] for url in page.requests] == ["file"]


def test_hostile_names_of_events_stay_text(opened: Open, tmp_path: Path) -> None:
    made = Made()
    for i, nasty in enumerate((*NASTY, "</script><img src=x onerror=alert(1)>", "<!--")):
        made.frame(f"{nasty}.py({i + 1}): {nasty}", 100 * i, 90).op(nasty, 100 * i + 5, 80)
        made.launch(nasty, 100 * i + 10, 100 * i + 30, 40, i + 1)
    found, traces = study([made.write(tmp_path)], cache=False)
    shown = TracePage(timeline=timeline(traces, found))
    page = opened(formatted(trace_report(found, page=lambda: shown), ".html"))
    page.page.locator(".lanes canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.page.keyboard.press(key)
        assert selected(page.page)["name"]
    assert page.complaints == []
    assert page.page.locator("img").count() == 0
    assert len(page.requests) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_timeline_fits_its_window(text: str, opened: Open, width: int, scheme: str) -> None:
    page = opened(text, color_scheme=scheme, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    canvas = page.locator(".lanes canvas")
    corner = canvas.evaluate("c => [...c.getContext('2d').getImageData(2, 2, 1, 1).data]")
    assert (sum(corner[:3]) < 3 * 128) == (scheme == "dark")


def test_a_finding_outside_all_functions_leads_to_the_code_of_its_file(
    opened: Open, tmp_path: Path
) -> None:
    """A frame of a file's top level is named by the line at which the profiler was started."""
    made = Made().frame("train.py(12): <module>", 100, 900).op("aten::mm", 200, 500)
    found, traces = study([made.write(tmp_path)], cache=False)
    late = Finding(
        rule="late-rank", family="communication", claim="Rank 1 is late", share_pct=40.0,
        gain_bound=2.0, confidence="high", file="train.py", line=4, function="<module>",
    )  # fmt: skip
    shown = TracePage(timeline=timeline(traces, found))
    report = trace_report(found, Findings(findings=(late,)), page=lambda: shown)
    page = opened(formatted(report, ".html")).page
    page.locator("button[data-way=timeline]").first.click()
    assert "train.py:12" in page.locator(".event").inner_text()
