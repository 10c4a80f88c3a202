import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.harness.usercode import child_process
from ridgeline.harness.usercode.child_process import end_leftovers, no_leftovers

MARK = "RIDGELINE_TEST_MARK"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_marked_process_in_a_session_of_its_own_is_ended_and_no_other() -> None:
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    ours = subprocess.Popen(sleep, env={**os.environ, MARK: "a"}, start_new_session=True)
    other = subprocess.Popen(sleep, env={**os.environ, MARK: "ab"}, start_new_session=True)
    try:
        assert end_leftovers(MARK, "a") == 1
        assert ours.wait(10) == -9
        assert other.poll() is None
    finally:
        other.kill()
        ours.kill()
        other.wait()


def test_where_there_is_no_proc_none_is_ended(tmp_path: Path) -> None:
    assert end_leftovers(MARK, "a", tmp_path / "proc") == 0


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: a socket's may have some 100 letters."""
    with tempfile.TemporaryDirectory(prefix="rl-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def heard(folder: Path) -> socket.socket:
    folder.mkdir()
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(folder / "listener"))
    found.listen()
    return found


@pytest.mark.skipif(not Path("/proc/net/unix").exists(), reason="needs /proc")
def test_sockets_that_nobody_hears_are_removed_and_no_others(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "SOCKETS_TIMEOUT_S", 0.05)
    heard(temporary / "pymp-before").close()
    with no_leftovers(MARK, "a"):
        heard(temporary / "pymp-ours").close()
        others = heard(temporary / "pymp-others")
        (temporary / "pymp-empty").mkdir()
        (temporary / "pymp-files").mkdir()
        (temporary / "pymp-files" / "text").touch()
    left = {path.name for path in temporary.iterdir()}
    assert left == {"pymp-before", "pymp-others", "pymp-empty", "pymp-files"}
    others.close()
