"""Operators by where they are called from: what stands for what, whose line, a step's share."""

from pathlib import Path

import pytest
from traces_made import AUTOGRAD, Made

from ridgeline.records.sites import OpSite
from ridgeline.trace.analyses.ops import op_sites
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of

MATRICES = {
    "Input Dims": [[8], [4, 16], [16, 8], [], []],
    "Input type": ["float", "float", "float", "Scalar", "Scalar"],
}


def found(trace: Trace) -> tuple[OpSite, ...]:
    return op_sites(trace, Links(trace), window_of(trace, "all"))[0]


def two_steps() -> Made:
    """Two steps: a linear in a module, called from net.py, and its backward on another thread."""
    made = Made()
    for step in range(2):
        at, ids = 1000 * step, 10 * step
        made.span(f"ProfilerStep#{step}", at, 900).frame("train.py(1): main", at, 900)
        made.frame("net.py(7): forward", at + 10, 200).frame("nn.Module: Linear_0", at + 20, 100)
        made.op("aten::linear", at + 30, 60).op("aten::addmm", at + 40, 40, **MATRICES,
                **{"Sequence number": 5 + ids, "Fwd thread id": 0})  # fmt: skip
        made.launch("gemm", at + 50, at + 60, 100, 1 + ids)
        made.op("autograd::engine::evaluate_function: AddmmBackward0", at + 400, 90, AUTOGRAD,
                **{"Sequence number": 5 + ids, "Fwd thread id": 1})  # fmt: skip
        made.op("aten::mm", at + 410, 60, AUTOGRAD)
        made.launch("gemm_back", at + 420, at + 430, 200, 2 + ids, tid=AUTOGRAD)
        made.call("cudaStreamSynchronize", at + 500, 131, 3 + ids)
    return made


def test_the_operator_that_multiplies_stands_with_its_module_line_and_kernels(
    tmp_path: Path,
) -> None:
    sites = {site.op: site for site in found(two_steps().trace(tmp_path))}
    site = sites["aten::addmm"]
    assert site.within == ("aten::linear",)
    assert site.place is not None
    assert (site.place.file, site.place.function) == ("net.py", "forward")
    assert site.module == "Linear_0"
    assert (site.calls, site.phase, site.dtype) == (1, "forward", "float32")
    assert site.host_ns == pytest.approx(40_000)
    assert site.device_ns == pytest.approx(100_000)
    assert site.flops == 2 * 4 * 16 * 8
    assert [(kernel.name, kernel.count) for kernel in site.kernels] == [("gemm", 1)]


def test_a_backward_operator_has_the_line_and_the_module_of_its_forward(tmp_path: Path) -> None:
    sites = {site.op: site for site in found(two_steps().trace(tmp_path))}
    site = sites["aten::mm"]
    assert site.phase == "backward"
    assert site.inside("AddmmBackward0")
    assert site.place is not None
    assert site.place.file == "net.py"
    assert site.module == "Linear_0"
    assert site.device_ns == pytest.approx(200_000)


def test_work_on_the_critical_path_is_exposed_and_work_beside_it_is_not(tmp_path: Path) -> None:
    made = two_steps()
    made.op("aten::relu", 85, 10)
    made.launch("beside", 86, 95, 50, 91, stream=8)  # ends before the gemm does
    sites = {site.op: site for site in found(made.trace(tmp_path))}
    assert sites["aten::mm"].exposed_ns == pytest.approx(sites["aten::mm"].device_ns)
    assert sites["aten::relu"].exposed_ns == 0


def test_without_a_device_the_work_is_the_hosts(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 900)
    made.op("aten::linear", 30, 60).op("aten::addmm", 40, 40, **MATRICES)
    sites = {site.op: site for site in found(made.trace(tmp_path))}
    assert sites["aten::addmm"].work_ns == sites["aten::addmm"].exposed_ns == 40_000
    assert sites["aten::addmm"].place is None


def test_the_same_call_from_two_functions_is_two_sites(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 900)
    for name, at in (("a.py(1): f", 10), ("b.py(1): g", 210)):
        made.frame(name, at, 100).op("aten::relu", at + 10, 50)
    places = {site.place.file for site in found(made.trace(tmp_path)) if site.place is not None}
    assert places == {"a.py", "b.py"}


def test_operators_outside_the_marked_steps_do_not_count(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100).op("aten::relu", 10, 50).op("aten::relu", 500, 50)
    (site,) = found(made.trace(tmp_path))
    assert site.calls == 1
