"""The critical path on traces small enough to walk by hand."""

from pathlib import Path

from traces_made import AUTOGRAD, Made

from ridgeline.records.trace import CriticalPath, Window
from ridgeline.trace.analyses.critical_path import critical_path
from ridgeline.trace.links import Links


def path_of(made: Made, folder: Path, end: int) -> CriticalPath:
    trace = made.trace(folder)
    found = critical_path(trace, Links(trace), Window(start_ns=0, end_ns=end * 1000, basis="test"))
    assert found.total_ns == end * 1000
    assert found.host_ns + found.device_ns + found.wait_ns == end * 1000
    return found


def shares(found: CriticalPath) -> dict[tuple[str, str], int]:
    return {(s.side, s.what): s.ns // 1000 for s in found.top}


def test_queued_kernels_are_followed_along_their_stream(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 15).launch("a", 10, 20, 50, 1)
    made.op("aten::add", 20, 15).launch("b", 25, 72, 28, 2)
    assert shares(path_of(made, tmp_path, 100)) == {
        ("device", "b"): 28,
        ("wait", "between operations of a stream"): 2,
        ("device", "a"): 50,
        ("wait", "launch latency"): 10,
        ("host", "aten::mm"): 10,
    }


def test_a_late_launch_leads_to_the_host_and_past_what_the_device_did(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 15).launch("a", 10, 20, 5, 1)
    made.op("aten::add", 60, 20).op("aten::empty", 62, 4).launch("b", 70, 80, 20, 2)
    assert shares(path_of(made, tmp_path, 100)) == {
        ("device", "b"): 20,
        ("wait", "launch latency"): 10,
        ("host", "aten::add"): 6,
        ("host", "aten::empty"): 4,
        ("host", "Python / no operator"): 45,
        ("host", "aten::mm"): 15,
    }


def test_a_synchronisation_leads_to_the_operation_it_waited_for(tmp_path: Path) -> None:
    made = Made().launch("a", 0, 10, 50, 1).call("cudaDeviceSynchronize", 8, 55, 2)
    made.launch("b", 70, 80, 20, 3)
    assert shares(path_of(made, tmp_path, 100)) == {
        ("device", "b"): 20,
        ("device", "a"): 50,
        ("wait", "launch latency"): 20,
        ("wait", "return from synchronisation"): 3,
        ("host", "Python / no operator"): 7,
    }


def test_a_synchronisation_that_did_not_wait_is_host_time(tmp_path: Path) -> None:
    made = Made().launch("a", 0, 10, 5, 1).call("cudaDeviceSynchronize", 30, 4, 2)
    made.launch("b", 70, 80, 20, 3)
    found = shares(path_of(made, tmp_path, 100))
    assert found["host", "cudaDeviceSynchronize"] == 4
    assert ("device", "a") not in found


def test_a_blocking_copy_leads_to_its_own_copy(tmp_path: Path) -> None:
    made = Made().launch("a", 0, 10, 40, 1).call("cudaMemcpyAsync", 6, 54, 2)
    made.kernel("Memcpy DtoH (Device -> Pageable)", 50, 8, 2, cat="gpu_memcpy")
    made.launch("b", 70, 80, 20, 3)
    found = shares(path_of(made, tmp_path, 100))
    assert found["device", "Memcpy DtoH (Device -> Pageable)"] == 8
    assert found["device", "a"] == 40
    assert found["wait", "return from synchronisation"] == 2


def test_an_event_leads_to_the_other_stream(tmp_path: Path) -> None:
    made = Made().launch("compute", 0, 10, 50, 1).call("cudaEventRecord", 6, 1, 2)
    made.call("cudaStreamWaitEvent", 8, 1, 3).launch("nccl", 10, 63, 37, 4, stream=20)
    made.event("cuda_sync", "Stream Wait Event", 8, 1, 20, pid=0, device=0, stream=20,
               correlation=3, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)  # fmt: skip
    found = path_of(made, tmp_path, 100)
    assert shares(found) == {
        ("device", "nccl"): 37,
        ("device", "compute"): 50,
        ("wait", "between an event and the stream that waits for it"): 3,
        ("wait", "launch latency"): 10,
    }
    assert found.trust.confidence == "good"


def test_without_records_a_wait_between_streams_is_inferred_and_told(tmp_path: Path) -> None:
    made = Made().launch("compute", 0, 10, 50, 1)
    made.call("cudaStreamWaitEvent", 8, 1, 3).launch("nccl", 10, 63, 37, 4, stream=20)
    found = path_of(made, tmp_path, 100)
    assert shares(found)["device", "compute"] == 50
    assert found.trust.confidence == "doubtful"
    assert "inferred" in found.trust.why


def test_the_backward_thread_was_started_by_the_main_one(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#1", 0, 100).op("aten::mm", 0, 30).launch("a", 5, 10, 2, 1)
    made.op("MmBackward0", 40, 40, tid=AUTOGRAD).launch("b", 70, 80, 20, 2, tid=AUTOGRAD)
    assert shares(path_of(made, tmp_path, 100)) == {
        ("device", "b"): 20,
        ("wait", "launch latency"): 10,
        ("host", "MmBackward0"): 30,
        ("host", "Python / no operator"): 10,
        ("host", "aten::mm"): 30,
    }


def test_kernels_of_one_graph_follow_each_other(tmp_path: Path) -> None:
    made = Made().call("cudaGraphLaunch", 0, 90, 1)
    made.kernel("k1", 20, 10, 1).kernel("k2", 35, 65, 1)
    found = shares(path_of(made, tmp_path, 100))
    assert found["wait", "between operations of a stream"] == 5
    assert found["wait", "launch latency"] == 20


def test_a_window_that_ends_on_the_host_starts_there(tmp_path: Path) -> None:
    made = Made().launch("a", 0, 10, 50, 1).call("cudaDeviceSynchronize", 8, 55, 2)
    made.op("aten::cumsum", 80, 20)
    found = shares(path_of(made, tmp_path, 100))
    assert found["host", "aten::cumsum"] == 20
    assert found["device", "a"] == 50


def test_work_without_launches_follows_its_stream_and_is_doubted(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 5).kernel("a", 10, 20, 91).kernel("b", 40, 60, 92)
    found = path_of(made, tmp_path, 100)
    assert found.device_ns == 80_000
    assert found.trust.confidence == "doubtful"


def test_no_device_work_is_the_main_thread(tmp_path: Path) -> None:
    found = path_of(Made().op("aten::mm", 10, 50), tmp_path, 100)
    assert found.host_ns == 100_000
    assert shares(found) == {("host", "aten::mm"): 50, ("host", "Python / no operator"): 50}
    path_of(Made(), tmp_path, 100)


def test_operators_that_overlap_without_nesting_still_add_up(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 30).op("aten::add", 20, 40).op("aten::mul", 70, 10)
    assert shares(path_of(made, tmp_path, 100)) == {
        ("host", "aten::mm"): 20,
        ("host", "aten::add"): 10,  # cut where the one it began in ends
        ("host", "aten::mul"): 10,
        ("host", "Python / no operator"): 60,
    }
