"""Phases of a step: exclusive, complete, and with the device work each launched."""

from pathlib import Path

from traces_made import AUTOGRAD, Made

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.phases import phases
from ridgeline.trace.links import Links


def phases_of(made: Made, folder: Path, end: int = 1000) -> dict[str, tuple[int, int]]:
    """Microseconds of host and device by phase."""
    trace = made.trace(folder)
    found = phases(trace, Links(trace), Window(start_ns=0, end_ns=end * 1000, basis="test"))
    assert sum(p.host_ns for p in found) == end * 1000
    return {p.phase: (p.host_ns // 1000, p.device_ns // 1000) for p in found}


def training_step() -> Made:
    made = Made().span("ProfilerStep#1", 0, 1000)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 200)
    made.op("aten::stack", 50, 20)
    made.op("aten::linear", 250, 100).launch("gemm", 260, 270, 40, 1)
    made.op("autograd::engine::evaluate_function: MmBackward0", 400, 50, tid=AUTOGRAD)
    made.launch("gemm_back", 410, 420, 80, 2, tid=AUTOGRAD)
    made.op("autograd::engine::evaluate_function: AccumulateGrad", 480, 20, tid=AUTOGRAD)
    made.span("my update", 590, 250).span("Optimizer.step#SGD.step", 600, 200)
    return made.op("aten::add_", 650, 50).launch("add", 660, 700, 10, 3)


def test_a_step_splits_into_its_phases(tmp_path: Path) -> None:
    assert phases_of(training_step(), tmp_path) == {
        "input": (200, 0),
        "forward": (100, 40),
        "backward": (100, 80),  # 400 to 500: the gap between two nodes is the backward's own
        "optimizer": (200, 10),
        "other": (400, 0),
    }


def test_the_wait_for_the_backward_ends_where_the_main_thread_goes_on(tmp_path: Path) -> None:
    made = training_step().op("aten::item", 455, 10)  # the main thread, between two nodes
    found = phases_of(made, tmp_path)
    assert found["backward"] == (70, 80)
    assert found["forward"] == (110, 40)


def test_on_the_cpu_the_backward_is_on_the_main_thread(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 100)
    made.op("autograd::engine::evaluate_function: MmBackward0", 200, 100).op("aten::mm", 210, 50)
    made.op("autograd::engine::evaluate_function: TBackward0", 320, 30)
    made.op("aten::add", 400, 10)
    found = phases_of(made, tmp_path)
    assert found["backward"][0] == 150
    assert found["forward"][0] == 110


def test_old_traces_tell_the_backward_by_its_forward_thread(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 100, **{"Fwd thread id": 0, "Sequence number": 5})
    made.op("MmBackward", 200, 60, tid=AUTOGRAD, **{"Fwd thread id": 1, "Sequence number": 5})
    found = phases_of(made, tmp_path)
    assert (found["forward"][0], found["backward"][0]) == (100, 60)


def closure_step() -> Made:
    """`optimizer.step(closure)` from 100 to 900: it clears gradients, loads a batch, and runs a
    forward from 300 to 400 and a backward; then it updates twice."""
    made = Made().span("ProfilerStep#1", 0, 1000).span("Optimizer.step#LBFGS.step", 100, 800)
    made.op("aten::dot", 110, 20)  # before the closure, without gradients
    made.span("Optimizer.zero_grad#LBFGS.zero_grad", 140, 30)
    made.op("aten::zero_", 145, 20, **{"Sequence number": 3})
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 180, 100)
    made.op("aten::stack", 200, 20, **{"Sequence number": 3})
    made.op("aten::linear", 300, 40, **{"Sequence number": 4})
    made.op("aten::addmm", 310, 20, **{"Sequence number": 4})
    made.op("aten::relu", 360, 40, **{"Sequence number": 5})
    for name, at in (("ReluBackward0", 420), ("AddmmBackward0", 470)):
        made.op(f"autograd::engine::evaluate_function: {name}", at, 40)
    made.op("aten::dot", 600, 50)
    return made.op("aten::add_", 700, 50, **{"Sequence number": 6})


def test_what_an_optimizer_runs_as_its_closure_is_forward_and_backward(tmp_path: Path) -> None:
    host = {name: times[0] for name, times in phases_of(closure_step(), tmp_path).items()}
    assert host == {
        "input": 100,
        "forward": 100,  # 300 to 400, with the Python between its operators
        "backward": 90,  # 420 to 510
        "optimizer": 800 - 100 - 100 - 90,
        "other": 200,
    }


def test_an_update_without_a_closure_is_the_optimizers_alone(tmp_path: Path) -> None:
    """Operators of an update written with gradients on have numbers, too."""
    made = training_step().op("aten::mul_", 720, 20, **{"Sequence number": 9})
    assert phases_of(made, tmp_path)["optimizer"] == (200, 10)


def test_stacks_stand_in_for_spans(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 500, 10)
    made.frame("torch/utils/data/dataloader.py(630): __next__", 0, 120)
    made.frame("torch/optim/optimizer.py(480): wrapper", 700, 50)
    made.frame("torch/_tensor.py(521): backward", 600, 80)
    made.frame("nn.Module: Linear_0", 480, 70)
    found = {name: host for name, (host, _) in phases_of(made, tmp_path).items()}
    assert found == {"input": 120, "forward": 70, "backward": 80, "optimizer": 50, "other": 680}


def test_device_work_counts_where_it_was_launched_not_where_it_ran(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 50).launch("late", 10, 620, 30, 1)
    made.span("Optimizer.step#SGD.step", 600, 100).kernel("lost", 800, 7, 99)
    found = phases_of(made, tmp_path)
    assert found["forward"][1] == 30
    assert found["optimizer"][1] == 0
    assert found["other"][1] == 7


def test_an_empty_trace_is_all_other(tmp_path: Path) -> None:
    assert phases_of(Made(), tmp_path)["other"] == (1000, 0)
