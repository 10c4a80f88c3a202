"""Changes of loader, optimizer and settings on whole programs, each in a process of its own."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done, option

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

STEPS = 12
PROGRAM = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9)
data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
"""
RESISTS = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset
torch.manual_seed(1)
torch.set_num_threads(2)
class Stream(IterableDataset):
    def __iter__(self):
        for self.at in range(48):
            yield torch.full((8,), float(self.at)) / 50
net = nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
for x in DataLoader(Stream(), batch_size=4):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trial(
    home: Path, source: str, *fixes: str, variables: Mapping[str, str] | None = None
) -> Trial:
    home.mkdir(exist_ok=True)
    script = home / "train.py"
    script.write_text(source)
    options = {"loader-workers": {"workers": "2"}, "threads": {"threads": "1"}}
    asked = tuple(Asked(fix=name, options=options.get(name, {})) for name in fixes)
    plan = Plan(fixes=asked, steps=STEPS, watch=STEPS)
    target = Target(kind="script", name=str(script))
    found = run(target, plan, home / "home", variables=variables, timeout_s=120)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return trial(tmp_path_factory.mktemp("plain"), PROGRAM)


def test_workers_that_stay_give_three_epochs_of_the_same_losses(
    baseline: Trial, tmp_path: Path
) -> None:
    found = trial(tmp_path, PROGRAM, "loader-workers", "persistent-workers", "prefetch")
    assert {one.fix: done([one]) for one in found.applied} == {
        "loader-workers": [option("DataLoader", "num_workers", 2)],
        "persistent-workers": [option("DataLoader", "persistent_workers", True)],
        "prefetch": [option("DataLoader", "prefetch_factor", 4)],
    }
    assert all(one.lines == ((f"{tmp_path}/train.py", 8),) for one in found.applied)
    assert len(found.watched) == STEPS
    assert found.watched == baseline.watched
    assert found.tensors == baseline.tensors


def test_an_update_over_lists_and_dropped_gradients_round_alike(
    baseline: Trial, tmp_path: Path
) -> None:
    found = trial(tmp_path, PROGRAM, "foreach-optimizer", "set-to-none")
    assert done(found.applied) == [
        option("RMSprop", "foreach", True),
        option("zero_grad", "set_to_none", True),
    ]
    for ours, theirs in zip(found.watched, baseline.watched, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
        assert ours.gradients == theirs.gradients


def test_threads_are_set_where_nobody_else_sets_them(baseline: Trial, tmp_path: Path) -> None:
    found = trial(tmp_path, PROGRAM, "threads", variables={"OMP_NUM_THREADS": ""})
    if len(os.sched_getaffinity(0)) > 1:
        assert done(found.applied) == [because(Done.SETTING, statement="torch.set_num_threads(1)")]
    else:
        assert found.not_applied[0].reason.code == Skip.ALREADY_SET
    for ours, theirs in zip(found.watched, baseline.watched, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_a_program_that_resists_is_not_applied_with_a_reason(tmp_path: Path) -> None:
    names = (
        "loader-workers", "persistent-workers", "prefetch", "pin-memory", "non-blocking",
        "cudnn-autotune", "threads", "expandable-segments", "foreach-optimizer", "set-to-none",
    )  # fmt: skip
    found = trial(tmp_path, RESISTS, *names, variables={"OMP_NUM_THREADS": ""})
    assert found.applied == ()
    skips = {one.fix: one.reason for one in found.not_applied}
    assert set(skips) == set(names)
    assert skips["loader-workers"] == because(Skip.STREAM_KEEPS_POSITION, attribute="at")
    assert skips["persistent-workers"] == because(Skip.NO_WORKERS)
    assert skips["threads"].code in (Skip.PROGRAM_SETS, Skip.ALREADY_SET)
    assert skips["foreach-optimizer"] == because(Skip.NOTHING_LEFT_TO_SET)
    assert skips["set-to-none"] == because(Skip.NO_ZERO_GRAD_CALL)
    assert len(found.watched) == STEPS


def test_a_stream_is_read_once_and_in_its_order_by_its_one_worker(tmp_path: Path) -> None:
    stream = RESISTS.replace("for self.at in", "for at in").replace("self.at", "at")
    plain = trial(tmp_path / "plain", stream)
    found = trial(tmp_path / "worker", stream, "loader-workers")
    assert done(found.applied) == [option("DataLoader", "num_workers", 1)]
    assert found.watched == plain.watched
    assert found.tensors == plain.tensors
