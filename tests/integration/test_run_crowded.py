"""On a crowded machine, time that other programs take is told from the program's own waiting."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.harness.capture.step_times import read_account

pytestmark = pytest.mark.reliability

SLEEPS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, at):
        time.sleep(0.002)
        return torch.ones(16)


model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Slow(), batch_size=8)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step == 200:
        break
"""


@pytest.fixture
def crowd() -> Iterator[None]:
    """Two busy processes for each processor."""
    count = 2 * len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for one in busy:
        one.kill()
        one.wait()


@pytest.mark.skipif(read_account() is None, reason="the kernel keeps no account of threads")
def test_a_loader_that_sleeps_stays_the_limit_on_a_crowded_machine(
    tmp_path: Path, crowd: None
) -> None:
    (tmp_path / "train.py").write_text(SLEEPS)
    subprocess.run(
        [sys.executable, "-m", "ridgeline", "run", "-q", "-o", "result.json", "train.py"],
        cwd=tmp_path, check=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["verdict"] == "input-bound"
    assert found["telemetry"]["preempted_share"] is not None
    assert found["step"]["taken"] == 201
