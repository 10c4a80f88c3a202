"""`ridgeline memory` as a person types it: files, runs, formats, and what is refused."""

import json
import pickle
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from ridgeline.cli import group
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run import Capture, OutOfMemory
from ridgeline.records.run_directory import RunDirectory

FRAMES = [{"filename": "/home/user/train.py", "line": 7, "name": "main"}]


def snapshot(size: int = 1 << 20, devices: int = 1) -> bytes:
    """Return a snapshot in which one line allocates a block on each device."""
    events = [
        [{"action": "alloc", "addr": 512, "size": size, "stream": 0, "time_us": 1,
          "frames": FRAMES}]
        for _ in range(devices)
    ]  # fmt: skip
    segments = [
        {"device": device, "address": 512, "total_size": 2 << 20, "blocks": [
            {"address": 512, "size": size, "requested_size": size, "state": "active_allocated",
             "frames": FRAMES}]}
        for device in range(devices)
    ]  # fmt: skip
    return pickle.dumps({"segments": segments, "device_traces": events})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(snapshot())
    return path


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(group, ["memory", *map(str, words)])


def test_a_snapshot_is_shown(file: Path) -> None:
    done = typed(file)
    assert done.exit_code == 0
    assert done.output.strip().startswith("peak 1 MiB")


def test_json_on_stdout_is_one_document(file: Path) -> None:
    assert json.loads(typed(file, "--json").stdout)["peak"]["bytes"] == 1 << 20


@pytest.mark.parametrize("ending", [".html", ".md", ".csv", ".json", ".perfetto.json"])
def test_every_format_is_written(ending: str, file: Path) -> None:
    output = file.with_name(f"report{ending}")
    assert typed(file, "-o", output).exit_code == 0
    text = output.read_text()
    assert ("traceEvents" in json.loads(text)) if "perfetto" in ending else ("train.py" in text)


def test_two_snapshots_are_compared(file: Path) -> None:
    later = file.with_name("later.pickle")
    later.write_bytes(snapshot(1 << 19))
    data = json.loads(typed(file, "--compare", later, "--json").stdout)
    assert data["changes"][0]["change_bytes"] == 1 << 19


def test_one_device_of_several_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(snapshot(devices=3))
    data = json.loads(typed(path, "--device", "2", "--json").stdout)
    assert [device["device"] for device in data["devices"]] == ["cuda:2"]
    assert isinstance(typed(path, "--device", "3").exception, UsageError)


def test_the_snapshot_of_a_run_is_found_and_one_of_a_shortage_comes_first(tmp_path: Path) -> None:
    run = tmp_path / "1115-120301-train"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "memory-rank0.pickle").write_bytes(snapshot(1 << 18))
    for words in ([run], ["train", "--runs-dir", tmp_path], ["latest", "--runs-dir", tmp_path]):
        assert json.loads(typed(*words, "--json").stdout)["peak"]["bytes"] == 1 << 18
    (run / "oom-rank1.pickle").write_bytes(snapshot(1 << 19))
    assert json.loads(typed(run, "--json").stdout)["peak"]["bytes"] == 1 << 19


def test_what_a_run_knows_of_its_shortage_is_used(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "1115-120301-train")
    run.path.mkdir()
    (run.path / "run.json").write_text("{}")
    shortage = OutOfMemory(
        asked_bytes=1, free_bytes=1 << 20, total_bytes=8 << 30, reserved_bytes=2 << 30,
        snapshot="oom-rank0.pickle",
    )  # fmt: skip
    capture = Capture(rank=0, out_of_memory=shortage)
    run.write_whole(run.capture_file(0), msgspec.json.encode(capture))
    (run.path / "oom-rank0.pickle").write_bytes(snapshot())
    data = json.loads(typed(run.path, "--json").stdout)
    assert data["outside_torch_bytes"] == (6 << 30) - (1 << 20)


def test_a_folder_with_one_snapshot_is_enough(file: Path) -> None:
    assert typed(file.parent).exit_code == 0
    file.with_name("second.pickle").write_bytes(snapshot())
    assert isinstance(typed(file.parent).exception, UsageError)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["absent.pickle"], RidgelineError),
        (["no/such/run"], RidgelineError),
        (["FILE", "--device", "5"], UsageError),
        (["FILE", "-o", "x.docx"], UsageError),
        (["FILE", "--compare", "FILE", "-o", "x.perfetto.json"], UsageError),
        (["FILE", "-o", "FILE"], UsageError),
        (["FILE", "--max-bytes", "many"], UsageError),
        (["FILE", "--max-bytes", "10B"], RidgelineError),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], kind: type[RidgelineError], file: Path
) -> None:
    done = typed(*(str(file) if word == "FILE" else word for word in words))
    assert isinstance(done.exception, kind)
    assert file.read_bytes() == snapshot()


def test_an_empty_snapshot_is_an_answer_but_cannot_be_compared(file: Path) -> None:
    empty = file.with_name("empty.pickle")
    empty.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    assert typed(empty).exit_code == 0
    assert isinstance(typed(file, "--compare", empty).exception, RidgelineError)


def test_trace_names_the_command_for_snapshots(file: Path) -> None:
    done = CliRunner().invoke(group, ["trace", str(file)])
    assert isinstance(done.exception, RidgelineError)
    assert "ridgeline memory" in done.exception.message
