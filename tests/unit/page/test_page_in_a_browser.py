"""The page of a run in a real browser: it opens from disk, draws, says the numbers of the record,
and asks nobody for anything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.output import formatted
from ridgeline.diagnosis.conclusion import conclude
from ridgeline.diagnosis.run_page import run_page
from ridgeline.records.run_directory import RunDirectory
from ridgeline.report.views.run import run_report
from tests.unit.page.conftest import Open
from tests.unit.report.made_up_trace import NASTY

PROGRAM = """
import torch
from torch.utils.data import DataLoader, Dataset
import time

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(16), i % 2

model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=8):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MAX_PAGE_BYTES = 2_000_000
MAX_FIRST_PAINT_MS = 1500.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of a program that waits for its data."""
    folder = tmp_path_factory.mktemp("a run")
    (folder / "train.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "ridgeline", "run", "--steps", "20", "train.py"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=120)
    (found,) = (folder / ".ridgeline" / "runs").iterdir()
    return RunDirectory(found)


@pytest.fixture(scope="module")
def text(run: RunDirectory) -> str:
    return run.page_file.read_text("utf-8")


def test_every_run_leaves_a_page_that_opens_from_disk(text: str, opened: Open) -> None:
    page = opened(text)
    assert page.complaints == []
    assert [url.partition(":")[0] for url in page.requests] == ["file"]
    assert len(text.encode()) < MAX_PAGE_BYTES
    for figure in page.page.locator("figure.plot").all():
        assert figure.locator("canvas, .source li").count() > 0, figure.get_attribute("data-view")


def test_the_numbers_are_those_of_the_record(text: str, run: RunDirectory, opened: Open) -> None:
    summary = json.loads(run.summary_file.read_text())
    page = opened(text).page
    shown = page.locator(".numbers > div", has_text="step").first.locator("b").inner_text()
    number, unit = shown.split()
    scale = {"µs": 1e-3, "ms": 1.0, "s": 1e3}[unit]
    assert float(number) * scale == pytest.approx(summary["step"]["median_ms"], rel=0.01)
    figure = page.locator("figure[data-view=CurvesPlot]").first
    drawn = json.loads(figure.locator("script").inner_text())
    steps = [json.loads(line) for line in (run.path / "steps.jsonl").read_text().splitlines()]
    known = {step["index"]: step["dur_ns"] / 1e6 for step in steps}
    sums = [sum(values) for values in zip(*(c["values"] for c in drawn["curves"]), strict=True)]
    assert sums == pytest.approx([known[int(index)] for index in drawn["x"]], rel=1e-6)


def test_the_first_paint_comes_soon(text: str, opened: Open) -> None:
    page = opened(text).page
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
    while (painted_ms := page.evaluate(script)) < 0:
        page.wait_for_timeout(20)
    assert painted_ms < MAX_FIRST_PAINT_MS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_fits_its_window_in_light_and_dark(
    text: str, opened: Open, scheme: str, width: int
) -> None:
    page = opened(text, color_scheme=scheme, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, paper.removeprefix("rgb(").rstrip(")").split(","))) < 3 * 128
    assert is_dark == (scheme == "dark")


def test_a_table_is_sorted_by_a_click(text: str, opened: Open) -> None:
    page = opened(text).page
    table = page.locator("table").filter(has=page.locator("td[data-n]")).first
    if not table.count():
        pytest.skip("this run has no table with numbers")
    column = table.locator("td[data-n]").first.evaluate("cell => cell.cellIndex")
    cells = f"td:nth-child({column + 1})[data-n]"

    def values() -> list[float]:
        return [
            float(n or 0) for n in table.locator(cells).evaluate_all("c => c.map(x => x.dataset.n)")
        ]

    table.locator("th button").nth(column).click()
    assert values() == sorted(values(), reverse=True)
    table.locator("th button").nth(column).click()
    assert values() == sorted(values())


@pytest.mark.parametrize("nasty", [*NASTY, "</script><img src=x onerror=alert(1)>"])
def test_a_hostile_name_stays_text(run: RunDirectory, opened: Open, nasty: str) -> None:
    import msgspec

    summary = conclude(run)
    findings = [msgspec.structs.replace(one, claim=nasty, function=nasty, file=nasty)
                for one in summary.findings.findings]  # fmt: skip
    hostile = msgspec.structs.replace(
        summary, name=nasty, command=nasty,
        findings=msgspec.structs.replace(summary.findings, findings=tuple(findings)),
    )  # fmt: skip
    report = run_report(hostile, lambda: run_page(run, hostile))
    page = opened(formatted(report, ".html"))
    assert page.complaints == []
    assert page.page.locator("img").count() == 0
    assert page.page.locator("script:not([type])").count() == 1
    assert len(page.requests) == 1


def test_the_page_survives_a_run_of_which_little_is_left(
    run: RunDirectory, opened: Open, tmp_path: Path
) -> None:
    for name in ("run.json", "capture-rank0.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    (tmp_path / "steps.jsonl").write_bytes(run.steps_file().read_bytes()[:1000])
    left = RunDirectory(tmp_path)
    summary = conclude(left)
    page = opened(formatted(run_report(summary, lambda: run_page(left, summary)), ".html"))
    assert page.complaints == []
    assert page.page.locator("h1").count() == 1
