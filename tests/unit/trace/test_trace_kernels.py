"""The kernel table: totals, shares, the usual launcher, and what was left out."""

from pathlib import Path

import pytest

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.kernels import kernels
from ridgeline.trace.links import Links
from tests.unit.trace.traces_made import Made

ALL = Window(start_ns=0, end_ns=10**12, basis="test")


def _made() -> Made:
    made = Made()
    made.op("aten::mm", 0, 30)
    made.launch("ampere_sgemm_128x64_tn", 1, 50, 10, 1).launch(
        "ampere_sgemm_128x64_tn", 8, 60, 30, 2
    )
    made.op("aten::linear", 40, 10).launch("ampere_sgemm_128x64_tn", 41, 90, 20, 3)
    made.op("aten::copy_", 60, 10).call("cudaMemcpyAsync", 61, 5, 4)
    made.kernel("Memcpy HtoD (Pageable -> Device)", 120, 25, 4, cat="gpu_memcpy")
    made.kernel("Memset (Device)", 150, 5, 5, cat="gpu_memset")
    return made


def test_rows_hold_total_mean_extremes_and_the_usual_operator(tmp_path: Path) -> None:
    trace = _made().trace(tmp_path)
    rows, left = kernels(trace, Links(trace), ALL)
    assert left == 0
    first = rows[0]
    assert (first.name, first.count, first.total_ns) == ("ampere_sgemm_128x64_tn", 3, 60_000)
    assert (first.least_ns, first.most_ns, first.mean_ns) == (10_000, 30_000, 20_000)
    assert first.op == "aten::mm"
    assert first.share == pytest.approx(60 / 90)
    assert (first.category, first.tensor_cores) == ("matmul", False)


def test_copies_and_fills_are_rows(tmp_path: Path) -> None:
    trace = _made().trace(tmp_path)
    rows, _ = kernels(trace, Links(trace), ALL)
    assert [(r.name, r.category, r.op) for r in rows[1:]] == [
        ("Memcpy HtoD (Pageable -> Device)", "copy", "aten::copy_"),
        ("Memset (Device)", "copy", ""),
    ]


def test_names_beyond_the_limit_are_counted_and_shares_stay_of_the_whole(tmp_path: Path) -> None:
    trace = _made().trace(tmp_path)
    rows, left = kernels(trace, Links(trace), ALL, limit=1)
    assert (len(rows), left) == (1, 2)
    assert rows[0].share == pytest.approx(60 / 90)


def test_only_work_that_starts_in_the_window_counts(tmp_path: Path) -> None:
    trace = _made().trace(tmp_path)
    rows, _ = kernels(trace, Links(trace), Window(start_ns=60_000, end_ns=90_000, basis="test"))
    assert [(r.count, r.total_ns) for r in rows] == [(1, 30_000)]


def test_an_empty_trace_has_no_kernels(tmp_path: Path) -> None:
    trace = Made().trace(tmp_path)
    assert kernels(trace, Links(trace), ALL) == ((), 0)
