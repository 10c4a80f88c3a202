"""A run's directory: made for its user alone, written whole, read however it was left."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.records import run_directory
from ridgeline.records.run import SCHEMA, Capture, RunFile, Sampled, Step, Target, Telemetry
from ridgeline.records.run_directory import RunDirectory, runs_root

RUN = RunFile(name="r", target=Target(kind="script", name="train.py"))


def line(record: object) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def step(index: int) -> Step:
    return Step(index=index, start_ns=index * 10, dur_ns=10, host={"forward": 7})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.make(runs_root(tmp_path), "1115-120000-train")
    made.write_whole("run.json", msgspec.json.encode(RUN))
    return made


def test_a_run_directory_is_private_and_ignored_by_git(tmp_path: Path) -> None:
    run = RunDirectory.make(runs_root(tmp_path), "1115-120000-train")
    assert run.path == tmp_path / ".ridgeline" / "runs" / "1115-120000-train"
    for folder in (run.path, run.path.parent, run.path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (tmp_path / ".ridgeline" / ".gitignore").read_text() == "*\n"


def test_an_existing_folder_gets_no_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".ridgeline").mkdir()
    RunDirectory.make(runs_root(tmp_path), "a")
    assert not (tmp_path / ".ridgeline" / ".gitignore").exists()


def test_ranks_share_a_directory_and_two_runs_of_one_second_do_not(tmp_path: Path) -> None:
    root = runs_root(tmp_path)
    first = RunDirectory.make(root, "a", shared=True)
    assert RunDirectory.make(root, "a", shared=True).path == first.path
    assert RunDirectory.make(root, "a").name == "a-2"
    assert RunDirectory.make(root, "a").name == "a-3"


@pytest.mark.parametrize("part", [".ridgeline", ".ridgeline/runs", ".ridgeline/runs/a"])
def test_a_link_in_its_place_is_refused_and_not_followed(tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "project" / part
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(RidgelineError, match="is a link"):
        RunDirectory.make(runs_root(tmp_path / "project"), "a", shared=True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_that_another_user_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / ".ridgeline"
    planted.mkdir()
    os.chown(planted, 4242, 4242)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(RidgelineError, match="belongs to another user"):
        RunDirectory.make(runs_root(tmp_path), "a")
    assert list(planted.iterdir()) == []
    os.chown(tmp_path, 4242, 4242)  # who owns the folder owns what is in it
    assert RunDirectory.make(runs_root(tmp_path), "a").path.is_dir()


KILLED = """
import os, sys
from pathlib import Path
from ridgeline.records.run_directory import RunDirectory
run, fatal, calls = RunDirectory(Path(sys.argv[1])), int(sys.argv[2]), 0
def deadly(real):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), 9)
        return real(*arguments, **options)
    return call
for name in ("open", "write", "close", "replace"):
    setattr(os, name, deadly(getattr(os, name)))
line = Path(sys.argv[1], "line").read_bytes()
for i in range(2):
    run.append("steps.jsonl", line)
    run.write_whole("capture-rank0.json", b'{"steps": %d}' % i)
