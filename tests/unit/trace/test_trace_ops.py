"""Operators: self and total, host and device, without counting a nested call twice."""

from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.ops import ops, ops_by_shape
from ridgeline.trace.links import Links
from tests.unit.trace.traces_made import Made

ALL = Window(start_ns=0, end_ns=10**12, basis="test")


def _inputs(dims: list[Any], types: list[str], strides: Any = None) -> dict[str, Any]:
    told = {} if strides is None else {"Input Strides": strides}
    return {"Input Dims": dims, "Input type": types, **told}


def test_self_time_is_without_direct_children_on_host_and_device(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::linear", 0, 100).op("aten::addmm", 10, 60)
    made.launch("gemm", 20, 200, 40, 1).launch("bias", 80, 240, 5, 2)
    trace = made.trace(tmp_path)
    table = {row.name: row for row in ops(trace, Links(trace), ALL)}
    outer, inner = table["aten::linear"], table["aten::addmm"]
    assert (outer.host_ns, outer.host_self_ns) == (100_000, 40_000)
    assert (outer.device_ns, outer.device_self_ns) == (45_000, 5_000)
    assert (inner.host_self_ns, inner.device_self_ns) == (60_000, 40_000)
    assert inner.share == pytest.approx(40 / 45)


def test_an_operator_inside_itself_counts_its_time_once(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::to", 0, 100).op("aten::to", 10, 80).op("aten::copy_", 20, 50)
    made.launch("copy", 30, 200, 7, 1)
    trace = made.trace(tmp_path)
    row = next(r for r in ops(trace, Links(trace), ALL) if r.name == "aten::to")
    assert (row.count, row.host_ns, row.host_self_ns, row.device_ns) == (2, 100_000, 50_000, 7_000)


def test_rows_come_by_device_self_then_host_self(tmp_path: Path) -> None:
    made = Made()
    made.op("slow_host", 0, 90).op("quick_host", 100, 10)
    made.op("worker", 120, 20).launch("k", 121, 300, 3, 1)
    trace = made.trace(tmp_path)
    names = [row.name for row in ops(trace, Links(trace), ALL)]
    assert names == ["worker", "slow_host", "quick_host"]


def test_without_device_work_shares_are_of_host_time(tmp_path: Path) -> None:
    trace = Made().op("a", 0, 30).op("b", 40, 10).trace(tmp_path)
    assert [row.share for row in ops(trace, Links(trace), ALL)] == [0.75, 0.25]


def test_an_operator_whose_kernel_opens_the_window_counts(tmp_path: Path) -> None:
    made = Made().op("early", 0, 10).launch("k", 1, 50, 5, 1).op("outside", 20, 5)
    trace = made.trace(tmp_path)
    window = Window(start_ns=50_000, end_ns=60_000, basis="test")
    rows = ops(trace, Links(trace), window)
    assert [(r.name, r.count, r.device_self_ns) for r in rows] == [("early", 1, 5_000)]


def test_by_shape_joins_calls_that_differ_in_strides_only(tmp_path: Path) -> None:
    made = Made()
    for i, strides in enumerate(([[4, 1]], [[1, 2]])):
        made.op("aten::relu", 20 * i, 10, **_inputs([[2, 4]], ["float"], strides))
    made.op("aten::relu", 60, 10, **_inputs([[8, 4]], ["float"]))
    trace = made.trace(tmp_path)
    rows = ops_by_shape(trace, Links(trace), ALL)
    assert sorted((r.shape, r.count) for r in rows) == [("[2, 4] float", 2), ("[8, 4] float", 1)]


def test_shape_text_is_compact(tmp_path: Path) -> None:
    made = Made()
    dims = [[32, 3, 224, 224], [64, 3, 7, 7], [], []]
    types = ["c10::BFloat16", "c10::BFloat16", "", "ScalarList"]
    made.op("aten::conv2d", 0, 10, **_inputs(dims, types))
    made.op("aten::cat", 20, 10, **_inputs([[[2, 3], [2, 3]], []], ["TensorList", "Scalar"]))
    trace = made.trace(tmp_path)
    texts = {r.name: r.shape for r in ops_by_shape(trace, Links(trace), ALL)}
    assert texts["aten::conv2d"] == "[32, 3, 224, 224] [64, 3, 7, 7] bfloat16"
    assert texts["aten::cat"] == "2x[2, 3]"


def test_traces_without_shapes_or_operators_give_nothing(tmp_path: Path) -> None:
    trace = Made().op("a", 0, 1).trace(tmp_path, "one.json")
    assert ops_by_shape(trace, Links(trace), ALL) == ()
    empty = Made().trace(tmp_path, "none.json")
    assert ops(empty, Links(empty), ALL) == ()
