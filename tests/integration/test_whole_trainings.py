"""`--outcome`: whole trainings of real scripts in real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.comparison.outcome import OutcomeSettings, compare_outcomes
from ridgeline.records.parity import OutcomeCode
from ridgeline.records.run import Target
from ridgeline.records.trial import TrialFailure

TRAIN = """
import os, sys
import torch
from torch import nn

x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    at = torch.randint(0, 64, (16,))
    loss = nn.functional.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"epoch 1: val err {nn.functional.mse_loss(model(x), y).item():.6f} of 1")
"""


def script(folder: Path, name: str, old: str = "", new: str = "") -> Target:
    path = folder / name
    assert not old or old in TRAIN
    path.write_text(TRAIN.replace(old, new) if old else TRAIN)
    return Target(kind="script", name=str(path))


def test_two_scripts_are_trained_with_the_same_seeds(tmp_path: Path) -> None:
    script(tmp_path, "base.py")
    # A program that ends with os._exit runs no exit handler, and has its losses all the same.
    script(tmp_path, "head.py", "print(", "print('loss 5'); print(")
    (tmp_path / "head.py").write_text(
        (tmp_path / "head.py").read_text() + "sys.stdout.flush()\nos._exit(0)\n"
    )
    command = [
        sys.executable, "-m", "ridgeline", "compare", "base.py", "head.py", "--outcome",
        "--seeds", "2", "--json",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["verdict"] == "EQUIVALENT"
    assert told["reason"]["code"] == OutcomeCode.IDENTICAL
    assert told["source"] == "losses"
    assert told["seed_spread"] > 0
    assert [(one["arm"], one["seed"]) for one in told["trainings"]] == [
        ("baseline", 0), ("candidate", 0), ("baseline", 1), ("candidate", 1),
    ]  # fmt: skip
    assert {one["losses"] for one in told["trainings"]} == {30}
    assert len(ended.stderr.splitlines()) == 4  # one line for each finished training


def test_a_worse_program_is_not_equivalent_by_a_printed_metric(tmp_path: Path) -> None:
    outcome = compare_outcomes(
        script(tmp_path, "base.py"),
        script(tmp_path, "head.py", "lr=0.1", "lr=0.0001"),
        OutcomeSettings(seeds=2, metric="val err", margin=0.5),
    )
    assert outcome.source == "printed"
    assert outcome.verdict != "EQUIVALENT"  # two seeds are too few to call it DIFFERENT
    assert outcome.equivalence is not None
    assert outcome.equivalence.difference > 0.5


@pytest.mark.slow
def test_a_failing_training_and_a_fixed_seed_are_named(tmp_path: Path) -> None:
    base = script(tmp_path, "base.py")
    broken = script(tmp_path, "broken.py", "for step", "raise ValueError('no data')\nfor step")
    outcome = compare_outcomes(base, broken, OutcomeSettings(seeds=2))
    assert outcome.failed
    assert outcome.reason.cause is not None
    assert outcome.reason.cause.code == TrialFailure.EXITED
    assert outcome.reason.cause.facts == {"exit_code": 1, "last_line": "ValueError: no data"}
    fixed = script(tmp_path, "fixed.py", "x = ", "torch.manual_seed(3)\nx = ")
    outcome = compare_outcomes(fixed, base, OutcomeSettings(seeds=5))
    assert outcome.reason.code == OutcomeCode.SEED_FIXED
    assert outcome.reason.facts["place"] == f"{fixed.name}:6"
    assert len(outcome.trainings) == 3


@pytest.mark.slow
def test_a_scaled_loss_is_compared_unscaled(tmp_path: Path) -> None:
    scaled = script(
        tmp_path, "scaled.py", "    loss.backward()\n    optimizer.step()\n",
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n",
    )  # fmt: skip
    text = Path(scaled.name).read_text()
    made = "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\nfor step"
    Path(scaled.name).write_text(text.replace("for step", made))
    base = script(tmp_path, "base.py")
    outcome = compare_outcomes(base, scaled, OutcomeSettings(seeds=2))
    assert outcome.verdict == "EQUIVALENT"
