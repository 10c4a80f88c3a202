"""Results in a notebook: a page in a frame that reaches nothing."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ridgeline
from ridgeline.comparison.api import Comparison, Timing
from ridgeline.optimization.function import Result
from ridgeline.records.latency import Latency, Summary
from ridgeline.report.document import Column, Document, Section, Span, Table, row
from ridgeline.report.notebook import (
    MAX_FRAME_PX,
    MIN_FRAME_PX,
    ShownAsPage,
    frame,
    frame_height,
    shown_in_notebook,
)
from tests.unit.report import made_up_run
from tests.unit.report.made_up_comparison import comparison
from tests.unit.report.made_up_optimized import climbed
from tests.unit.report.made_up_trace import NASTY
from tests.unit.trace.traces_made import Made


class Frames(HTMLParser):
    """The attributes of each tag, as a browser reads them, and the text between tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def framed(shown: str) -> tuple[dict[str, str | None], str]:
    """Return the attributes of the only tag, and its page."""
    found = Frames(shown)
    ((tag, attributes),) = found.tags
    assert tag == "iframe"
    page = attributes["srcdoc"]
    assert page is not None
    return attributes, page


def timing() -> Timing:
    samples = tuple(1e6 + 1e3 * i for i in range(40))
    summary = Summary(
        count=40, median_ns=1.02e6, ci_low_ns=1.01e6, ci_high_ns=1.03e6, mean_ns=1.02e6,
        std_ns=1e4, min_ns=1e6, max_ns=1.039e6, iqr_ns=2e4, p95_ns=1.037e6,
    )  # fmt: skip
    return Timing(
        "step",
        Latency(
            summary=summary, samples_ns=samples, block_calls=4, warmup_ns=(), steady=True,
            clock="wall", wall_median_ns=1.02e6, warnings=("the host is busy",),
        ),
    )  # fmt: skip


def trace_reading(folder: Path) -> Any:
    trace = Made().op("aten::mm", 0, 60).launch("gemm", 5, 10, 80, 1)
    return ridgeline.read_trace(trace.write(folder), cache=False)


def block() -> Any:
    run = ridgeline.profile("block")
    run.summary = made_up_run.summary()
    return run


def results(folder: Path) -> list[ShownAsPage]:
    return [timing(), Comparison(comparison()), Result(climbed()), trace_reading(folder), block()]


def test_each_result_is_one_line_at_a_prompt_a_report_printed_and_a_page_in_a_notebook(
    tmp_path: Path,
) -> None:
    for result in results(tmp_path):
        attributes, page = framed(result._repr_html_())
        assert attributes["sandbox"] == "allow-scripts"
        assert page.startswith("<!doctype html>")
        assert "<h1" in page
        assert len(str(result)) > len(repr(result)) or isinstance(result, Timing)
        assert "\n" not in repr(result) or isinstance(result, Timing)
        assert result._repr_markdown_().startswith("### ")


def test_what_is_printed_is_plain_text_in_a_kernel_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels set FORCE_COLOR, and rich shows its text below the cell where it finds a kernel."""
    plain = [str(result) for result in results(tmp_path)]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert [str(result) for result in results(tmp_path)] == plain
    assert not any("\x1b" in text for text in plain)


def test_the_formatter_of_a_notebook_finds_page_note_and_line(tmp_path: Path) -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    for result in results(tmp_path):
        bundle, _ = formatters.DisplayFormatter().format(result)
        assert set(bundle) == {"text/plain", "text/html", "text/markdown"}
        assert bundle["text/plain"] == repr(result)


@pytest.mark.parametrize("nasty", [*NASTY, '"></iframe><script>alert(1)</script>', "&quot;&amp;"])
def test_no_name_gets_out_of_the_frame(nasty: str) -> None:
    attributes, page = framed(frame(nasty, nasty, 300))
    assert page == nasty.replace("\r", "\n") or page == nasty
    assert set(attributes) == {"sandbox", "title", "style", "srcdoc"}
    assert attributes["sandbox"] == "allow-scripts"


def test_where_frames_are_removed_the_answer_is_left() -> None:
    assert Frames(frame("<p>page</p>", "3 × as fast <b>", 300)).text == "3 × as fast <b>"


def test_a_frame_is_as_high_as_its_page_within_bounds() -> None:
    def made(rows: int, **fields: bool) -> Document:
        table = Table(columns=(Column("a"),), rows=tuple(row("1") for _ in range(rows)))
        section = Section(title="part", blocks=(table,), **fields)
        return Document(answer=(Span("yes"),), blocks=(section,))

    heights = [frame_height(made(rows)) for rows in (0, 5, 10, 5_000)]
    assert heights == sorted(set(heights))  # each is higher than the one before
    assert heights[-1] == MAX_FRAME_PX
    assert frame_height(Document(answer=(Span("yes"),))) == MIN_FRAME_PX
    assert frame_height(made(5_000, folded=True)) <= heights[0]


def test_a_block_that_has_not_ended_says_so() -> None:
    run = ridgeline.profile("mine")
    assert "mine has not ended" in repr(run)
    framed(run._repr_html_())


def test_findings_of_a_trace_are_looked_for_once_and_only_to_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.diagnosis import trace_findings

    looked = []
    original = trace_findings.diagnose_trace

    def counted(*given: Any) -> Any:
        looked.append(given)
        return original(*given)

    monkeypatch.setattr(trace_findings, "diagnose_trace", counted)
    reading = trace_reading(tmp_path)
    assert (reading.verdict, repr(reading), looked) == (reading.verdict, repr(reading), [])
    reading._repr_html_()
    str(reading)
    assert len(looked) == 1
    assert reading.findings.problems == ()


class Notebook:
    """What IPython is in a kernel, as far as it is asked."""

    def __init__(self, kernel: object) -> None:
        self.shown: list[object] = []
        self.display = SimpleNamespace(display=self.shown.append)
        self._shell = SimpleNamespace(kernel=kernel)

    def get_ipython(self) -> object:
        return self._shell


def test_only_a_kernel_shows_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not shown_in_notebook(timing())
    for kernel, expected in ((None, 0), (object(), 1)):
        notebook = Notebook(kernel)
        monkeypatch.setitem(sys.modules, "IPython", notebook)
        assert shown_in_notebook(timing()) == bool(expected)
        assert len(notebook.shown) == expected


def test_a_notebook_shows_a_block_once_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from ridgeline.integrations import block as module
    from ridgeline.records.run_directory import RunDirectory

    monkeypatch.setattr(module, "finish_run", lambda *given, **fields: made_up_run.summary())
    for kernel in (None, object()):
        notebook = Notebook(kernel)
        monkeypatch.setitem(sys.modules, "IPython", notebook)
        run = ridgeline.profile("block")
        run._conclude(RunDirectory(tmp_path))
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("input-bound" in printed.err) == (kernel is None)
        assert notebook.shown == ([] if kernel is None else [run])
