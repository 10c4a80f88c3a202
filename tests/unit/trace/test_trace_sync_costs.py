"""What waits cost, in made traces: the device's idle time after them, not the waiting itself."""

from pathlib import Path

import pytest
from traces_made import HOST, Made

from ridgeline.records.sites import SyncSite
from ridgeline.trace.analyses.copy_sites import copy_sites
from ridgeline.trace.analyses.synchronisation import SyncCosts, sync_costs
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of


def costs(trace: Trace) -> SyncCosts:
    return sync_costs(trace, Links(trace), window_of(trace, "all"))


def sites(made: Made, folder: Path) -> tuple[SyncSite, ...]:
    return costs(made.trace(folder)).sites


def item(made: Made, at: float, until: float, number: int) -> None:
    """An `.item()` of the user's log() from `at` on, for which the device is done at `until`."""
    made.frame("train.py(7): log", at, until - at + 12)
    made.frame("<built-in method item of Tensor object at 0x7f00>", at + 1, until - at + 10)
    made.op("aten::item", at + 2, until - at + 8)
    made.op("aten::_local_scalar_dense", at + 3, until - at + 6)
    made.call("cudaMemcpyAsync", at + 4, 3, number)
    made.kernel("Memcpy DtoH (Device -> Pinned)", until, 2, number, cat="gpu_memcpy", bytes=4)
    made.call("cudaStreamSynchronize", at + 8, until + 4 - (at + 8), number + 1)


def saturated() -> Made:
    """Two steps of 1000 µs: a kernel of 900 queued at once, then a number is waited for, and the
    next kernel comes 50 µs after it."""
    made = Made()
    for step in range(2):
        at = 1000 * step
        made.span(f"ProfilerStep#{step}", at, 1000).frame("train.py(1): main", at, 1000)
        made.launch("gemm", at + 10, at + 20, 900, 10 * step + 1)
        item(made, at + 30, at + 920, 10 * step + 2)
    made.span("ProfilerStep#2", 2000, 200).launch("gemm", 2010, 2020, 100, 90)
    return made


def test_a_long_wait_costs_only_what_the_device_idles_after_it(tmp_path: Path) -> None:
    (site,) = sites(saturated(), tmp_path)
    assert site.place is not None
    assert (site.place.line, site.place.function) == (7, "log")
    assert site.ops == ("aten::item", "aten::_local_scalar_dense")
    assert (site.via, site.direction) == (("item",), "to host")
    assert site.times == pytest.approx(2 / 3)
    assert site.bytes == pytest.approx(8 / 3)
    assert site.host_ns == pytest.approx(2 * 886e3 / 3)
    # from 922 to the next kernel at 1020, twice: less than the host would have been ahead
    assert site.idle_ns == pytest.approx(2 * 98e3 / 3, rel=0.01)


def test_a_wait_for_a_device_that_is_done_gives_no_credit_for_a_slow_host(tmp_path: Path) -> None:
    """The host is what the device waits for: a number read costs its own 20 µs, no more."""
    made = Made().span("ProfilerStep#0", 0, 1000).frame("train.py(1): main", 0, 1000)
    for i in range(5):
        made.op("aten::mm", 200 * i, 150).launch("gemm", 200 * i + 140, 200 * i + 150, 10, i + 1)
    item(made, 365, 372, 20)
    (site,) = sites(made, tmp_path)
    assert site.idle_ns == pytest.approx(15e3, abs=2e3)


def test_printing_a_tensor_is_one_asking_with_all_its_waits(tmp_path: Path) -> None:
    made = saturated().frame("train.py(9): show", 2100, 80)
    made.frame("<built-in function print>", 2101, 78)
    made.frame("torch/_tensor.py(568): __repr__", 2102, 76)
    made.frame("torch/_tensor_str.py(700): _str", 2103, 74)
    for i in range(3):
        at = 2110 + 20 * i
        made.op("aten::item", at, 15).call("cudaStreamSynchronize", at + 5, 8, 100 + i)
    shown = next(site for site in sites(made, tmp_path) if "print" in site.via)
    assert shown.via == ("print", "torch/_tensor.py:__repr__")
    assert shown.times == pytest.approx(1 / 3)
    assert shown.waits == pytest.approx(1)


def test_waits_of_profilers_and_of_other_threads_are_not_the_programs(tmp_path: Path) -> None:
    made = saturated().call("cudaEventSynchronize", 200, 300, 131, 102)
    made.frame("torch/profiler/profiler.py(9): step", 2150, 40)
    made.call("cudaDeviceSynchronize", 2155, 30, 142)
    assert len(sites(made, tmp_path)) == 1


def test_what_going_through_again_needs_is_kept(tmp_path: Path) -> None:
    replay = costs(saturated().trace(tmp_path)).replay
    assert replay is not None
    assert (replay.steps, replay.stays) == (3, (False,))
    waits = [i for i, dur in enumerate(replay.dur_ns) if dur < 0]
    assert len(waits) == 2
    assert [replay.site[i] for i in waits] == [0, 0]
    assert sum(dur for dur in replay.dur_ns if dur > 0) == 1_904_000


def test_a_trace_without_waits_or_a_device_has_no_costs(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100).op("aten::mm", 10, 5)
    assert costs(made.trace(tmp_path, "host.json")) == SyncCosts()
    made.launch("gemm", 12, 20, 50, 1)
    assert costs(made.trace(tmp_path)) == SyncCosts()


def test_a_copy_on_a_stream_beside_the_kernels_says_so(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 1000).launch("gemm", 5, 20, 900, 1)
    for stream, number in ((7, 2), (20, 3)):
        made.op("aten::copy_", 10 * number, 8, HOST).call("cudaMemcpyAsync", 10 * number, 5, number)
        made.kernel("Memcpy HtoD (Pinned -> Device)", 925, 40, number, cat="gpu_memcpy",
                    stream=stream, bytes=64)  # fmt: skip
    trace = made.trace(tmp_path)
    found = copy_sites(trace, Links(trace), window_of(trace, "all"))
    assert sum(site.copies for site in found) == 2