"""


@pytest.mark.parametrize("fatal", range(1, 15))
def test_a_run_killed_at_any_system_call_is_readable(run: RunDirectory, fatal: int) -> None:
    (run.path / "line").write_bytes(line(step(0)))
    done = subprocess.run([sys.executable, "-c", KILLED, str(run.path), str(fatal)])
    assert done.returncode == -9
    assert run.run() == RUN
    read = run.steps()
    assert read == (step(0),) * len(read)
    assert read.damaged == 0
    capture = run.capture()
    assert (0 if capture is None else 1 + capture.steps) in (len(read) - 1, len(read))


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".ridgeline").write_text("")
    with pytest.raises(RidgelineError, match="not a directory"):
        RunDirectory.make(runs_root(tmp_path), "a")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\x1bb", "x" * 300])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RidgelineError, match="cannot be the name"):
        RunDirectory.make(runs_root(tmp_path), name)


@pytest.mark.parametrize("name", ["", ".", "..", "../run.json", "/etc/passwd", "a\0b"])
def test_a_files_name_that_leads_elsewhere_is_refused(run: RunDirectory, name: str) -> None:
    for write in (run.append, run.write_whole):
        with pytest.raises(RidgelineError):
            write(name, b"x")
    with pytest.raises(RidgelineError):
        run.write_whole(run.path.parent / "run.json", b"x")


def test_files_are_named_by_rank(run: RunDirectory) -> None:
    named = [
        [getattr(run, f"{kind}_file")(rank).name for rank in (0, 1)]
        for kind in ("steps", "telemetry", "capture", "trace", "memory", "allocations", "lock")
    ]
    assert named == [
        ["steps.jsonl", "steps-rank1.jsonl"],
        ["telemetry.jsonl", "telemetry-rank1.jsonl"],
        ["capture-rank0.json", "capture-rank1.json"],
        ["trace-rank0.json.gz", "trace-rank1.json.gz"],
        ["memory-rank0.pickle", "memory-rank1.pickle"],
        ["allocations-rank0.msgpack", "allocations-rank1.msgpack"],
        [".watch-rank0.lock", ".watch-rank1.lock"],
    ]


def test_written_records_are_read_back(run: RunDirectory) -> None:
    for index in range(3):
        run.append(run.steps_file(), line(step(index)))
    run.append("steps-rank1.jsonl", line(step(7)))
    run.append("telemetry.jsonl", line(Telemetry(at_ns=5)))
    run.append("python-20.jsonl", line(Sampled(pid=20)))
    run.append("python-3.jsonl", line(Sampled(pid=3)))
    for rank in (10, 2, 0):
        run.write_whole(f"capture-rank{rank}.json", msgspec.json.encode(Capture(rank=rank)))
    assert run.run() == RUN
    assert run.steps() == (step(0), step(1), step(2))
    assert run.steps().damaged == 0
    assert run.steps(1) == (step(7),)
    assert run.telemetry() == (Telemetry(at_ns=5),)
    assert [sampled.pid for sampled in run.sampled()] == [3, 20]
    assert [capture.rank for capture in run.captures()] == [0, 2, 10]


def test_missing_files_are_read_as_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "none")
    assert (run.steps(), run.telemetry(3), run.sampled(), run.captures()) == ((), (), (), ())
    assert (run.capture(), run.summary(), run.size()) == (None, None, 0)
    with pytest.raises(RidgelineError, match=r"no run\.json"):
        run.run()


def test_a_file_cut_at_any_byte_loses_at_most_its_last_line(run: RunDirectory) -> None:
    whole = b"".join(line(step(index)) for index in range(4))
    for cut in range(len(whole) + 1):
        run.steps_file().write_bytes(whole[:cut])
        read = run.steps()
        assert len(read) in (whole[:cut].count(b"\n"), whole[:cut].count(b"\n") + 1)
        assert read == tuple(step(index) for index in range(len(read)))
        assert read.damaged == 0


def test_damaged_lines_are_skipped_and_counted(run: RunDirectory) -> None:
    bad = [b"{", b"[]", b"\xff\xfe", b"null", b'{"index": "x"}', b"[" * 100_000, b'{"a":"\x00"}']
    pieces = [line(step(0)), *(b + b"\n" for b in bad), b"\n", b"  \n", line(step(1))]
    run.steps_file().write_bytes(b"".join(pieces))
    read = run.steps()
    assert read == (step(0), step(1))
    assert read.damaged == len(bad)


def test_a_line_too_long_costs_that_line(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "MAX_LINE_BYTES", 200)
    for length in (199, 200, 201, 400, 401, 1000):
        long = b'"' + b"x" * (length - 3) + b'"\n'
        run.steps_file().write_bytes(line(step(0)) + long + line(step(1)))
        read = run.steps()
        assert read == (step(0), step(1))
        assert read.damaged == 1


def test_a_file_too_large_is_read_in_part_and_the_rest_is_counted(
    run: RunDirectory,
) -> None:
    whole = b"".join(line(step(index)) for index in range(10))
    run.steps_file().write_bytes(whole)
    most = len(line(step(0))) * 4 + 5
    read = run_directory.read_lines(run.steps_file(), Step, most)
    assert read == tuple(step(index) for index in range(4))
    assert read.unread_bytes == len(whole) - most


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"\xff", b'{"name": 3}', b"[" * 100_000])
def test_a_damaged_run_file_is_an_error(run: RunDirectory, damage: bytes) -> None:
    run.run_file.write_bytes(damage)
    with pytest.raises(RidgelineError, match="is damaged"):
        run.run()


def test_a_damaged_capture_leaves_the_others(run: RunDirectory) -> None:
    run.write_whole("capture-rank0.json", msgspec.json.encode(Capture(rank=0)))
    run.write_whole("capture-rank1.json", b'{"rank"')
    assert [capture.rank for capture in run.captures()] == [0]
    assert len(run.damaged_captures()) == 1
    assert "capture-rank1.json is damaged" in run.damaged_captures()[0]


def test_a_newer_schema_is_refused_by_name(run: RunDirectory) -> None:
    newer = {"schema": SCHEMA + 1, "name": 3, "target": "changed"}
    run.write_whole("run.json", msgspec.json.encode(newer))
    run.write_whole("capture-rank0.json", msgspec.json.encode(newer))
    for read in (run.run, run.captures, run.status):
        with pytest.raises(RidgelineError, match="newer ridgeline"):
            read()


def test_unknown_fields_of_the_same_schema_are_ignored(run: RunDirectory) -> None:
    run.write_whole("run.json", msgspec.json.encode({**msgspec.to_builtins(RUN), "later": 1}))
    assert run.run() == RUN


def test_links_and_pipes_are_neither_read_nor_written(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(line(step(0)))
    run.steps_file().symlink_to(outside)
    os.mkfifo(run.telemetry_file())
    with pytest.raises(RidgelineError, match="it is a link"):
        run.steps()
    with pytest.raises(RidgelineError, match="not a plain file"):
        run.telemetry()
    for file in (run.steps_file(), run.telemetry_file()):
        with pytest.raises(OSError):  # noqa: PT011  (ELOOP or ENXIO, and no waiting)
            run.append(file, b"x\n")
    assert outside.read_bytes() == line(step(0))
    run.write_whole("steps.jsonl", b"")  # takes the link's place
    assert outside.read_bytes() == line(step(0))


def test_a_full_disk_leaves_the_old_file_and_no_half_line(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.append("steps.jsonl", line(step(0)))
    real, written = os.write, []

    def half(descriptor: int, data: bytes) -> int:
        written.append(1)
        if len(written) == 1:
            return real(descriptor, bytes(data[: len(data) // 2]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        run.append("steps.jsonl", line(step(1)))
    written.clear()
    with pytest.raises(OSError, match="No space left"):
        run.write_whole("run.json", b"x" * 100)
    monkeypatch.undo()
    assert run.steps_file().read_bytes() == line(step(0))
    assert run.run() == RUN
    assert sorted(os.listdir(run.path)) == ["run.json", "steps.jsonl"]


def test_the_run_directory_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, ridgeline.records.run_directory; print(*{'torch', 'numpy', 'psutil', 'shutil',"
        " 'tempfile', 'random', 'subprocess', 'threading', 'ridgeline.records.run_summary'}"
        " & set(sys.modules))"
    )
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, msgspec; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= set(bare.stdout.split())
