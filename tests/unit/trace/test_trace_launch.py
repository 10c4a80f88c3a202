"""Launch latency, queue and small kernels against hand-computed answers."""

from pathlib import Path

import pytest
from traces_made import Made

from ridgeline.records.trace import Launch, Window
from ridgeline.trace.analyses.launch import launch
from ridgeline.trace.links import Links


def launch_of(made: Made, folder: Path, end: int = 1000, steps: int = 0) -> Launch:
    trace = made.trace(folder)
    window = Window(start_ns=0, end_ns=end * 1000, basis="test")
    return launch(trace, Links(trace), window, steps)


def test_latency_runs_from_the_start_of_the_call_to_the_start_of_the_kernel(tmp_path: Path) -> None:
    made = Made().launch("a", 10, 20, 30, 1).launch("b", 100, 112, 5, 2).launch("c", 200, 214, 5, 3)
    found = launch_of(made, tmp_path, steps=2)
    assert found.launches == 3
    assert found.per_step == 1.5
    assert found.median_latency_ns == 12_000
    assert found.median_call_ns == 5_000
    assert found.linked == 1.0
    assert found.trust.confidence == "good"


def test_queue_holds_what_was_launched_and_has_not_started(tmp_path: Path) -> None:
    # a runs 20 to 120; b, c, d are launched meanwhile and queue up; e finds the device idle
    made = Made().launch("a", 10, 20, 100, 1).launch("b", 30, 120, 10, 2)
    made.launch("c", 40, 130, 10, 3).launch("d", 50, 140, 10, 4).launch("e", 300, 310, 10, 5)
    found = launch_of(made, tmp_path)
    # depths seen: 0, 0, 1, 2, 0
    assert found.median_queue == 0
    # a and e found nothing queued and nothing running; b found a running
    assert found.empty_queue == pytest.approx(2 / 5)


def test_another_device_at_work_does_not_fill_the_queue(tmp_path: Path) -> None:
    made = Made().launch("a", 10, 20, 500, 1).launch("b", 100, 110, 10, 2, device=1)
    assert launch_of(made, tmp_path).empty_queue == 1.0


def test_a_graph_launch_counts_once_with_its_first_kernel(tmp_path: Path) -> None:
    made = Made().call("cudaGraphLaunch", 10, 20, 1)
    made.kernel("k1", 40, 5, 1).kernel("k2", 60, 5, 1).kernel("k3", 80, 5, 1)
    made.launch("after", 70, 90, 5, 2)  # between k2 and k3: the graph still holds the device
    found = launch_of(made, tmp_path)
    assert found.launches == 2
    assert found.median_latency_ns == (30_000 + 20_000) / 2
    assert found.empty_queue == 0.5


def test_small_kernels_are_those_under_ten_microseconds(tmp_path: Path) -> None:
    made = Made().launch("a", 10, 20, 9.999, 1).launch("b", 30, 40, 10, 2)
    made.launch("c", 60, 70, 80, 3)
    made.kernel("Memset", 200, 1, 9, cat="gpu_memset")
    found = launch_of(made, tmp_path)
    assert found.small_kernels == pytest.approx(1 / 3)
    assert found.small_kernel_time == pytest.approx(9.999 / 99.999)


def test_kernels_before_their_launch_make_latency_unreliable(tmp_path: Path) -> None:
    made = Made().launch("a", 10, 5, 2, 1).launch("b", 30, 40, 2, 2)
    found = launch_of(made, tmp_path)
    assert found.median_latency_ns is None
    assert found.empty_queue is None
    assert found.trust.confidence == "unreliable"
    assert found.trust.why.startswith("1 of 2 launches")


def test_one_early_kernel_of_many_is_left_out_and_told(tmp_path: Path) -> None:
    made = Made().launch("early", 10, 5, 2, 1)
    for index in range(200):
        made.launch("k", 100 + 20 * index, 107 + 20 * index, 2, 2 + index)
    found = launch_of(made, tmp_path, end=10_000)
    assert found.median_latency_ns == 7_000
    assert found.trust.confidence == "doubtful"


def test_unlinked_work_is_counted_in_linked_and_told(tmp_path: Path) -> None:
    made = Made().launch("a", 10, 20, 5, 1).kernel("lost", 40, 5, 77)
    found = launch_of(made, tmp_path)
    assert found.linked == 0.5
    assert found.launches == 1
    assert "1 of 2 device operations" in found.trust.why


def test_no_device_work_gives_no_figures(tmp_path: Path) -> None:
    found = launch_of(Made().op("aten::add", 0, 5), tmp_path)
    assert found.median_latency_ns is None
    assert found.trust.confidence == "unreliable"


def test_tensor_core_share_is_of_matrix_work_alone(tmp_path: Path) -> None:
    made = Made().launch("ampere_fp16_s16816gemm_fp16_128x64_tn", 10, 20, 30, 1)
    made.launch("ampere_sgemm_128x64_tn", 60, 70, 10, 2)
    made.launch("void at::native::vectorized_elementwise_kernel<4>", 90, 100, 500, 3)
    assert launch_of(made, tmp_path).tensor_core_time == pytest.approx(0.75)
