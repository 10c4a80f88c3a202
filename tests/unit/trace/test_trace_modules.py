"""nn.Modules: the tree by time, forward by the launch, backward by the sequence number."""

from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.modules import hierarchy, modules, stack
from ridgeline.trace.links import Links
from tests.unit.trace.traces_made import AUTOGRAD, Made

ALL = Window(start_ns=0, end_ns=10**12, basis="test")


def _model() -> Made:
    made = Made()
    made.frame("train.py(3): <module>", 0, 1000)
    made.frame("nn.Module: Net_0", 10, 200)
    made.frame("nn.Module: Linear_0", 20, 50).frame("nn.Module: Linear_1", 100, 60)
    made.op("aten::linear", 25, 30, **{"Sequence number": 0, "Fwd thread id": 0})
    made.launch("first", 30, 300, 10, 1)
    made.op("aten::linear", 110, 30, **{"Sequence number": 1, "Fwd thread id": 0})
    made.launch("second", 115, 310, 20, 2)
    made.op("aten::relu", 180, 20, **{"Sequence number": 2, "Fwd thread id": 0})
    made.launch("third", 185, 330, 5, 3)
    return made


def test_the_tree_follows_nesting_and_sums_device_time(tmp_path: Path) -> None:
    trace = _model().trace(tmp_path)
    rows = modules(trace, Links(trace), ALL)
    assert [(r.path, r.kind, r.depth) for r in rows] == [
        ("Net_0", "Net", 0),
        ("Net_0 / Linear_1", "Linear", 1),
        ("Net_0 / Linear_0", "Linear", 1),
    ]
    assert [(r.device_ns, r.device_self_ns) for r in rows] == [
        (35_000, 5_000), (20_000, 20_000), (10_000, 10_000)
    ]  # fmt: skip
    assert [(r.count, r.host_ns) for r in rows] == [(1, 200_000), (1, 60_000), (1, 50_000)]
    assert rows[1].share == pytest.approx(20 / 35)


def test_backward_work_goes_to_the_module_of_its_forward_operator(tmp_path: Path) -> None:
    made = _model()
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    numbers = {"Sequence number": 0, "Fwd thread id": 1}
    made.op(node, 400, 90, AUTOGRAD, **numbers).op("AddmmBackward0", 410, 70, AUTOGRAD, **numbers)
    made.op("aten::mm", 420, 40, AUTOGRAD).launch("backward", 425, 500, 100, 9, AUTOGRAD)
    trace = made.trace(tmp_path)
    rows = {r.path: r for r in modules(trace, Links(trace), ALL)}
    assert rows["Net_0 / Linear_0"].device_ns == 110_000
    assert rows["Net_0 / Linear_1"].device_ns == 20_000
    assert rows["Net_0"].device_ns == 135_000


def test_the_last_operator_with_a_number_made_the_node(tmp_path: Path) -> None:
    """Operators that make no node carry the number of the next one that does."""
    made = Made()
    made.frame("nn.Module: A_0", 0, 50).frame("nn.Module: B_0", 60, 50)
    made.op("aten::view", 10, 10, **{"Sequence number": 7, "Fwd thread id": 0})
    made.op("aten::linear", 70, 10, **{"Sequence number": 7, "Fwd thread id": 0})
    made.op("AddmmBackward0", 200, 30, AUTOGRAD, **{"Sequence number": 7, "Fwd thread id": 1})
    made.launch("k", 210, 300, 10, 1, AUTOGRAD)
    trace = made.trace(tmp_path)
    rows = {r.path: r.device_ns for r in modules(trace, Links(trace), ALL)}
    assert rows == {"B_0": 10_000, "A_0": 0}


def test_repeated_calls_of_one_place_are_one_row(tmp_path: Path) -> None:
    made = Made()
    for step in range(3):
        made.frame("nn.Module: Net_0", 100 * step, 50)
    trace = made.trace(tmp_path)
    assert [(r.path, r.count) for r in modules(trace, Links(trace), ALL)] == [("Net_0", 3)]


def test_old_call_stacks_tell_modules_by_where_they_are_called(tmp_path: Path) -> None:
    text = (
        "/x/torch/nn/modules/conv.py(443): forward;"
        "/x/torch/nn/modules/module.py(1051): _call_impl;/x/resnet.py(124): forward;"
        "/x/torch/nn/modules/module.py(1051): _call_impl;train.py(46): <module>"
    )
    told: dict[str, Any] = {"Call stack": text}
    made = Made().op("aten::conv2d", 0, 10, **told).launch("k", 2, 20, 6, 1)
    trace = made.trace(tmp_path)
    rows = modules(trace, Links(trace), ALL)
    assert [(r.path, r.kind, r.device_ns) for r in rows] == [
        ("resnet at train.py:46", "resnet", 6_000),
        ("resnet at train.py:46 / conv at resnet.py:124", "conv", 6_000),
    ]


def test_a_script_modules_hierarchy_is_read() -> None:
    assert hierarchy("TOP(Net)::forward.conv1(Conv2d)::forward") == [
        ("TOP (Net)", "Net"),
        ("conv1 (Conv2d)", "Conv2d"),
    ]
    assert hierarchy("") == []
    assert stack("train.py(1): <module>") == []


def test_no_stacks_no_modules(tmp_path: Path) -> None:
    trace = Made().op("aten::mm", 0, 10).trace(tmp_path, "a.json")
    assert modules(trace, Links(trace), ALL) == ()
    empty = Made().trace(tmp_path, "b.json")
    assert modules(empty, Links(empty), ALL) == ()
