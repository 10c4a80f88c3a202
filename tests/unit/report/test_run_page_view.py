"""The page of a run as a document: what its figures say, and which steps they leave out."""

from msgspec.structs import replace

from ridgeline.diagnosis.run_page import histogram
from ridgeline.records.run import (
    DeviceSample,
    Environment,
    ProcessSample,
    RunFile,
    Step,
    StepWindow,
    Target,
    Telemetry,
)
from ridgeline.records.run_page import RunPage
from ridgeline.report.document import Block, Document, KeyNumbers, Paragraph, Section
from ridgeline.report.drawings import CurvesPlot
from ridgeline.report.views.run_page import UNDIVIDED, document
from tests.unit.report import made_up_run

MS = 1_000_000


def step(index: int, window: StepWindow = "light", *, detailed: bool = True) -> Step:
    host = {"input": 6 * MS, "forward": 3 * MS} if detailed else {}
    return Step(
        index=index, start_ns=10 * MS * index, dur_ns=10 * MS, window=window, detailed=detailed,
        host=host, loss=2.3051 - 0.0001 * index,  # type: ignore[arg-type]
    )  # fmt: skip


def page(**fields: object) -> RunPage:
    run = RunFile(
        name="train", target=Target(kind="script", name="train.py"), status="finished",
        environment=Environment(cores=2),
    )  # fmt: skip
    known = {"summary": made_up_run.summary(), "run": run, "steps": tuple(map(step, range(8)))}
    return RunPage(**known | fields)  # type: ignore[arg-type]


def blocks(found: Document) -> list[Block]:
    flat: list[Block] = []
    for block in found.blocks:
        flat += block.blocks if isinstance(block, Section) else (block,)
    return flat


def plots(found: Document) -> list[CurvesPlot]:
    return [block for block in blocks(found) if isinstance(block, CurvesPlot)]


def test_steps_before_the_first_steady_one_are_marked_as_warm_up() -> None:
    steps = (step(0, "settle"), step(1), step(2), step(3, "traced"), step(4), step(5), step(6))
    bands = plots(document(page(steps=steps, first_steady=5)))[0].bands
    assert [(band.start, band.end) for band in bands] == [(-0.5, 2.5), (2.5, 3.5), (3.5, 4.5)]
    assert bands[0].text == bands[2].text != bands[1].text


def test_a_step_of_which_only_the_length_is_known_is_no_phase() -> None:
    steps = (step(0), step(1, detailed=False), step(2))
    plot = plots(document(page(steps=steps, first_steady=0)))[0]
    values = {curve.name: curve.values for curve in plot.curves}
    assert values[UNDIVIDED] == (0.0, 10.0, 0.0)
    assert values["input"] == (6.0, 0.0, 6.0)
    assert all(sum(column) == 10.0 for column in zip(*values.values(), strict=True))


def test_the_loss_has_an_axis_of_its_own_and_enough_digits() -> None:
    (loss,) = [plot for plot in plots(document(page())) if plot.curves[0].name == "loss"]
    assert not loss.from_zero
    assert "2.305" in loss.title
    assert "2.304" in loss.title


def test_a_crash_is_told_before_the_numbers() -> None:
    crashed = replace(made_up_run.summary(), status="raised", why="ValueError: no")
    first, second, *_ = document(page(summary=crashed)).blocks
    assert isinstance(first, Paragraph)
    assert first.level == "error"
    assert "ValueError: no" in first.text
    assert isinstance(second, KeyNumbers)


def test_no_more_than_six_numbers_stand_first() -> None:
    found = next(b for b in document(page()).blocks if isinstance(b, KeyNumbers))
    assert 4 <= len(found.numbers) <= 6


def test_telemetry_is_told_in_the_titles() -> None:
    samples = tuple(
        Telemetry(
            at_ns=i * 1_000 * MS,
            processes=(ProcessSample(pid=1, cpu_s=1.5 * i),),
            devices=(DeviceSample(index=0, ours=True, power_w=200.0 + 100 * i,
                                  power_limit_w=700.0, utilisation_percent=40 + 10 * i),),
        )
        for i in range(3)
    )  # fmt: skip
    titles = [plot.title for plot in plots(document(page(telemetry=samples)))]
    assert any("1.5 of 2" in title for title in titles)
    assert any("50 %" in title for title in titles)
    assert any("300 W" in t and "400 W" in t and "700 W" in t for t in titles)


def test_the_page_says_what_recording_costs_and_what_is_estimated() -> None:
    sections = {b.title: b for b in document(page(traced_factor=3.21)).blocks
                if isinstance(b, Section)}  # fmt: skip
    items = sections["How this was measured"].blocks[0].items  # type: ignore[union-attr]
    labels = {item.label: item.lines for item in items}
    assert "3.2 ×" in str(labels["overhead"])
    assert labels["estimated"]


def test_the_histogram_is_of_the_steps_that_the_median_is_over() -> None:
    found = histogram([9.0, 10.0, 11.0] * 3)
    drawn = [p for p in plots(document(page(step_ms=found))) if p.stepped == "after"]
    assert [sum(plot.curves[0].values) for plot in drawn] == [9]  # type: ignore[arg-type]
