"""What the program was doing when memory was at its peak."""

from pathlib import Path

from traces_made import Made

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.allocations import Moment, memory_curves, moment

WINDOW = Window(start_ns=0, end_ns=1_000_000_000, basis="all")


def test_a_forward_has_its_module_and_the_operator_that_was_asked_for(tmp_path: Path) -> None:
    made = Made()
    made.frame("nn.Module: GPT_0", 0, 100).frame("nn.Module: Block_3", 10, 50)
    made.op("aten::linear", 20, 20).op("aten::empty", 25, 2)
    trace = made.trace(tmp_path)
    lane, at = int(trace.ops.lane[0]), int(trace.ops.ts[1])
    assert moment(trace, at, lane) == Moment(
        phase="forward", op="aten::linear", module="GPT_0 / Block_3"
    )
    assert moment(trace, at, lane + 7) == Moment()


def test_backward_and_optimizer_are_told_by_their_marks(tmp_path: Path) -> None:
    made = Made()
    made.op("autograd::engine::evaluate_function: MmBackward0", 0, 50)
    made.op("MmBackward0", 5, 40).op("aten::mm", 10, 20)
    made.span("Optimizer.step#SGD.step", 100, 50).op("aten::add_", 110, 10)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 50)
    made.op("aten::stack", 210, 10).op("aten::add", 300, 10)
    trace = made.trace(tmp_path)
    lane = int(trace.ops.lane[0])
    told = [moment(trace, int(at), lane) for at in trace.ops.ts]
    by_op = {one.op: one.phase for one in told}
    assert by_op == {
        "MmBackward0": "backward",
        "": "backward",
        "aten::add_": "optimizer",
        "aten::stack": "input",
        "aten::add": "",
    }


def test_the_curve_carries_it(tmp_path: Path) -> None:
    made = Made().op("aten::relu", 10, 20)
    made.allocation(5, 100, 100).allocation(15, 900, 1000).allocation(40, -900, 100)
    (curve,) = memory_curves(made.trace(tmp_path), WINDOW)
    assert (curve.peak_bytes, curve.peak_op) == (1000, "aten::relu")
