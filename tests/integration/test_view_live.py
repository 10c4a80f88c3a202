"""`ridgeline view` beside a real program under `ridgeline run`: every step reaches the page, and at
the end the report does."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.records.run_directory import RunDirectory, runs_root
from tests.unit.viewer.served import serving

pytestmark = pytest.mark.reliability

PROGRAM = """
import time
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(120):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
"""
STEPS = 120
TIMEOUT_S = 240.0
POLL_S = 0.3


def test_every_step_streams_until_the_report_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "ridgeline", "run", "--full", "-q", "train.py"]
    folder = runs_root(tmp_path)
    with serving(folder) as served, subprocess.Popen(command, cwd=tmp_path) as program:
        indices: list[int] = []
        stages: list[str] = []
        while_running: set[int] = set()
        offsets = {"steps": -1, "telemetry": -1}
        points = 0
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end and "over" not in stages:
            time.sleep(POLL_S)
            runs = served.viewer.library.runs()
            if not runs or not runs[0].run_file.exists():
                continue
            after = "&".join(f"{name}={offset}" for name, offset in offsets.items())
            news = served.get(f"/run/{runs[0].name}/live?{after}").json
            indices = [] if news["began_over"] else indices
            indices += [step[0] for step in news["steps"]]
            points += len(news["telemetry"])
            stages.append(news["stage"])
            offsets = news["offsets"]
            if news["stage"] == "running":
                while_running.add(len(indices))
        name = runs[0].name
        report = served.get(f"/run/{name}/report")
        page = served.get(f"/run/{name}").text
        assert program.wait(TIMEOUT_S) == 0
    assert indices == list(range(STEPS))
    assert len(while_running) >= 3  # they came while the program ran, and not at the end
    assert points >= 3
    assert list(dict.fromkeys(stages)) in (["running", "over"], ["running", "concluding", "over"])
    assert "<iframe" in page
    assert report.body == RunDirectory(folder / name).page_file.read_bytes()
