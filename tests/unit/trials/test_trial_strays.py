import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.trials import strays

MARK = "RIDGELINE_TEST_MARK"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_marked_process_in_a_session_of_its_own_is_ended_and_no_other() -> None:
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    ours = subprocess.Popen(sleep, env={**os.environ, MARK: "a"}, start_new_session=True)
    other = subprocess.Popen(sleep, env={**os.environ, MARK: "ab"}, start_new_session=True)
    try:
        assert strays.end(MARK, "a") == 1
        assert ours.wait(10) == -9
        assert other.poll() is None
    finally:
        other.kill()
        ours.kill()
        other.wait()


def test_where_there_is_no_proc_none_is_ended(tmp_path: Path) -> None:
    assert strays.end(MARK, "a", tmp_path / "proc") == 0
