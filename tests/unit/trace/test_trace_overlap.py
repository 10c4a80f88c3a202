"""Host and device side by side, to the nanosecond."""

from pathlib import Path

from traces_made import AUTOGRAD, WORKER, Made

from ridgeline.records.trace import Overlap, Window
from ridgeline.trace.analyses.busy import overlap
from ridgeline.trace.links import Links


def overlap_of(made: Made, folder: Path, end: int = 100) -> Overlap:
    trace = made.trace(folder)
    return overlap(trace, Links(trace), Window(start_ns=0, end_ns=end * 1000, basis="test"))


def parts(found: Overlap) -> tuple[int, int, int, int]:
    return found.both_ns, found.host_ns, found.device_ns, found.neither_ns


def test_the_four_parts_add_up_to_the_window(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 40).launch("k", 10, 30, 50, 1)
    assert parts(overlap_of(made, tmp_path)) == (10_000, 30_000, 40_000, 20_000)


def test_waiting_inside_a_synchronising_call_is_not_work(tmp_path: Path) -> None:
    made = Made().op("aten::item", 0, 60).launch("k", 5, 20, 30, 1)
    made.call("cudaStreamSynchronize", 25, 30, 2)
    # host works 0-25 and 55-60; device 20-50
    assert parts(overlap_of(made, tmp_path)) == (5_000, 25_000, 25_000, 45_000)


def test_one_thread_waits_while_another_works(tmp_path: Path) -> None:
    made = Made().launch("k", 0, 10, 10, 1).call("hipDeviceSynchronize", 20, 60, 2)
    made.op("MulBackward", 30, 20, tid=AUTOGRAD).launch("k2", 35, 90, 5, 3, tid=AUTOGRAD)
    # host: 0-5, 30-50; device: 10-20, 90-95
    assert parts(overlap_of(made, tmp_path)) == (0, 25_000, 15_000, 60_000)


def test_threads_that_launch_nothing_do_not_count(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#1", 0, 100).launch("k", 0, 10, 10, 1)
    made.op("aten::pin_memory", 50, 40, tid=WORKER)
    assert parts(overlap_of(made, tmp_path)) == (0, 5_000, 10_000, 85_000)


def test_work_past_the_window_is_cut(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 90, 30).launch("k", 95, 98, 50, 1)
    assert parts(overlap_of(made, tmp_path)) == (2_000, 8_000, 0, 90_000)


def test_an_empty_trace_is_all_idle_and_doubtful(tmp_path: Path) -> None:
    found = overlap_of(Made(), tmp_path)
    assert parts(found) == (0, 0, 0, 100_000)
    assert found.trust.confidence == "doubtful"
