"""All figures of a trace's report cover the same window as its tables."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.build_case import as_studied, case_of_trace
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.trace_findings import diagnose_trace
from ridgeline.records.trace import TraceStudy
from ridgeline.trace.links import links_of
from ridgeline.trace.study import study_one
from ridgeline.trace.trace import Trace
from tests.unit.trace.traces_made import Made


def starved(lead: int) -> Made:
    """Two steps of 10 ms; the device's first work begins `lead` µs after the first mark."""
    made = Made()
    made.span("ProfilerStep#1", 0, 10_000).span("ProfilerStep#2", 10_000, 10_000)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, lead)
    made.op("aten::mm", lead, 100).launch("gemm", lead, lead + 10, 10_000 - lead - 10, 1)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10_000, lead)
    return made.op("aten::mm", 10_000 + lead, 100).launch(
        "gemm", 10_000 + lead, 10_010 + lead, 10_000 - lead - 10, 2
    )


def studied(made: Made, folder: Path) -> tuple[Trace, TraceStudy]:
    trace = made.trace(folder)
    return trace, study_one(trace, links_of(trace), None)


def test_answers_cover_the_same_window_as_the_tables(tmp_path: Path) -> None:
    trace, study = studied(starved(4000), tmp_path)
    whole = study_one(trace, links_of(trace), "all")
    assert whole.window.ns > study.window.ns
    case = case_of_trace(whole, (trace,), Attempts())
    shown = as_studied(case, study)
    [device] = study.devices
    assert device.busy_ns is not None
    assert shown.busy == pytest.approx(device.busy_ns / study.window.ns)
    assert shown.busy != pytest.approx(case.busy, rel=0.05)
    assert sum(shown.shares.of.values()) == pytest.approx(1) if shown.shares else False


@pytest.mark.parametrize(("lead", "differs"), [(4000, True), (20, False)])
def test_findings_that_cover_another_window_say_so(
    tmp_path: Path, lead: int, differs: bool
) -> None:
    trace, study = studied(starved(lead), tmp_path)
    found = diagnose_trace(
        study, (trace,), (tmp_path / "made.json",), None, False, lambda text: None
    )
    assert not found.problems
    assert bool(found.basis) == differs


def test_without_a_known_busy_time_the_case_stays_as_it_is(tmp_path: Path) -> None:
    trace, study = studied(starved(4000), tmp_path)
    case = case_of_trace(study, (trace,), Attempts())
    unknown = replace(study, devices=())
    assert as_studied(case, unknown).work == case.work
