"""A concluded run is stored, read again unchanged, and refused once it is out of date."""

import sys
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis import stored_case as module
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.stored_case import store_case, stored_case
from ridgeline.integrations.run_lifecycle import finish_run
from ridgeline.records.run import CallSeen
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from tests.unit.diagnosis import made_up_run_directory as made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    captured = made.capture(calls=(CallSeen(file="train.py", line=3, name="item", times=4),))
    found = made.directory(
        tmp_path, run=made.run_file(), captured=captured, stepped=made.steps(),
        watched=made.telemetry(),
    )  # fmt: skip
    made.trace(found)
    return found


@pytest.fixture
def stored(run: RunDirectory) -> tuple[RunSummary, Case]:
    summary, case = concluded_case(run)
    assert case is not None
    store_case(run, summary, case)
    return summary, case


def test_what_is_read_equals_what_was_stored(
    run: RunDirectory, stored: tuple[RunSummary, Case]
) -> None:
    summary, case = stored
    again = stored_case(run)
    assert again is not None
    assert again[0] == summary
    assert replace(again[1], sources=case.sources) == case
    assert again[1].sources.roots == case.sources.roots
    assert again[1].sources.called == {"train.py": {3: frozenset({"item"})}}


@pytest.mark.usefixtures("stored")
def test_a_case_is_refused_once_a_recorded_file_has_changed(run: RunDirectory) -> None:
    with run.steps_file().open("ab") as file:
        file.write(msgspec.json.encode(made.steps()[0]) + b"\n")
    assert stored_case(run) is None


@pytest.mark.usefixtures("stored")
def test_a_case_is_kept_when_only_the_conclusion_is_written_again(run: RunDirectory) -> None:
    run.run_file.write_bytes(msgspec.json.encode(made.run_file(exit_code=3)))
    run.summary_file.write_bytes(b"{}")
    assert stored_case(run) is not None


@pytest.mark.usefixtures("stored")
def test_a_case_that_other_code_has_made_is_refused(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "code_fingerprint", lambda: "another")
    assert stored_case(run) is None


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("damage", [b"", b"not compressed", zlib.compress(b"\x01")])
def test_a_damaged_case_is_refused(run: RunDirectory, damage: bytes) -> None:
    run.case_file.write_bytes(damage)
    assert stored_case(run) is None


@pytest.mark.usefixtures("stored")
def test_a_case_whose_content_is_cut_off_is_refused(run: RunDirectory) -> None:
    data = zlib.decompress(run.case_file.read_bytes())
    run.case_file.write_bytes(zlib.compress(data[: len(data) // 2]))
    assert stored_case(run) is None


def test_a_run_without_a_stored_case_has_none(run: RunDirectory) -> None:
    assert stored_case(run) is None


def test_the_end_of_a_run_stores_the_summary_that_it_writes(run: RunDirectory) -> None:
    summary = finish_run(run, time.perf_counter_ns(), missing="the watcher's samples")
    again = stored_case(run)
    assert again is not None
    assert again[0] == summary
    assert "the watcher's samples" in again[0].missing


@pytest.mark.skipif(sys.platform != "linux", reason="file modes")
@pytest.mark.usefixtures("stored")
def test_only_its_user_can_read_a_stored_case(run: RunDirectory) -> None:
    assert run.case_file.stat().st_mode & 0o077 == 0
