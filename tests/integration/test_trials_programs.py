"""Trials of programs as people write them: how they end, how they fail, what they must not notice.
Each is a process of its own."""

import ctypes
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import Outcome, run
from ridgeline.optimization.diagnosis import diagnose
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial, TrialFailure
from ridgeline.report.reasons import explain
from tests.unit.fixes.seams_here import done, option
from tests.unit.harness.usercode.asked_of_system import MAPPED

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

STEPS = 12
TIMED = STEPS - 10
"""Eight are watched, the one after them and the last one are not timed."""
LOOP = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NEVER_LETS_GO = """
import os, threading, time
threading.Thread(target=lambda: time.sleep(600)).start()
def train():
    while True:
        try:
            step()
        except BaseException:
            pass
worker = threading.Thread(target=train)
try:
    worker.start()
    worker.join()
finally:
    open("saved", "w").write(os.environ["RIDGELINE_TRIAL"])
"""
SAVES = """
import copy, io, torch, torch.nn as nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(4, 3)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))
torch.manual_seed(0)
net = Net()
keys = list(net.state_dict())
optimizer = torch.optim.AdamW(net.parameters())
for i in range(40):
    x = torch.randn(4, 4, 8, 8)
    loss = nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 0]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again, twin = torch.load(file, weights_only=False), copy.deepcopy(net)
    for other in (net, again, twin):
        assert type(other) is Net and list(other.state_dict()) == keys
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
        assert twin(x).abs().max() == 0, "a copy computes with the model's own parameters"
        assert again(x).sub(net(x)).abs().max() < 0.1
"""
ADVERSARIES = """
import torch, torch.nn as nn
torch.manual_seed(0)
made = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
judge = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
of_made = torch.optim.SGD(made.parameters(), lr=0.01)
of_judge = torch.optim.SGD(judge.parameters(), lr=0.01)
for i in range(40):
    fake = made(torch.randn(4, 8))
    of_judge.zero_grad()
    (judge(fake.detach()).mean() - judge(torch.randn(4, 8)).mean()).backward()
    of_judge.step()
    of_made.zero_grad()
    (-judge(fake).mean()).backward()
    of_made.step()
"""
REAL_FIRST = ADVERSARIES.replace(
    "(judge(fake.detach()).mean() - judge(torch.randn(4, 8)).mean()).backward()",
    "(-judge(torch.randn(4, 8)).mean()).backward()\n"
    "    fake = made(torch.randn(4, 8))\n"
    "    judge(fake.detach()).mean().backward()",
)
"""As the DCGAN of a thousand tutorials does."""
CELL = """
import torch, torch.nn as nn
torch.manual_seed(0)
cell = nn.GRUCell(4, 4)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
for i in range(40):
    state = torch.zeros(2, 4)
    for token in torch.randn(30, 2, 4):
        state = cell(token, state)
    optimizer.zero_grad()
    state.square().mean().backward()
    optimizer.step()
"""
FOLDS = """
import torch, torch.nn as nn
torch.manual_seed(0)
def fold():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for i in range(3):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
for k in range(20):
    fold()
"""
RANKS = """
import torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    loss = net(torch.randn(8, 4) + dist.get_rank()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def outcome(
    home: Path, source: str, *fixes: str, kind: str = "", timeout_s: float = 120.0
) -> Outcome:
    script = home / "train.py"
    script.write_text(source)
    plan = Plan(fixes=tuple(Asked(fix=name) for name in fixes), steps=STEPS, watch=8)
    target = Target(kind="script", name=str(script))
    if kind == "torchrun":
        arguments = ("--standalone", "--nproc-per-node", "2", str(script))
        target = Target(kind="module", name="torch.distributed.run", arguments=arguments)
    return run(target, plan, home / "home", timeout_s=timeout_s)


def trial(home: Path, source: str, *fixes: str, kind: str = "") -> Trial:
    found = outcome(home, source, *fixes, kind=kind)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


def test_it_ends_at_its_last_step_and_nothing_of_the_program_runs_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = trial(tmp_path, LOOP + NEVER_LETS_GO)
    assert len(found.watched) == 8
    assert len(found.step_ns) == TIMED
    assert found.samples == (8,) * TIMED
    assert found.ended == ""
    assert found.first_step_s > 0
    assert not (tmp_path / "saved").exists()


def test_steps_go_on_until_they_have_taken_as_long_as_asked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP + "while True: step()\n")
    plan = Plan(steps=STEPS, least_s=0.4)
    found = run(Target(kind="script", name=str(script)), plan, tmp_path / "home").trial
    assert found is not None
    assert found.ended == ""
    assert sum(found.step_ns) >= 0.35e9  # the first of them ended before the clock was read
    assert len(found.step_ns) > STEPS


MEMORY = (
    MAPPED
    + """
