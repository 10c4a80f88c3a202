"""`ridgeline report` on run directories that were left in every state."""

import csv
import gzip
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from ridgeline.cli import report as module
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run import Capture, RunFile, Target
from ridgeline.records.run_directory import RunDirectory, started
from ridgeline.report.renderers import browser
from tests.unit.diagnosis import made_up_run_directory as made_up

RUN = "1115-0102-train"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A finished run of 46 steps with a trace, in the folder of runs; we are in another folder."""
    runs, here = tmp_path / "runs", tmp_path / "here"
    runs.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    run = made_up.directory(
        runs, run=made_up.run_file(), captured=made_up.capture(), stepped=made_up.steps(),
        watched=made_up.telemetry(),
    )  # fmt: skip
    made_up.trace(run)
    return run


def report(run: RunDirectory, *outputs: str, more: tuple[str, ...] = ()) -> int:
    """Make the files as a person would, and return the exit code; our errors are raised."""
    typed = [word for output in outputs for word in ("-o", output)]
    where = ("--runs-dir", str(run.path.parent))
    code = module.command.main([run.name, *typed, *where, *more], standalone_mode=False)
    assert isinstance(code, int)
    return code


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def state(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]}


def test_every_format_is_made_at_once_and_the_run_stays_as_it_is(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(run.path)
    files = ("a.html", "a.md", "a.json", "a.csv", "a.speedscope.json", "a.perfetto.json",
             "a.perfetto.json.gz", "curves/")  # fmt: skip
    assert report(run, *files) == 0
    assert state(run.path) == before
    assert all(Path(file.rstrip("/")).exists() for file in files)
    assert capsys.readouterr().err.startswith("wrote a.html · a.md · ")
    document = json.loads(Path("a.json").read_text())
    verdict = document["because"]["sentence"]
    assert verdict in Path("a.md").read_text()
    assert document["name"] == RUN
    assert Path("a.html").read_text().startswith("<!doctype html>")
    assert json.loads(Path("a.speedscope.json").read_text())["profiles"]
    plain = Path("a.perfetto.json").read_bytes()
    assert gzip.decompress(Path("a.perfetto.json.gz").read_bytes()) == plain
    events = json.loads(plain)["traceEvents"]
    ours = [e["name"] for e in events if e.get("cat") == "ridgeline" and e["ph"] == "i"]
    assert ours[0] == verdict
    assert any(finding["claim"] in name for finding in document["findings"] for name in ours[1:])
    assert any(e["name"] == "aten::mm" for e in events)
    assert [p.parent.name for p in Path("curves").rglob("events.out.tfevents.*")] == [RUN]


def test_a_report_is_the_same_each_time_and_nothing_is_added(run: RunDirectory) -> None:
    report(run, "a.json", "curves/")
    first = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    report(run, "a.json", "curves/")
    assert {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()} == first


def test_a_table_has_a_row_for_each_step(run: RunDirectory) -> None:
    report(run, "a.csv")
    table, steps = rows("a.csv"), made_up.steps()
    assert [int(row["step"]) for row in table] == [step.index for step in steps]
    assert [float(row["ms"]) for row in table] == [step.dur_ns / 1e6 for step in steps]
    assert [row["window"] for row in table] == [step.window for step in steps]
    assert float(table[20]["device_forward_ms"]) == steps[20].device["forward"] / 1e6
    assert (table[20]["evaluation_ms"], table[20]["loss"], table[20]["tokens"]) == ("0.0", "", "")
    assert table[20]["samples"] == "32"


def test_telemetry_stands_beside_the_step_in_which_it_was_taken(run: RunDirectory) -> None:
    """Samples come every 100 ms, at the beginning of each step: i * 100 ms."""
    report(run, "a.csv")
    row = rows("a.csv")[20]
    figures = {name: float(row[name]) for name in ("program_cores", "gpu_percent", "gpu_power_w")}
    assert figures == {"program_cores": pytest.approx(1), "gpu_percent": 80, "gpu_power_w": 300}
    assert int(row["resident_bytes"]) == 2 * made_up.GIB


def test_what_is_not_known_of_a_step_is_empty_and_not_zero(run: RunDirectory) -> None:
    short = msgspec.structs.replace(
        made_up.steps()[20], index=46, start_ns=10**12, host={}, device={}, device_ns=None,
        detailed=False, samples=0, loss_broke="nan",
    )  # fmt: skip
    made_up.lines(run.steps_file(), [*made_up.steps(), short])
    report(run, "a.csv")
    row = rows("a.csv")[46]
    unknown = ("input_ms", "forward_ms", "device_ms", "device_forward_ms", "samples", "forwards",
               "gpu_percent", "program_cores", "host_bytes", "peak_bytes", "samples_s")  # fmt: skip
    assert {name: row[name] for name in unknown} == dict.fromkeys(unknown, "")
    assert (row["loss"], float(row["ms"])) == ("nan", short.dur_ns / 1e6)


def test_each_rank_has_its_rows_and_its_curves(run: RunDirectory) -> None:
    other = msgspec.structs.replace(made_up.capture(), rank=1, world=2)
    run.capture_file(1).write_bytes(msgspec.json.encode(other))
    made_up.lines(run.steps_file(1), made_up.steps()[:5])
    report(run, "a.csv", "curves/")
    ranks = [row["rank"] for row in rows("a.csv")]
    assert ranks == ["0"] * 46 + ["1"] * 5
    folders = sorted(p.parent.name for p in Path("curves").rglob("events.out.tfevents.*"))
    assert folders == ["rank0", "rank1"]


def test_the_rank_of_a_timeline_can_be_chosen(run: RunDirectory) -> None:
    other = msgspec.structs.replace(made_up.capture(), rank=1, world=2)
    run.capture_file(1).write_bytes(msgspec.json.encode(other))
    os.rename(run.trace_file(0), run.trace_file(1))
    assert report(run, "a.speedscope.json") == 0  # the first rank that has a trace
    assert report(run, "b.speedscope.json", more=("--rank", "1")) == 0
    with pytest.raises(RidgelineError) as without:
        report(run, "c.speedscope.json", more=("--rank", "0"))
    assert without.value.exit_code == 4
    with pytest.raises(UsageError):
        report(run, "c.speedscope.json", more=("--rank", "7"))
    assert not Path("c.speedscope.json").exists()


@pytest.mark.parametrize("ending", ["speedscope.json", "perfetto.json.gz"])
def test_without_a_trace_there_is_no_timeline_and_no_other_file_either(
    run: RunDirectory, ending: str
) -> None:
    run.trace_file().unlink()
    with pytest.raises(RidgelineError) as error:
        report(run, "a.html", f"a.{ending}")
    assert (error.value.exit_code, os.listdir()) == (4, [])
    assert RUN in error.value.message
    assert error.value.hint


def test_a_trace_that_was_not_packed_because_of_a_kill_is_used(run: RunDirectory) -> None:
    packed = run.trace_file()
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert report(run, "a.speedscope.json") == 0


@pytest.mark.parametrize("output", ["a.csv", "curves/"])
def test_without_a_step_there_is_no_table_and_no_curve(run: RunDirectory, output: str) -> None:
    run.steps_file().unlink()
    with pytest.raises(RidgelineError) as error:
        report(run, "a.html", output)
    assert (error.value.exit_code, os.listdir()) == (4, [])
    assert report(run, "a.html") == 0


@pytest.mark.parametrize(
    "output",
    ["a.txt", "a", "a.html.zip", ".", "..", "missing/a.html", "missing/curves/",
     "file/a.html", "file/"],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_before_anything_is(
    run: RunDirectory, output: str
) -> None:
    Path("file").write_text("mine")
    with pytest.raises(UsageError) as error:
        report(run, "a.json", output)
    assert os.listdir() == ["file"]
    assert error.value.exit_code == 2
    assert error.value.hint or "no folder" in error.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every folder")
@pytest.mark.parametrize("output", ["closed/a.html", "closed/curves/"])
def test_a_folder_that_may_not_be_written_to_is_refused(run: RunDirectory, output: str) -> None:
    Path("closed").mkdir(mode=0o500)
    with pytest.raises(UsageError):
        report(run, output)


def test_without_an_output_it_says_how_to_name_one(run: RunDirectory) -> None:
    with pytest.raises(UsageError) as error:
        report(run)
    assert "-o" in error.value.message


@pytest.mark.parametrize("name", ["run.json", "summary.json", "findings.json"])
def test_a_report_never_replaces_what_was_recorded(run: RunDirectory, name: str) -> None:
    before = state(run.path)
    with pytest.raises(UsageError):
        report(run, str(run.path / name))
    assert state(run.path) == before
    assert report(run, str(run.path / "report.html")) == 0


def test_a_damaged_run_is_reported_as_far_as_it_can_be_read(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run_file.write_bytes(b'{"name": "\x1b[31m')
    with run.steps_file().open("ab") as file:
        file.write(b"\x00 is no step\n")
    assert report(run, "a.html", "a.csv") == 4
    said = capsys.readouterr().err
    assert "run.json is damaged" in said
    assert "1 line of steps" in said
    assert "\x1b" not in said
    assert len(rows("a.csv")) == 46
    assert Path("a.html").exists()


def test_a_damaged_trace_costs_no_other_file(run: RunDirectory) -> None:
    run.trace_file().write_bytes(b"\x1f\x8b no trace")
    with pytest.raises(RidgelineError):
        report(run, "a.html", "a.speedscope.json")
    assert Path("a.html").exists()
    assert not Path("a.speedscope.json").exists()


def test_a_run_of_a_newer_version_is_refused(run: RunDirectory) -> None:
    run.run_file.write_bytes(b'{"schema": 99}')
    with pytest.raises(RidgelineError):
        report(run, "a.html")
    assert os.listdir() == []


def test_a_run_that_still_runs_is_reported_until_now(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    running = RunFile(
        name=RUN, target=Target(kind="script", name="train.py"), status="running",
        pid=os.getpid(), pid_started=started(os.getpid()),
        began_at=datetime.now(UTC).isoformat(),
    )  # fmt: skip
    run.run_file.write_bytes(msgspec.json.encode(running))
    run.capture_file().write_bytes(msgspec.json.encode(Capture(steps=46, stepping="optimizer")))
    assert report(run, "a.json", "a.csv") == 0
    assert f"{RUN} is still running" in capsys.readouterr().err
    assert json.loads(Path("a.json").read_text())["status"] == "running"


def test_a_missing_run_is_answered_with_the_nearest_names(run: RunDirectory) -> None:
    (run.path.parent / "1116-0102-evaluate").mkdir()
    with pytest.raises(RidgelineError) as error:
        module.command.main(
            ["trian.py", "-o", "a.html", "--runs-dir", str(run.path.parent)], standalone_mode=False
        )
    assert error.value.exit_code == 4
    assert RUN in error.value.hint
    assert "evaluate" not in error.value.hint


@pytest.mark.parametrize("ending", browser.ENDINGS)
def test_without_a_browser_it_is_said_before_the_work(
    run: RunDirectory, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(browser, "NAMES", ("chromium",))
    with pytest.raises(RidgelineError) as error:
        report(run, "a.html", f"a{ending}")
    assert os.listdir() == []
    assert browser.VARIABLE in error.value.hint


def test_if_the_browser_fails_the_page_is_there_to_be_printed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(page: str) -> bytes:
        raise RidgelineError("the browser ended")

    monkeypatch.setattr(browser, "find_browser", lambda: "chromium")
    monkeypatch.setattr(browser, "render_pdf", fails)
    with pytest.raises(RidgelineError) as error:
        report(run, "a.pdf")
    assert os.listdir() == ["a.html"]
    assert "a.html" in error.value.hint
    Path("b.html").write_text("mine")
    with pytest.raises(RidgelineError):
        report(run, "b.pdf")
    assert Path("b.html").read_text() == "mine"


def test_a_longer_run_says_which_steps_its_curves_have(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.report.renderers import tensorboard

    report(run, "all/")
    monkeypatch.setattr(tensorboard, "MAX_STEPS", 10)
    report(run, "some/")
    said = capsys.readouterr().err
    assert "one of 5 steps" in said
    sizes = [sum(p.stat().st_size for p in Path(f).rglob("events*")) for f in ("all", "some")]
    assert sizes[1] < sizes[0] / 3
