"""Snapshots of every shape that torch has written, and files that are none."""

import gzip
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.output import formatted
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.memory.snapshot import read_snapshot
from ridgeline.memory.study import study_snapshot
from ridgeline.records.memory import MemoryNote, MemoryStudy
from ridgeline.report.views.memory import memory_report
from tests.unit.memory.simulated_allocator import Gpt, SimulatedAllocator, snapshot, trained, write

Change = Callable[[dict[str, Any]], Any]


def gpt(**options: Any) -> Gpt:
    return trained(3, layers=2, **options)


def studied(path: Path, data: object) -> MemoryStudy:
    return study_snapshot(write(path / "x.pickle", data))


def codes(study: MemoryStudy) -> set[str]:
    reasons = [*study.notes, *(note for device in study.devices for note in device.notes)]
    return {reason.code for reason in reasons}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["x.pickle", "x.pickle.gz", "packed, without the ending"])
def test_every_protocol_is_read_plain_and_packed(protocol: int, name: str, tmp_path: Path) -> None:
    made = gpt()
    path = write(tmp_path / name, snapshot(made.memory), protocol)
    if "packed" in name:
        path.write_bytes(gzip.compress(path.read_bytes()))
    study = study_snapshot(path)
    assert study.devices[0].peak.bytes == made.memory.peak


def without_addresses_of_blocks(data: dict[str, Any]) -> None:
    for segment in data["segments"]:
        for block in segment["blocks"]:
            del block["address"]


def with_history(data: dict[str, Any]) -> None:
    """Blocks as torch 2.0 wrote them: frames and sizes in a history, the newest first."""
    without_addresses_of_blocks(data)
    for segment in data["segments"]:
        for block in segment["blocks"]:
            frames, size = block.pop("frames"), block.pop("requested_size")
            if block["state"] == "active_allocated":
                block["history"] = [{"addr": 1, "real_size": size, "frames": frames}]


def without_new_fields(data: dict[str, Any]) -> None:
    del data["external_annotations"], data["allocator_settings"]
    for segment in data["segments"]:
        del segment["is_expandable"], segment["segment_pool_id"]
    for event in data["device_traces"][0]:
        del event["time_us"], event["compile_context"], event["user_metadata"]


@pytest.mark.parametrize("change", [without_addresses_of_blocks, with_history, without_new_fields])
def test_older_shapes_give_the_same_peak_and_kinds(change: Change, tmp_path: Path) -> None:
    made = gpt()
    new = studied(tmp_path, snapshot(made.memory)).devices[0].peak
    data = pickle.loads(pickle.dumps(snapshot(made.memory)))
    change(data)
    old = studied(tmp_path, data)
    assert old.devices[0].peak.bytes == made.memory.peak
    assert old.devices[0].peak.by_kind == new.by_kind


def test_without_a_clock_moments_are_numbers_of_events(tmp_path: Path) -> None:
    data = pickle.loads(pickle.dumps(snapshot(gpt().memory)))
    without_new_fields(data)
    study = studied(tmp_path, data)
    assert MemoryNote.NO_TIMES in codes(study)
    assert not study.devices[0].has_times
    assert 0 < study.devices[0].peak.at_ns < study.devices[0].events


def test_segments_alone_give_what_is_in_use(tmp_path: Path) -> None:
    made = gpt(records=False)
    for data in (snapshot(made.memory), snapshot(made.memory)["segments"]):
        study = studied(tmp_path, data)
        assert not study.has_history
        assert MemoryNote.NO_HISTORY in codes(study)
        assert study.devices[0].peak.bytes == made.memory.requested
        assert study.devices[0].peak.by_kind


def test_without_stacks_everything_is_unknown_and_that_is_said(tmp_path: Path) -> None:
    made = gpt(has_stacks=False)
    study = studied(tmp_path, snapshot(made.memory))
    assert study.devices[0].peak.bytes == made.memory.peak
    assert set(study.devices[0].peak.by_kind) == {"unknown"}
    assert {MemoryNote.NO_STACKS, MemoryNote.NO_STEPS} <= codes(study)


def test_several_devices_are_told_apart_and_the_highest_peak_comes_first(tmp_path: Path) -> None:
    small, large = trained(2, layers=1), trained(2, layers=3, device=2)
    path = write(tmp_path / "x.pickle", snapshot(small.memory, large.memory))
    study = study_snapshot(path)
    assert [d.device for d in study.devices] == ["cuda:2", "cuda:0"]
    assert [d.peak.bytes for d in study.devices] == [large.memory.peak, small.memory.peak]
    assert [d.device for d in study_snapshot(path, device=0).devices] == ["cuda:0"]
    with pytest.raises(UsageError):
        study_snapshot(path, device=1)


