"""Which of the runs in the folder is the one that a search begins with."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import TargetError
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.integrations.run_lifecycle import finish_run
from ridgeline.optimization import diagnosis
from ridgeline.records.run import RunFile, Target
from ridgeline.records.run_directory import RunDirectory
from tests.unit.diagnosis import made_up_run_directory as made

TARGET = Target(kind="script", name="train.py")


def _record(path: Path) -> None:
    path.mkdir(exist_ok=True)
    run = RunFile(name=path.name, target=TARGET)
    (path / "run.json").write_bytes(msgspec.json.encode(run))


def _asked_for(command: Sequence[str]) -> Path:
    return Path(command[command.index("--run-dir") + 1])


def _diagnosed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[Path], None],
    code: int | None = 0,
) -> RunDirectory:
    def run_to_end(command: Sequence[str], *rest: object) -> Ended:
        program(_asked_for(command))
        return Ended(code=code, wall_ns=1)

    monkeypatch.setattr(diagnosis, "run_to_end", run_to_end)
    return diagnosis._run(TARGET, tmp_path, 10.0, {})


def test_a_run_that_another_command_makes_meanwhile_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(own: Path) -> None:
        _record(tmp_path / "0101-000000-other")
        _record(own)
        _record(tmp_path / "9999-999999-other")

    found = _diagnosed(tmp_path, monkeypatch, program)
    assert "other" not in found.name
    assert found.run().name == found.name


def test_the_last_attempt_of_a_launcher_is_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(own: Path) -> None:
        for name in (own.name, f"{own.name}-restart1", f"{own.name}-restart2"):
            _record(tmp_path / name)

    assert _diagnosed(tmp_path, monkeypatch, program).name.endswith("-restart2")


def test_where_nothing_could_be_recorded_no_empty_run_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TargetError):
        _diagnosed(tmp_path, monkeypatch, lambda own: None)
    assert os.listdir(tmp_path) == []


def test_where_no_step_was_seen_the_hint_names_processes_that_the_program_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(own: Path) -> None:
        _record(own)
        RunDirectory(own).steps_file().write_text("")

    hints = []
    for number, program in enumerate((slow, _record)):
        home = tmp_path / str(number)
        home.mkdir()
        with pytest.raises(TargetError) as raised:
            _diagnosed(home, monkeypatch, program, code=None)
        hints.append(raised.value.hint)
    assert ["processes" in hint for hint in hints] == [False, True]


@pytest.fixture
def concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    run = made.directory(
        tmp_path, run=made.run_file(), captured=made.capture(), stepped=made.steps(),
        watched=made.telemetry(),
    )  # fmt: skip
    made.trace(run)
    finish_run(run, ended_ns=1)
    return run


def test_a_run_that_its_watcher_has_concluded_is_not_concluded_again(
    concluded: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = diagnosis.concluded_case(concluded)[0]
    monkeypatch.setattr(diagnosis, "concluded_case", lambda directory: pytest.fail("again"))
    found = diagnosis.read_diagnosis(concluded, "train.py")
    assert found.step_ms == again.step.median_ms
    assert found.findings == again.findings.findings
    assert found.ground.device == made.capture().device.kind


def test_a_run_without_a_stored_case_is_concluded(concluded: RunDirectory) -> None:
    concluded.case_file.unlink()
    assert diagnosis.read_diagnosis(concluded, "train.py").step_ms > 0
