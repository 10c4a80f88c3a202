"""`ridgeline runs` as a person types it, on directories that were left in every state."""

import contextlib
import io
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
import pytest

from ridgeline.cli import runs
from ridgeline.records.facts import because
from ridgeline.records.run import Capture, RunFile, Status, Step, Target
from ridgeline.records.run_directory import RunDirectory, runs_root, started
from ridgeline.records.run_summary import RunSummary, StepTimes
from ridgeline.records.verdict import LimitCode, Verdict
from tests.integration.cold_and_warm import Warm

USAGE, NOT_DONE = 2, 4


def made(
    folder: Path, name: str, *, hours: float = 1.0, status: Status = "finished", pid: int = 0
) -> RunDirectory:
    run = RunDirectory.make(runs_root(folder), name)
    file = RunFile(
        name=name,
        target=Target(kind="script", name="train.py"),
        status=status,
        pid=pid,
        pid_started=started(pid) if pid else 1.0,
        began_at=(datetime.now(UTC) - timedelta(hours=hours)).isoformat(),
    )
    run.write_whole("run.json", msgspec.json.encode(file))
    return run


def concluded(run: RunDirectory) -> RunDirectory:
    summary = RunSummary(
        name=run.name,
        run_dir=str(run.path),
        command="train.py",
        status="finished",
        verdict=Verdict(bound="input-bound", reason=because(LimitCode.WAITS_FOR_DATA, share=0.5)),
        step=StepTimes(median_ms=12.5, ci=(12.0, 13.0), counted=240, steps=200),
    )
    run.write_whole("summary.json", msgspec.json.encode(summary))
    return run


