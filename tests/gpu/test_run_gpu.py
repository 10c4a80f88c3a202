"""`ridgeline run` around programs that go wrong on a real GPU: they end as without it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
COMMAND = (sys.executable, "-m", "ridgeline", "run", "--steps", "4")
TRAIN = """\
import os, sys
import torch
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.ones(8, 64, device="cuda")
def step():
    optimizer.zero_grad(); loss = model(x).square().mean(); loss.backward(); optimizer.step()
    return loss
"""
OUT_OF_MEMORY = """
for i in range(STEPS): step()
kept = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
everything = torch.zeros(2**50, dtype=torch.uint8, device="cuda")
"""
FORKS = """
for i in range(30): step()
pid = os.fork()
if pid == 0:
    try: torch.ones(1, device="cuda")
    except RuntimeError as error: print("Cannot re-initialize CUDA" in str(error), flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
RESULTS = """
for i in range(40): print(step().item().hex())
print(torch.cuda.get_rng_state().sum().item(), torch.get_rng_state().sum().item())
"""


def both(folder: Path, source: str) -> tuple[Any, Any]:
    """Plain, and under the command."""
    (folder / "train.py").write_text(TRAIN + source)
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return tuple(
        subprocess.run(
            [*command, "train.py"],
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for command in ((sys.executable,), COMMAND)
    )


def kept(folder: Path, name: str) -> Any:
    (found,) = folder.glob(f".ridgeline/runs/*/{name}")
    return json.loads(found.read_bytes())


@pytest.mark.parametrize("steps", [0, 30])
def test_out_of_memory_leaves_what_was_alive_and_where(tmp_path: Path, steps: int) -> None:
    plain, ours = both(tmp_path, OUT_OF_MEMORY.replace("STEPS", str(steps)))
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (1, "")
    assert "OutOfMemoryError" in ours.stderr
    said = kept(tmp_path, "capture-rank0.json")["out_of_memory"]
    assert said["asked_bytes"] >= 2**50
    assert said["place"].endswith("train.py:14")
    assert said["step"] == steps
    run = kept(tmp_path, "run.json")
    assert run["status"] == "raised"
    assert run["why"].startswith("OutOfMemoryError")
    if steps == 0:  # while it settles, allocations carry their line
        place, size, _ = said["alive"][0]
        assert place.endswith("train.py:13")
        assert size == 2**30


def test_fork_after_cuda_ends_as_without_us(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, FORKS)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (0, "True\n3\n")
    assert kept(tmp_path, "run.json")["status"] == "finished"


def test_results_on_the_device_are_the_same_to_the_bit(tmp_path: Path) -> None:
    plain, ours = both(tmp_path, RESULTS)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    windows = [window["kind"] for window in kept(tmp_path, "capture-rank0.json")["windows"]]
    assert "traced" in windows
