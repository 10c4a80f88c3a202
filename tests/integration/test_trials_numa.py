"""A whole program bound to the cores of one NUMA node, on a machine made up of cores 0 and 1."""

import os
from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done

pytestmark = [
    pytest.mark.reliability,  # whole programs: `make programs`, and CI
    pytest.mark.skipif(
        not {0, 1} <= os.sched_getaffinity(0), reason="cores 0 and 1 are not both here"
    ),
]

STEPS = 12
PROGRAM = """
import os, threading, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(1)
torch.set_num_threads(2)
class Seen(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, at):
        if at == 0:
            open(f"worker{len(os.sched_getaffinity(0))}", "w").close()
        return torch.full((512,), at / 256), at % 4
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for x, y in DataLoader(Seen(), batch_size=16, num_workers=1):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    held = [len(os.sched_getaffinity(int(one))) for one in os.listdir("/proc/self/task")]
    open(f"threads{max(held)}", "w").close()
"""


def trial(home: Path, source: str, *fixes: Asked) -> Trial:
    home.mkdir()
    script = home / "train.py"
    script.write_text(source.replace('open(f"', f'open(f"{home}/'))
    plan = Plan(fixes=fixes, steps=STEPS, watch=STEPS)
    found = run(Target(kind="script", name=str(script)), plan, home / "home", timeout_s=120)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


def test_a_bound_program_and_its_worker_compute_the_same_to_the_bit(tmp_path: Path) -> None:
    bound = Asked(fix="numa-binding", options={"cores": "1", "node": "1"})
    plain, found = trial(tmp_path / "plain", PROGRAM), trial(tmp_path / "bound", PROGRAM, bound)
    assert done(found.applied) == [because(Done.BOUND_TO_NODE, cores="1", node=1)]
    assert (tmp_path / "bound" / "worker1").exists()
    assert [one.name for one in (tmp_path / "bound").glob("threads*")] == ["threads1"]
    assert not (tmp_path / "plain" / "worker1").exists()
    assert len(found.watched) == STEPS
    assert found.watched == plain.watched
    assert found.tensors == plain.tensors


def test_a_program_that_binds_itself_is_not_applied_with_a_reason(tmp_path: Path) -> None:
    itself = PROGRAM.replace("net =", "os.sched_setaffinity(0, {0, 1})\nnet =")
    bound = Asked(fix="numa-binding", options={"cores": "1", "node": "1"})
    found = trial(tmp_path / "own", itself, bound)
    assert found.applied == ()
    assert found.not_applied[0].reason.code == Skip.PROGRAM_SETS