def with_steps(run: RunDirectory, number: int = 30) -> RunDirectory:
    lines = (
        Step(index=i, start_ns=i * 10_000_000, dur_ns=10_000_000 + i % 3, host={"forward": 10**7})
        for i in range(number)
    )
    run.append("steps.jsonl", b"".join(msgspec.json.encode(step) + b"\n" for step in lines))
    capture = Capture(steps=number, stepping="optimizer")
    run.write_whole("capture-rank0.json", msgspec.json.encode(capture))
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four runs: concluded, killed, running (this very process), damaged."""
    concluded(made(tmp_path, "1115-100000-train", hours=5))
    with_steps(made(tmp_path, "1115-110000-train", hours=4, status="running"))
    made(tmp_path, "1115-120000-eval", hours=3, status="running", pid=os.getpid())
    damaged = made(tmp_path, "1115-130000-gan", hours=2)
    damaged.run_file.write_bytes(b'{"name": "\x1b[31m')
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(runs_root(folder)))


def test_the_list_is_newest_first_with_status_steps_verdict_and_size(
    warm: Warm, folder: Path
) -> None:
    done = warm(["runs"], folder)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1].startswith(" 4 runs, ")
    assert lines[1].endswith(" in .ridgeline/runs")
    # The damaged run has no time of its own: its directory changed just now.
    assert [line.split()[0] for line in lines[4:8]] == [
        "1115-130000-gan",
        "1115-120000-eval",
        "1115-110000-train",
        "1115-100000-train",
    ]
    assert "damaged" in lines[4]
    assert "run.json is damaged: " in lines[4]
    assert "3 h ago" in lines[5]
    assert "running" in lines[5]
    assert lines[6].split()[4:6] == ["killed", "30"]
    assert "finished" in lines[7]
    assert "240" in lines[7]
    assert "input-bound" in lines[7]
    assert "ridgeline runs rm --keep 10" in done.out
    assert "\x1b" not in done.out


def test_each_way_a_run_cannot_be_read_is_named(warm: Warm, tmp_path: Path) -> None:
    made(tmp_path, "newer").write_whole("run.json", b'{"schema": 99}')
    made(tmp_path, "empty").write_whole("run.json", b"")
    made(tmp_path, "none").run_file.unlink()
    linked = made(tmp_path, "linked")
    linked.run_file.unlink()
    linked.run_file.symlink_to("/etc/passwd")
    document = warm(["runs", "--json"], tmp_path).document
    states = {run["name"]: (run["status"], run["damaged"]) for run in document["runs"]}
    status, why = states.pop("newer")
    assert status == "newer"
    assert why.startswith("run.json was written by a newer ridgeline")
    assert states == {
        "empty": ("damaged", "run.json is damaged: it is empty"),
        "none": ("damaged", "none is not a run: it has no run.json"),
        "linked": ("damaged", "run.json cannot be read: it is a link"),
    }
    text = " ".join(warm(["runs"], tmp_path).out.split())
    assert why in text
    assert all(reason in text for _, reason in states.values())


def test_as_json_it_is_one_document(warm: Warm, folder: Path) -> None:
    done = warm(["runs", "--json"], folder)
    document = done.document
    assert document["schema"] == "ridgeline.runs/1"
    by_name = {run["name"]: run for run in document["runs"]}
    assert by_name["1115-100000-train"]["verdict"] == "input-bound"
    assert by_name["1115-100000-train"]["step_ms"] == 12.5
    assert by_name["1115-110000-train"]["status"] == "killed"
    assert by_name["1115-130000-gan"]["damaged"] != ""
    assert document["bytes_on_disk"] == sum(run["bytes_on_disk"] for run in document["runs"]) > 0


def test_without_runs_it_says_how_to_make_one(warm: Warm, tmp_path: Path) -> None:
    done = warm(["runs"], tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "no runs in .ridgeline/runs" in done.out
    assert warm(["runs", "--json"], tmp_path).document["runs"] == []
    assert os.listdir(tmp_path) == []


def test_another_folder_can_be_named(warm: Warm, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    done = warm(["runs", "--runs-dir", str(runs_root(folder)), "--json"], tmp_path / "else")
    assert len(done.document["runs"]) == 4


def test_what_a_run_said_is_shown_again(warm: Warm, folder: Path) -> None:
    done = warm(["runs", "show", "1115-10"], folder)
    assert (done.code, done.err) == (0, "")
    assert "input-bound: 50 % of each step is spent waiting for data" in done.out
    document = warm(["runs", "show", "1115-10", "--json"], folder).document
    assert document["verdict"] == "input-bound"


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("1115-110000-train", "killed", 0),
        ("1115-120000-eval", "running", 0),
        ("1115-130000-gan", "damaged", NOT_DONE),
    ],
)
def test_what_a_killed_a_running_and_a_damaged_run_left_is_shown(
    warm: Warm, folder: Path, name: str, status: str, code: int
) -> None:
    done = warm(["runs", "show", name], folder)
    assert done.code == code
    assert bool(done.err) == bool(code)
    assert "Traceback" not in done.err + done.out
    assert done.out.strip() != ""
    assert "\x1b" not in done.out + done.err
    assert warm(["runs", "show", name, "--json"], folder).document["status"] == status


def test_a_damaged_capture_is_named_beside_a_summary_that_was_kept(
    warm: Warm, folder: Path
) -> None:
    run = RunDirectory(runs_root(folder) / "1115-100000-train")
    run.capture_file(0).write_bytes(b"{")
    done = warm(["runs", "show", run.name], folder)
    assert done.code == NOT_DONE
    assert run.capture_file(0).name in done.err
    assert "input-bound: 50 % of each step is spent waiting for data" in done.out


@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_run_of_a_newer_version_is_refused(warm: Warm, folder: Path, name: str) -> None:
    run = RunDirectory(runs_root(folder) / "1115-100000-train")
    whole = msgspec.json.decode((run.path / name).read_bytes())
    run.write_whole(name, msgspec.json.encode({**whole, "schema": 99}))
    done = warm(["runs", "show", run.name], folder)
    assert (done.code, done.out) == (NOT_DONE, "")
    assert name in done.err
    listed = {one["name"]: one for one in warm(["runs", "--json"], folder).document["runs"]}
    assert listed[run.name]["status"] == "newer"


def test_half_written_files_of_a_killed_run_are_removed(warm: Warm, folder: Path) -> None:
    killed = RunDirectory(runs_root(folder) / "1115-110000-train")
    running = RunDirectory(runs_root(folder) / "1115-120000-eval")
    old = [".run.json.0a1b2c3d", ".capture-rank0.json.00000000", ".trace-rank0.json.gz.part"]
    kept = [".run.json.ffffffff", ".watch-rank0.lock", ".mine.0a1b2c3d"]
    for name in (*old, *kept):
        (killed.path / name).touch()
    (running.path / old[0]).touch()
    for path in (*(killed.path / name for name in (*old, *kept[1:])), running.path / old[0]):
        os.utime(path, (1, 1))
    assert warm(["runs"], folder).code == 0
    left = set(os.listdir(killed.path))
    assert left.isdisjoint(old)
    assert left >= set(kept), "one may be being written, the others are none of these"
    assert (running.path / old[0]).exists()


def test_a_damaged_summary_is_made_again(warm: Warm, folder: Path) -> None:
    RunDirectory(runs_root(folder) / "1115-100000-train").summary_file.write_bytes(b"{")
    done = warm(["runs", "show", "1115-10"], folder)
    assert done.code == 0
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["show", "rm"])
@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("train", "any of 2 runs", USAGE),
        ("nothing", "is called nothing", NOT_DONE),
        ("./nothing", "no run at nothing", NOT_DONE),
        ("\x1b[31m", "\\x1b[31m", NOT_DONE),
    ],
)
def test_a_name_that_means_no_run_is_a_sentence(
    warm: Warm, folder: Path, command: str, name: str, said: str, code: int
) -> None:
    done = warm(["runs", command, name], folder)
    assert done.code == code
    assert said in done.err
    assert "\x1b" not in done.err
    assert len(names(folder)) == 4


def test_a_run_is_removed_by_name_and_what_was_freed_is_said(warm: Warm, folder: Path) -> None:
    done = warm(["runs", "rm", "1115-10", "1115-13", "1115-130000-gan"], folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("removed 2 runs, ")
    assert done.out.endswith("freed\n")
    assert names(folder) == ["1115-110000-train", "1115-120000-eval"]


def test_one_name_that_means_nothing_and_none_is_removed(warm: Warm, folder: Path) -> None:
    assert warm(["runs", "rm", "1115-10", "nothing"], folder).code == NOT_DONE
    assert len(names(folder)) == 4


def test_a_running_one_is_refused_without_force(warm: Warm, folder: Path) -> None:
    done = warm(["runs", "rm", "1115-10", "1115-12"], folder)
    assert done.code == NOT_DONE
    assert "still running, and nothing was removed" in done.err
    assert len(names(folder)) == 4
    assert warm(["runs", "rm", "1115-12", "--force"], folder).code == 0
    assert "1115-120000-eval" not in names(folder)


def test_all_leaves_the_running_one_and_says_so(warm: Warm, folder: Path) -> None:
    done = warm(["runs", "rm", "--all", "--yes"], folder)
    assert done.code == 0
    assert "removed 3 runs" in done.out
    assert "left 1115-120000-eval: still running" in done.err
    assert names(folder) == ["1115-120000-eval"]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_rm_all_without_a_terminal_removes_nothing(
    warm: Warm, folder: Path, more: list[str]
) -> None:
    done = warm(["runs", "rm", "--all", *more], folder)
    assert (done.code, done.out) == (USAGE, "")
    assert "3 runs" in done.err
    assert len(names(folder)) == 4


@pytest.mark.parametrize(("answer", "left"), [("n\n", 4), ("", 4), ("y\n", 1)])
def test_rm_all_asks_at_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    monkeypatch.chdir(folder)
    terminal = io.BytesIO(answer.encode())
    monkeypatch.setattr(runs.sys, "stdin", Terminal(terminal))
    with contextlib.suppress(click.Abort):
        runs.command.main(["rm", "--all"], standalone_mode=False)
    assert len(names(folder)) == left


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_keep_and_older_choose_by_age(warm: Warm, folder: Path) -> None:
    assert "removed 1 run," in warm(["runs", "rm", "--keep", "3"], folder).out
    assert "1115-100000-train" not in names(folder)
    assert "removed 0 runs" in warm(["runs", "rm", "--older", "3.5h", "--keep", "9"], folder).out
    assert "removed 1 run," in warm(["runs", "rm", "--older", "3.5h"], folder).out
    assert names(folder) == ["1115-120000-eval", "1115-130000-gan"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--all", "--keep", "1"], ["1115-10", "--all"], ["--older", "x"], ["--older", "7"]],
)
def test_a_choice_that_makes_no_sense_removes_nothing(
    warm: Warm, folder: Path, arguments: list[str]
) -> None:
    assert warm(["runs", "rm", *arguments], folder).code == USAGE
    assert len(names(folder)) == 4


def test_what_is_not_a_run_is_left_and_said(warm: Warm, folder: Path) -> None:
    notes = runs_root(folder) / "notes"
    notes.mkdir()
    (notes / "thesis.tex").write_text("years")
    done = warm(["runs", "rm", "--all", "--yes", "--json"], folder)
    assert done.code == NOT_DONE
    assert len(done.document["removed"]) == 3
    assert {left["name"] for left in done.document["left"]} == {"notes", "1115-120000-eval"}
    assert (notes / "thesis.tex").read_text() == "years"


def test_listing_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from ridgeline.cli import group; "
        "group.main(['runs', '--json'], standalone_mode=False); "
        "sys.exit(bool({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert done.returncode == 0
