"""Jobs of several ranks: a late rank is named, equal ranks are not, and bad ends are reported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.reliability

TIMEOUT_S = 240
PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

fault, late = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)


class Texts(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        if fault == "data" and late in (rank, -1):
            time.sleep(0.01)
        return torch.randn(32)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        if fault == "forward" and rank == late:
            time.sleep(0.05)
        return x + self.linear(x)


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def prepare():
    if rank == late:
        time.sleep(0.04)


model = nn.Sequential(Block(), Block())
if "sharded" in sys.argv:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
elif fault != "by-hand":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, batch in enumerate(DataLoader(Texts(), batch_size=4)):
    if fault == "by-hand":
        prepare()
    loss = model(batch).square().mean()
    loss.backward()
    if fault == "by-hand":
        average(model)
    optimizer.step()
    optimizer.zero_grad()
    if rank == late and fault == "killed":
        if number == 45:
            time.sleep(1.5)  # steps are written once a second: the next one writes all of these
        if number == 55:
            os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def job(folder: Path, *arguments: str, ranks: int = 2) -> dict[str, Any]:
    """Return the summary of a job, which must exist."""
    (folder / "train.py").write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    subprocess.run(
        [sys.executable, *launcher, "-m", "ridgeline", "run", "train.py", *arguments],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    (summary,) = folder.glob(".ridgeline/runs/*/summary.json")
    found: dict[str, Any] = json.loads(summary.read_bytes())
    return found


def late_finding(summary: dict[str, Any]) -> dict[str, Any]:
    (found,) = [f for f in summary["findings"]["findings"] if f["rule"] == "late-rank"]
    return dict(found)


@pytest.mark.parametrize(
    ("arguments", "ranks", "line"),
    [
        (("data", "1"), 2, "time.sleep(0.01)"),
        (("forward", "2"), 3, "time.sleep(0.05)"),
        (("forward", "0", "sharded"), 2, "time.sleep(0.05)"),
        (("by-hand", "1"), 2, "time.sleep(0.04)"),
    ],
)
def test_a_late_rank_is_named_with_its_line(
    arguments: tuple[str, ...], ranks: int, line: str, tmp_path: Path
) -> None:
    summary = job(tmp_path, *arguments, ranks=ranks)
    assert summary["verdict"]["bound"] == "late-rank"
    assert summary["verdict"]["reason"]["facts"]["rank"] == int(arguments[1])
    found = late_finding(summary)
    assert (found["file"], found["line"]) == ("train.py", line_of(line))
    assert found["share_pct"] < 100
    assert found["gain_bound"] < 200


@pytest.mark.parametrize("arguments", [("data", "-1"), ("none", "0", "sharded")])
def test_no_rank_is_called_late_when_all_are_equal(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    summary = job(tmp_path, *arguments)
    assert summary["verdict"]["bound"] not in ("late-rank", "unknown")
    findings = summary["findings"]["findings"]
    assert not [f for f in findings if f["rule"] == "late-rank"]
    sharded = [f for f in findings if f["rule"] in ("exposed-collectives", "small-collectives")]
    if "sharded" in arguments:
        assert not [f for f in sharded if "bucket" in f["change"]]


def test_a_job_whose_rank_was_killed_is_concluded_and_says_so(tmp_path: Path) -> None:
    summary = job(tmp_path, "killed", "1")
    assert summary["step"]["counted"] > 20
    assert [(end["rank"], end["status"]) for end in summary["rank_ends"]] == [(1, "killed")]
