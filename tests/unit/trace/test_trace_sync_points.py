"""Lines at which the host waits for the device, in made traces (torch writes no such calls on a
machine without one)."""

from pathlib import Path

import pytest
from traces_made import AUTOGRAD, WORKER, Made

from ridgeline.records.run_summary import SyncPoint
from ridgeline.trace.analyses.synchronisation import sync_points
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of


def found(trace: Trace) -> tuple[SyncPoint, ...]:
    return sync_points(trace, Links(trace), window_of(trace, "all"))


def two_steps() -> Made:
    """Two steps of 1000 µs, each with an `.item()` of two calls at train.py:7."""
    made = Made()
    for step in range(2):
        at = 2000 * step
        made.span(f"ProfilerStep#{step}", at, 1000).frame("train.py(1): main", at, 1000)
        made.launch("gemm", at + 10, at + 20, 600, 10 * step + 1)
        made.frame("train.py(7): log", at + 100, 700)
        made.op("aten::item", at + 110, 590).op("aten::_local_scalar_dense", at + 115, 580)
        made.call("cudaMemcpyAsync", at + 120, 500, 10 * step + 2)
        made.kernel("Memcpy DtoH (Device -> Pageable)", at + 620, 2, 10 * step + 2,
                    cat="gpu_memcpy")  # fmt: skip
        made.call("cudaStreamSynchronize", at + 630, 50, 10 * step + 3)
    return made


def test_one_item_is_one_wait_with_all_its_calls(tmp_path: Path) -> None:
    (point,) = found(two_steps().trace(tmp_path))
    assert (point.place, point.call) == ("train.py:7", "aten::item")
    assert point.per_step == 1
    assert point.ms_per_step == pytest.approx(0.55)


def test_the_profilers_own_waits_are_not_the_programs(tmp_path: Path) -> None:
    made = two_steps()
    made.call("cudaDeviceSynchronize", 3100, 900, 40)  # after the last mark: it stops
    made.frame("ridgeline/harness/capture/seams.py(9): after", 810, 90)
    made.frame("torch/cuda/__init__.py(1): synchronize", 811, 80)
    made.frame("<built-in method _cuda_synchronize>", 812, 70)
    made.call("cudaDeviceSynchronize", 815, 60, 41)
    made.frame("torch/profiler/profiler.py(9): step", 910, 50)
    made.call("cudaDeviceSynchronize", 915, 40, 42)
    assert [point.call for point in found(made.trace(tmp_path))] == ["aten::item"]


def test_a_wait_inside_a_function_we_wrapped_is_the_programs(tmp_path: Path) -> None:
    made = two_steps().frame("ridgeline/harness/capture/seams.py(9): step", 810, 90)
    made.frame("torch/amp/grad_scaler.py(3): step", 815, 80)
    made.op("aten::item", 820, 70).call("cudaStreamSynchronize", 830, 50, 41)
    points = {point.place: point.per_step for point in found(made.trace(tmp_path))}
    assert points == {"train.py:7": 1, "train.py:1": 0.5}


def test_a_blocking_copy_to_the_device_counts_with_the_copying(tmp_path: Path) -> None:
    made = two_steps().op("aten::to", 810, 100).op("aten::_to_copy", 811, 98)
    made.op("aten::copy_", 812, 96).call("cudaMemcpyAsync", 815, 40, 31)
    made.kernel("Memcpy HtoD (Pageable -> Device)", 820, 40, 31, cat="gpu_memcpy")
    made.call("cudaStreamSynchronize", 860, 20, 32)
    point = found(made.trace(tmp_path))[1]
    assert (point.call, point.per_step) == ("aten::to", 0.5)
    assert point.ms_per_step == pytest.approx(0.06 / 2)


def test_copies_that_do_not_wait_are_none(tmp_path: Path) -> None:
    made = two_steps().op("aten::copy_", 810, 40).call("cudaMemcpyAsync", 815, 5, 31)
    made.kernel("Memcpy HtoD (Pinned -> Device)", 820, 40, 31, cat="gpu_memcpy")
    made.op("aten::copy_", 860, 40).call("cudaMemcpyAsync", 865, 5, 32)
    made.kernel("Memcpy DtoH (Device -> Pinned)", 870, 40, 32, cat="gpu_memcpy")
    made.op("aten::copy_", 910, 40).call("cudaMemcpyAsync", 915, 5, 33)
    made.kernel("Memcpy HtoD (Pageable -> Device)", 920, 40, 33, cat="gpu_memcpy")
    assert [point.call for point in found(made.trace(tmp_path))] == ["aten::item"]


def test_a_thread_beside_the_program_waits_for_itself(tmp_path: Path) -> None:
    made = two_steps().call("cudaEventSynchronize", 200, 300, 31, WORKER)
    assert [point.call for point in found(made.trace(tmp_path))] == ["aten::item"]


def test_a_wait_of_the_backward_thread_has_the_main_threads_line(tmp_path: Path) -> None:
    made = two_steps().launch("gemm", 820, 830, 10, 30, AUTOGRAD)
    made.op("aten::nonzero", 840, 50, AUTOGRAD)
    made.call("cudaStreamSynchronize", 850, 30, 31, AUTOGRAD)
    points = {point.call: point.place for point in found(made.trace(tmp_path))}
    assert points["aten::nonzero"] == "train.py:1"


def test_a_trace_without_a_device_has_none(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100).op("aten::item", 10, 5)
    assert found(made.trace(tmp_path)) == ()
