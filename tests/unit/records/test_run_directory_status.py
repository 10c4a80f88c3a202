"""Whether a run still runs, what its size is, and removing it without harm."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.records.run import Capture, Environment, RunFile, Status, Target
from ridgeline.records.run_directory import RunDirectory, is_process_alive, runs_root, started

RUN = RunFile(name="r", target=Target(kind="script", name="train.py"))


def write(run: RunDirectory, **fields: object) -> None:
    run.write_whole("run.json", msgspec.json.encode(msgspec.structs.replace(RUN, **fields)))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.make(runs_root(tmp_path), "1115-120000-train")
    write(made)
    return made


def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize("status", ["finished", "raised", "interrupted", "stopped", "killed"])
def test_an_ended_run_has_its_status_on_disk(run: RunDirectory, status: Status) -> None:
    write(run, status=status, pid=os.getpid(), pid_started=started(os.getpid()))
    assert run.status() == status
    assert not run.busy()


def test_a_living_process_is_running(run: RunDirectory) -> None:
    write(run, pid=os.getpid(), pid_started=started(os.getpid()))
    assert run.status() == "running"
    assert run.busy()


def test_a_dead_process_without_an_end_record_was_killed(run: RunDirectory) -> None:
    write(run, pid=dead_pid(), pid_started=1.0)
    assert run.status() == "killed"
    run.write_whole("capture-rank0.json", b"{ damaged")
    assert run.status() == "killed"
    run.write_whole("capture-rank0.json", msgspec.json.encode(Capture(ended="running")))
    assert run.status() == "killed"
    run.write_whole("capture-rank0.json", msgspec.json.encode(Capture(ended="raised")))
    assert run.status() == "raised"


def test_another_process_with_the_same_id_is_not_the_program(run: RunDirectory) -> None:
    write(run, pid=os.getpid(), pid_started=started(os.getpid()) - 1)
    assert run.status() == "killed"


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and left as a zombie
    assert not is_process_alive(child.pid, 0)
    child.wait()


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1])
def test_no_process_is_not_alive(pid: int) -> None:
    assert not is_process_alive(pid, 0)


def test_a_run_on_another_machine_runs_while_it_is_written_to(run: RunDirectory) -> None:
    write(run, environment=Environment(host="elsewhere"), pid=dead_pid(), pid_started=1.0)
    assert run.status() == "running"
    os.utime(run.run_file, (1e9, 1e9))
    assert run.status() == "killed"


def test_the_size_of_a_run_is_that_of_its_own_files(run: RunDirectory, tmp_path: Path) -> None:
    before = run.size()
    big = tmp_path / "big"
    big.write_bytes(b"x" * 10_000)
    (run.path / "link").symlink_to(big)
    (run.path / "folder").symlink_to(tmp_path)
    (run.path / ".ridgeline" / "traces").mkdir(parents=True)
    (run.path / ".ridgeline" / "traces" / "x").write_bytes(b"y" * 100)
    assert run.size() == before + 100


def test_removing_deletes_the_directory_and_follows_no_link(
    run: RunDirectory, tmp_path: Path
) -> None:
    keep = tmp_path / "keep"
    (keep / "deep").mkdir(parents=True)
    (keep / "deep" / "file").write_text("mine")
    (run.path / "folder").symlink_to(keep)
    (run.path / "file").symlink_to(keep / "deep" / "file")
    (run.path / ".ridgeline" / "traces").mkdir(parents=True)
    size = run.size()
    assert run.remove() == size
    assert not run.path.exists()
    assert (keep / "deep" / "file").read_text() == "mine"


def test_a_damaged_run_can_be_removed(run: RunDirectory) -> None:
    run.run_file.write_bytes(b"{")
    run.append("steps.jsonl", b"{}\n")
    (run.path / ".capture-rank0.json.0a1b2c3d").write_bytes(b"half")
    run.remove()
    assert not run.path.exists()


def test_a_run_killed_before_its_first_file_can_be_removed(tmp_path: Path) -> None:
    run = RunDirectory.make(runs_root(tmp_path), "1115-120000-train")
    run.remove()
    assert not run.path.exists()


def test_removing_refuses_anything_but_a_run(tmp_path: Path, run: RunDirectory) -> None:
    notes = run.path.parent / "notes"
    notes.mkdir()
    (notes / "thesis.tex").write_text("years")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = run.path.parent / "link"
    link.symlink_to(run.path)
    for path in (notes, elsewhere, link, tmp_path / "none", tmp_path):
        with pytest.raises(RidgelineError, match="was not removed"):
            RunDirectory(path).remove()
    assert (notes / "thesis.tex").exists()
    assert elsewhere.exists()
    assert run.run() == RUN


def test_outside_the_runs_folder_only_our_own_files_are_removed(tmp_path: Path) -> None:
    run = RunDirectory.make(tmp_path / "results", "first")
    write(run)
    run.append("steps.jsonl", b"{}\n")
    (run.path / "checkpoint.pt").write_bytes(b"weeks of work")
    (run.path / "steps").mkdir()
    (run.path / ".ridgeline" / "traces" / "x").mkdir(parents=True)
    (run.path / ".ridgeline" / "runs" / "other").mkdir(parents=True)
    run.remove()
    assert sorted(os.listdir(run.path)) == [".ridgeline", "checkpoint.pt", "steps"]
    assert os.listdir(run.path / ".ridgeline") == ["runs"]


def test_outside_the_runs_folder_a_directory_with_only_our_files_is_removed(tmp_path: Path) -> None:
    run = RunDirectory.make(tmp_path / "results", "first")
    write(run)
    run.remove()
    assert not run.path.exists()
