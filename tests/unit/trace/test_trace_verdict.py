"""The one sentence, and what the whole study says of a file."""

from pathlib import Path

import msgspec
import pytest
from traces_made import Made

from ridgeline.records.facts import because
from ridgeline.records.trace import TraceStudy, TraceVerdict
from ridgeline.report.reasons import explain
from ridgeline.trace.reading.reader import parse
from ridgeline.trace.study import study


def told(path: Path) -> TraceStudy:
    return study([path], cache=False)[0]


def starved() -> Made:
    made = Made(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    for i in range(4):
        made.span("enumerate(DataLoader)#x.__next__", 1000 * i, 700)
        made.frame("data.py(41): __getitem__", 1000 * i + 10, 680)
        made.launch("gemm", 1000 * i + 710, 1000 * i + 720, 280, i + 1)
    return made


def test_what_the_device_waited_for_comes_first_with_its_line(tmp_path: Path) -> None:
    found = told(starved().write(tmp_path))
    assert explain(found.verdict) == (
        "the device idles 66 % of 3.28 ms, 97 % of that waiting for input (data.py:41)"
    )


def test_a_busy_device_is_told_by_its_work(tmp_path: Path) -> None:
    made = Made()
    for i in range(10):
        made.launch("volta_sgemm_128x64_nn", 10 * i, 1000 + 100 * i, 99, i + 1)
    said = explain(told(made.write(tmp_path)).verdict)
    assert said == "the device is busy 99 % of 999 µs, 100 % of it matmul"


def test_a_device_that_copies_is_busy_with_nothing(tmp_path: Path) -> None:
    made = Made()
    for i in range(10):
        made.launch("Memcpy HtoD (Pageable -> Device)", 100 * i, 1000 + 100 * i, 85, i + 1)
    found = told(made.write(tmp_path)).verdict
    assert found is not None
    assert (found.code, found.facts["copied_share"]) == (TraceVerdict.COPIES, 1.0)
    assert found.facts["share"] == pytest.approx(0.86, abs=0.01)


def test_a_job_of_gpus_recorded_on_the_host_alone_says_so(tmp_path: Path) -> None:
    made = Made(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    made.op("aten::copy_", 0, 100)
    facts = {"evidence": "nccl", "op": "aten::copy_", "ns": 100_000}
    assert told(made.write(tmp_path)).verdict == because(TraceVerdict.GPU_NOT_RECORDED, **facts)


def test_a_file_cut_among_its_events_gets_no_figure(tmp_path: Path) -> None:
    path = starved().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-700])
    found = told(path)
    assert found.verdict is not None
    assert found.verdict.code == TraceVerdict.UNKNOWN
    assert "cut short" in str(found.verdict.facts["doubt"])
    assert all(device.busy_ns is None for device in found.devices)
    assert found.idle.total_ns is None


def test_a_file_without_its_last_brackets_has_all_its_events(tmp_path: Path) -> None:
    path = starved().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-2])
    found = told(path)
    assert found.idle.total_ns is not None
    assert "all events are there" in found.validation[0].claim


def test_a_device_not_in_the_list_is_called_as_the_others_all_are(tmp_path: Path) -> None:
    made = starved().kernel("late", 5000, 10, device=3)
    assert [d.name for d in told(made.write(tmp_path)).devices] == ["NVIDIA H100 80GB HBM3"] * 2


def test_kernels_without_ids_still_have_a_union(tmp_path: Path) -> None:
    made = Made()
    for i in range(10):
        made.call("cudaLaunchKernel", 100 * i, 5, i + 1)
        made.kernel("gemm", 100 * i + 10, 50)
    found = told(made.write(tmp_path))
    assert found.devices[0].busy_ns == 500_000
    assert {check.id for check in found.validation} >= {"unpaired", "no-launch"}


def test_an_answer_survives_the_cache_word_for_word(tmp_path: Path) -> None:
    found = told(starved().write(tmp_path))
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceStudy) == found
    assert parse(tmp_path / "made.json").origin.events == 16
