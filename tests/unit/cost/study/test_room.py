"""Free memory, and the watch that speaks before the kernel kills."""

import subprocess
import sys
import threading

import psutil
import pytest
import torch

from ridgeline.cost.study.target import free_bytes, watched

CPU = torch.device("cpu")


def test_free_memory_is_at_most_what_the_machine_has() -> None:
    assert 0 < free_bytes(CPU) <= psutil.virtual_memory().total


def test_the_watch_ends_with_its_block() -> None:
    with watched("work", "hint", 4):
        assert "ridgeline-memory-watch" in {t.name for t in threading.enumerate()}
    assert "ridgeline-memory-watch" not in {t.name for t in threading.enumerate()}
    with pytest.raises(KeyError), watched("work", "hint", 4):
        raise KeyError
    assert "ridgeline-memory-watch" not in {t.name for t in threading.enumerate()}


def test_a_program_that_takes_the_last_memory_ends_with_a_sentence() -> None:
    code = (
        "import time\n"
        "from ridgeline.cost.study import target\n"
        "target.MIN_FREE_BYTES = 2**62\n"
        "with target.watched('net.py:build', 'try --meta', 4):\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 4
    assert done.stderr.startswith("ridgeline: net.py:build does not fit: ")
    assert done.stderr.endswith("try --meta\n")