def test_an_empty_snapshot_has_no_devices(tmp_path: Path) -> None:
    assert studied(tmp_path, snapshot()).devices == ()
    unused = SimulatedAllocator()
    assert studied(tmp_path, snapshot(unused)).devices == ()


def test_damaged_events_are_left_out_and_counted(tmp_path: Path) -> None:
    made = gpt()
    data = snapshot(made.memory)
    trace = data["device_traces"][0]
    trace.insert(50, None)
    trace.insert(60, {"action": "alloc", "addr": "text", "size": 1})
    trace.insert(70, {"action": "alloc", "addr": 1 << 70, "size": 1})
    trace.insert(80, {"action": ["alloc"], "addr": 1, "size": 1})
    trace.insert(90, {"action": "alloc", "addr": 1, "size": -5})
    study = studied(tmp_path, data)
    assert study.devices[0].peak.bytes == made.memory.peak
    assert [n.facts for n in study.notes if n.code == MemoryNote.DAMAGED] == [{"count": 5}]


def test_actions_that_are_not_known_are_passed_over(tmp_path: Path) -> None:
    made = gpt()
    data = snapshot(made.memory)
    data["device_traces"][0].insert(9, {"action": "user_defined", "addr": 0, "size": 0})
    data["device_traces"][0].append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
    assert studied(tmp_path, data).devices[0].peak.bytes == made.memory.peak


STRANGE = (None, -1, 0, 1 << 40, 1 << 63, 1 << 64, -(1 << 63), "x", [], {}, 1.5, float("nan"),
           True, "alloc", "oom", "segment_free", "free_completed", b"x")  # fmt: skip


def places_in(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each list or dict, with each index or key of it."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from places_in(data[key])


@pytest.mark.parametrize("seed", range(30))
def test_strange_values_are_passed_over_or_refused_with_a_sentence(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    made = trained(2, layers=1, annotates=True)
    data = pickle.loads(pickle.dumps(snapshot(made.memory)))
    for container, key in chance.sample(list(places_in(data)), 12):
        container[key] = chance.choice(STRANGE)
    path = write(tmp_path / "x.pickle", data)
    cause: BaseException | None = None
    try:
        report = memory_report(study_snapshot(path), full=True)
        assert all(formatted(report, ending) for ending in (".json", ".csv", ".html"))
    except RidgelineError as error:
        cause = error.__cause__
    assert cause is None  # else the child failed, and did not say itself what is wrong


FOREIGN = {
    "empty": b"",
    "gzip of nothing": gzip.compress(b""),
    "a zip archive": b"PK\x03\x04" + bytes(30),
    "JSON": json.dumps({"traceEvents": []}).encode(),
    "text": b"hello world, this is no pickle",
    "a list": pickle.dumps([1, 2, 3]),
    "a dict of something else": pickle.dumps({"weights": [1.0]}),
    "segments that are no list": pickle.dumps({"segments": 5}),
    "a pickle of torch": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.",
    "a pickle and more": pickle.dumps({"segments": []}) + b"more",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_gets_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(RidgelineError) as raised:
        read_snapshot(path)
    assert str(path) in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_truncated_file_gets_a_sentence(is_packed: bool, tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot(trained(1, layers=1).memory))
    whole = gzip.compress(whole) if is_packed else whole
    path = tmp_path / "x.pickle"
    for percent in (10, 50, 99):
        path.write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(RidgelineError):
            read_snapshot(path)


def test_a_file_that_does_not_exist_or_may_not_be_read_gets_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pickle", tmp_path):
        with pytest.raises(RidgelineError):
            read_snapshot(path)


def test_frames_of_cpp_are_kept_apart_from_python(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    cpp = [("??", 0, "c10::cuda::CUDACachingAllocator::malloc"), ("ATen/Empty.cpp", 3, "at::empty")]
    with memory.at(("/home/user/train.py", 3, "<module>"), *reversed(cpp)):
        memory.allocate(1 << 20, "unknown")
    owner = studied(tmp_path, snapshot(memory)).devices[0].peak.owners[0]
    assert owner.place is not None
    assert (owner.place.file, owner.place.line) == ("/home/user/train.py", 3)
