"""Pages of results in which every text tries to act on the browser, and what a browser makes of
them."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Page

from ridgeline.cli.output import formatted
from ridgeline.records.run import Capture, Environment, RunFile, Step, Target
from ridgeline.records.run_page import ModuleWork, PythonStacks, RunPage, StackNode
from ridgeline.records.timeline import SourceLines, TracePage
from ridgeline.records.trace import Roofline
from ridgeline.report.document import Document
from ridgeline.report.plain import printable
from ridgeline.report.renderers import html
from ridgeline.report.views import comparison, optimized
from ridgeline.report.views.run import run_report
from ridgeline.report.views.trace import trace_report
from tests.unit.hostile import MARKUP, filled, rotated
from tests.unit.report import (
    made_up_comparison,
    made_up_findings,
    made_up_optimized,
    made_up_run,
    made_up_trace,
    test_run_work,
)
from tests.unit.report.test_timeline_view import made_up as made_up_timeline

FORBIDDEN = "img, iframe, object, embed, form, link, base, video, audio, math, template, object"
"""Elements that no page of ours has."""


def run_page() -> RunPage:
    """Return the page of a run in which everything occurs."""
    summary = replace(
        made_up_run.summary(), python=made_up_run.python(), findings=made_up_findings.findings()
    )
    return RunPage(
        summary=summary,
        run=RunFile(
            name="train", target=Target(kind="script", name="train.py"), status="finished",
            environment=Environment(
                host="box", directory="here", variables={"A": "b"}, packages={"numpy": "2"}
            ),
        ),
        capture=Capture(),
        steps=tuple(Step(index=i, start_ns=i, dur_ns=10, loss=1.0) for i in range(3)),
        study=made_up_trace.study(),
        ranks=made_up_trace.several().ranks,
        roofline=Roofline(
            rows=tuple(test_run_work.row(i) for i in range(3)), modules=(test_run_work.row(9),),
            ceilings=test_run_work.CEILINGS,
        ),
        modules=(
            ModuleWork(name="net", parent=-1, ns=3.0, flops=1.0, bytes=1.0),
            ModuleWork(name="one", parent=0, ns=2.0, flops=1.0, bytes=1.0),
        ),
        stacks=PythonStacks(nodes=(
            StackNode(parent=-1, function="main", file="train.py", line=1, is_own=True, main=3),
        ), interval_s=0.01, main=3),
        timeline=made_up_timeline(events=40),
        source=(SourceLines(file="train.py", first=1, lines=("import torch", "x = 1")),),
        problems=("a problem",),
    )  # fmt: skip


def pages(by: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page, its texts rotated by so many."""
    texts = rotated(MARKUP, by)
    run = filled(run_page(), texts)
    yield "run", formatted(run_report(run.summary, lambda: run), ".html")
    study = filled(made_up_trace.several(), texts)
    shown = filled(TracePage(timeline=made_up_timeline(), source=run_page().source), texts)
    found = filled(made_up_findings.findings(), texts)
    yield "trace", formatted(trace_report(study, found, page=lambda: shown), ".html")
    yield "compare", rendered(comparison.document(filled(made_up_comparison.comparison(), texts)))
    yield "optimize", rendered(optimized.document(filled(made_up_optimized.climbed(), texts)))


def rendered(document: Document) -> str:
    return html.render(document)


def claims_of(by: int) -> list[str]:
    """Return the claims of the run's page, as a person is to read them."""
    texts = rotated(MARKUP, by)
    found = filled(run_page(), texts).summary.findings.findings
    return [printable(" ".join(one.claim.split()).rstrip(".")) for one in found]


def used(page: Page) -> None:
    """Unfold, hover and click what can be, so that scripts show their texts."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for canvas in page.locator("figure.plot canvas[tabindex]").all():
        canvas.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
            canvas.press(key)
    for way in page.locator("button[data-way]").all()[:4]:
        way.click()


def faults(page: Page) -> list[str]:
    """Return what a page has that no page of ours has."""
    found: list[str] = page.evaluate(
        """(forbidden) => [
            ...[...document.querySelectorAll(forbidden)].map((one) => one.outerHTML.slice(0, 90)),
            ...[...document.querySelectorAll("*")].flatMap((one) => [...one.attributes]
                .filter((a) => a.name.startsWith("on") || /^\\s*javascript:/i.test(a.value)
                    && a.name !== "title" && !a.name.startsWith("data-") && a.name !== "aria-label")
                .map((a) => `${one.tagName} ${a.name}=${a.value}`)),
            ...[...document.querySelectorAll("script:not([type])")].slice(1).map((s) => s.text),
        ]""",
        FORBIDDEN,
    )
    return found


def texts_of(page: Page, selector: str) -> list[str]:
    found: Any = page.locator(selector).evaluate_all("all => all.map((one) => one.textContent)")
    return list(found)
