"""Ctrl-C ends the program at once, with a word and not a traceback, and leaves nothing running."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.cold_and_warm import COMMAND, interruptible

SOURCE = """
import os, time
from pathlib import Path
import torch
from torch import nn

def sleeps():
    Path(f"sleeping.{os.getpid()}").touch()
    time.sleep(30)
    return nn.Linear(4, 4)

def sleeps_when_really_built():
    if torch.empty(0).is_meta:  # the look ahead at how large it will be
        return nn.Linear(4, 4)
    return sleeps()
"""
ENOUGH_S = 15
"""Far more than stopping takes, and half of what sleeping does."""


def _when_asleep(folder: Path, process: subprocess.Popen[str]) -> int:
    """The process that sleeps: the program, or its copy that looks ahead."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for path in folder.glob("sleeping.*"):
            return int(path.suffix[1:])
        time.sleep(0.05)
    raise AssertionError("the target was never built")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("name", ["sleeps", "sleeps_when_really_built"])
def test_ctrl_c_while_the_target_builds(name: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SOURCE)
    with subprocess.Popen(
        [*COMMAND, "model", f"slow.py:{name}", "--input", "2x4"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    ) as process:
        sleeper = _when_asleep(tmp_path, process)
        assert (sleeper == process.pid) == (name == "sleeps_when_really_built")
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=ENOUGH_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "ridgeline: stopped")
    assert not _is_running(sleeper)
