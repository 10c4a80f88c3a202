"""The memory that a trial reports is the program's, not what looking at its results takes."""

from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.run import Target
from ridgeline.records.trial import Plan

pytestmark = [
    pytest.mark.reliability,  # whole programs: `make programs`, and CI
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux forgets it"),
]

MB = 2**20
PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(16, 8192)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    opt.zero_grad()
    net(torch.randn(1024, 16)).square().mean().backward()
    opt.step()
"""


@pytest.mark.parametrize("jitter", [0.0, 2.0**-23])
def test_a_float64_reference_is_not_the_programs_peak(tmp_path: Path, jitter: float) -> None:
    """Outputs of 32 MB: in float64, with their difference, they take 200 more."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    target = Target(kind="script", name=str(script), arguments=())
    peaks = []
    for watch in (0, 4):
        plan = Plan(steps=12, watch=watch, jitter=jitter if watch else 0.0)
        found = run(target, plan, tmp_path / str(watch), timeout_s=120)
        assert found.trial is not None, found.failure
        assert bool(found.trial.float64_error) == bool(watch)
        peaks.append(found.trial.peak_bytes)
    assert peaks[1] < peaks[0] + 40 * MB