import torch.nn as nn
net = nn.Linear(1500, 1500)  # 9 MB, and in float64 18
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    net(torch.randn(8, 1500)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 10:
        print("asked of the system:", mapped(12), flush=True)
"""
)


def test_the_watched_steps_leave_the_c_librarys_memory_as_it_is_without_us(tmp_path: Path) -> None:
    """It keeps pieces as large as the largest that was freed: the program's own are 9 MB."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("another C library")
    found = outcome(tmp_path, MEMORY)
    assert found.trial is not None, found.failure
    assert found.trial.float64_error is not None
    assert found.trial.problems == ()
    assert "asked of the system: True" in " ".join(found.last_lines)


def test_what_is_put_on_a_model_is_not_seen_where_it_is_saved_or_copied(tmp_path: Path) -> None:
    found = trial(tmp_path, SAVES, "autocast", "channels-last", "fused-optimizer")
    assert {one.fix for one in found.applied} == {"autocast", "channels-last", "fused-optimizer"}


def test_a_loss_that_breaks_comes_back_as_it_is(tmp_path: Path) -> None:
    found = trial(tmp_path, LOOP.replace("lr=0.1", "lr=1e9") + "while True: step()\n")
    assert found.watched[-1].loss is not None
    assert not math.isfinite(found.watched[-1].loss)


def test_an_order_that_hashing_makes_is_the_same_in_every_trial(tmp_path: Path) -> None:
    words = "words = {str(i) for i in range(99)}\n"
    source = LOOP.replace("torch.randn(8, 4)", "torch.tensor([[float(w)] * 4 for w in words])")
    once, again = (trial(tmp_path, words + source + "while True: step()\n") for _ in range(2))
    assert once.watched == again.watched
    assert once.watched[0].loss is not None


@pytest.mark.parametrize("source", [ADVERSARIES, REAL_FIRST])
def test_what_a_model_of_the_program_made_is_not_its_data(source: str, tmp_path: Path) -> None:
    plain = trial(tmp_path, source)
    found = trial(tmp_path, source, "autocast")
    assert [one.fix for one in found.applied] == ["autocast"]
    assert plain.watched[3].loss != found.watched[3].loss
    sums = [one.batch_sum for one in plain.watched]
    assert None not in sums
    assert sums == [one.batch_sum for one in found.watched]


def test_a_cell_called_for_each_token_trains_once_a_sequence(tmp_path: Path) -> None:
    found = trial(tmp_path, CELL)
    assert [(one.forwards, one.backwards) for one in found.watched[1:]] == [(30, 1)] * 7
    assert len(found.step_ns) == TIMED


def test_a_new_model_and_optimizer_for_each_fold_are_all_seen_and_changed(tmp_path: Path) -> None:
    found = trial(tmp_path, FOLDS, "fused-optimizer", "autocast")
    assert len(found.watched) == 8
    assert len(found.step_ns) == TIMED
    assert {one.fix for one in found.applied} == {"fused-optimizer", "autocast"}


def test_processes_a_launcher_starts_are_followed(tmp_path: Path) -> None:
    found = trial(tmp_path, RANKS, "fused-optimizer", kind="torchrun")
    assert len(found.watched) == 8
    assert done(found.applied) == [option("SGD", "fused", True)]


def test_a_program_that_leaves_by_os_exit_has_its_record(tmp_path: Path) -> None:
    source = LOOP + "import os\nfor i in range(5): step()\nos._exit(0)\n"
    found = trial(tmp_path, source)
    assert len(found.watched) == 5
    assert found.ended == "the program ended after 5 steps"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (LOOP + "step()\nraise ValueError('no data\\n' + 9 * 'look elsewhere\\n')", "no data"),
        (
            "import argparse, torch\np = argparse.ArgumentParser()\n"
            "p.add_argument('--data', required=True)\np.parse_args()",
            "arguments are required: --data",
        ),
        ("import torch\ninput('lr? ')", "a trial has no standard input"),
        ("print('hello')", "the program did not import torch"),
    ],
)
def test_a_failure_is_told_by_its_first_line(tmp_path: Path, source: str, why: str) -> None:
    found = outcome(tmp_path, source)
    assert found.trial is None
    assert why in explain(found.failure)
    assert "\n" not in explain(found.failure)


def test_a_hang_is_named_and_leaves_nothing_running(tmp_path: Path) -> None:
    child = f"[{sys.executable!r}, '-S', '-c', 'import time; time.sleep(600)']"
    source = (
        f"import subprocess, time\nchild = subprocess.Popen({child}, start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    )
    found = outcome(tmp_path, source, timeout_s=3)
    assert found.trial is None
    assert found.failure is not None
    assert found.failure.code == TrialFailure.TIMED_OUT
    assert found.failure.facts["limit_s"] == 3
    pid = (tmp_path / "pid").read_text()
    state = ""
    for _ in range(50):
        asked = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
        state = asked.stdout.strip()
        if not state or state.startswith("Z"):
            return
        time.sleep(0.1)
    pytest.fail(f"the child of the trial still runs: {state}")


def test_a_trial_that_cannot_begin_ends_at_once_and_says_why(tmp_path: Path) -> None:
    source = (
        "import torch\nfrom ridgeline.harness.trials.begin import begin\n"
        f"begin(torch, {str(tmp_path / 'nowhere')!r})\nprint('the program runs')"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 1
    assert "not begun: FileNotFoundError" in done.stderr
    assert done.stdout == ""


def test_each_rank_of_a_launcher_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RANKS)
    arguments = ("--standalone", "--nproc-per-node", "2", "train.py")
    target = Target(kind="module", name="torch.distributed.run", arguments=arguments)
    found = diagnose(target, tmp_path / "runs", tmp_path / "home", again=False, limit_s=120)
    assert found.ground.ranks == 2
    assert [one.name for one in found.ground.optimizers] == ["SGD"]
    assert [one.wrappers for one in found.ground.modules] == [("DistributedDataParallel",)]
