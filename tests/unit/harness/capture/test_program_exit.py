"""When the program waits for the watcher at its end, and when it does not."""

import os
from pathlib import Path

import pytest

from ridgeline.harness.capture import live, program_exit
from ridgeline.harness.capture.recording import Journal
from ridgeline.records.run import Capture, Status


class EndedSession:
    """A session whose last words go to `journal`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def farewell(self, ended: Status, why: str) -> bool:
        return self._journal.capture(Capture(ended=ended, why=why))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    asked: list[Path] = []
    monkeypatch.setattr(program_exit, "wait_for", lambda path, patience_s: asked.append(path))
    monkeypatch.setattr(live, "session", EndedSession(Journal(tmp_path, 0)))
    return asked


def test_the_program_waits_for_the_watcher_after_its_last_capture(
    waits: list[Path], tmp_path: Path
) -> None:
    program_exit.farewell(str(tmp_path), "0")
    assert waits == [tmp_path / ".watch-rank0.lock"]


def test_on_a_full_disk_the_program_does_not_wait_for_the_watcher(
    waits: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    program_exit.farewell(str(tmp_path), "0")
    assert waits == []
    assert os.listdir(tmp_path) == []
