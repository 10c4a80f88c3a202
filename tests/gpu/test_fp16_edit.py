"""float16 with a scaled loss, put on from outside and as the edit that is written for it: whole
programs on a GPU, whose own losses must be the same both ways.

The GPU may well have bfloat16, where the change is not tried by itself: the plan asks for it. The
same flow is rehearsed on a CPU, whose autocast and scaler know float16 too.
"""

from pathlib import Path

import pytest
import torch
from msgspec import Struct

from ridgeline.harness.trials.trial_process import run
from ridgeline.optimization.patching import patches
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from ridgeline.source.editing import copies, write_copy
from tests.unit.fixes.seams_here import done

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU]),
    pytest.param("cpu", marks=pytest.mark.reliability),
]
STEPS = 16
TOLD = """
def told(loss):
    with open(sys.argv[2], "a") as file:
        print(float(loss.detach()), file=file)
"""
CLIPS = f"""\
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
device = sys.argv[1]
{TOLD}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)

    def forward(self, x):
        return self.two(F.gelu(self.norm(self.one(x))))


model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(640, 32).to(device), torch.randint(8, (640,)).to(device)
for step in range(40):
    part = slice(16 * step, 16 * step + 16)
    logits = model(x[part])
    loss = F.cross_entropy(logits, y[part])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    told(loss)
"""
ACCUMULATES = f"""\
import sys
from torch import manual_seed, nn, optim, randint, randn
from torch.utils.data import DataLoader, TensorDataset

manual_seed(1)
device = sys.argv[1]
PARTS = 2
{TOLD}

def main():
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(device)
    criterion = nn.CrossEntropyLoss()
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(randn(1280, 32), randint(8, (1280,))), batch_size=16)
    opt.zero_grad()
    for index, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device), labels.to(device)
        loss = criterion(net(inputs), labels)
        (loss / PARTS).backward()
        if (index + 1) % PARTS == 0:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            opt.step()
            opt.zero_grad()
            told(loss)


if __name__ == "__main__":
    main()
"""
SCHEDULES = f"""\
import sys
import torch
from torch import nn

torch.manual_seed(1)
device = sys.argv[1]
{TOLD}

def train(model, optimizer, scheduler, x, y):
    model.train()
    for step in range(40):
        optimizer.zero_grad()
        out = model(x[step])
        loss = nn.functional.mse_loss(out, y[step])
        loss.backward()
        optimizer.step()
        scheduler.step()
        told(loss)


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40)
x, y = torch.randn(40, 16, 32).to(device), torch.randn(40, 16, 4).to(device)
train(model, optimizer, scheduler, x, y)
"""
OVERFLOWS = SCHEDULES.replace(
    "nn.functional.mse_loss(out, y[step])", "100 * (out - y[step]).square().sum()"
)
"""Gradients of some 2e2 at the outputs: 4,096 times that is above 65,504."""
PROGRAMS = {"clips": CLIPS, "accumulates": ACCUMULATES, "schedules": SCHEDULES}


class Ran(Struct, frozen=True):
    trial: Trial
    losses: tuple[float, ...]
    """As the program itself computed them: a watcher sees those that run backward."""


def _ran(home: Path, script: Path, device: str, *fixes: Asked) -> Ran:
    told = home.with_suffix(".losses")
    plan = Plan(fixes=fixes, steps=STEPS, watch=STEPS - 2)
    target = Target(kind="script", name=str(script), arguments=(device, str(told)))
    found = run(target, plan, home, timeout_s=240)
    assert found.trial is not None, (found.failure, found.last_lines)
    losses = [float(line) for line in told.read_text().split()]
    return Ran(found.trial, tuple(losses[: STEPS - 2]))


def _three(home: Path, source: str, device: str) -> tuple[Ran, Ran, Ran, str]:
    """As it is, put on, and written; and the copy's text."""
    script = home / "train.py"
    script.write_text(source)
    plain = _ran(home / "plain", script, device)
    fp16 = Asked(fix="autocast-fp16", options={"device": device})
    tried = _ran(home / "tried", script, device, fp16)
    (applied,) = tried.trial.applied
    cast = done([applied])[0]
    assert (cast.facts["device"], cast.facts["dtype"]) == (device, "float16")
    made = patches(script, [applied])
    assert made.by_hand == ()
    (laid,) = copies(script, made.edits()).made
    write_copy(laid.patched, laid.to, overwrite=True)
    return plain, tried, _ran(home / "written", laid.to, device), laid.to.read_text()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_written_computes_what_was_put_on(name: str, device: str, tmp_path: Path) -> None:
    plain, tried, written, text = _three(tmp_path, PROGRAMS[name], device)
    assert f'scaler = torch.amp.GradScaler("{device}", init_scale=4096.0)' in text
    assert text.count("scaler.update()") == 1
    assert text.count("scaler.unscale_(") == text.count("clip_grad_norm_(")
    assert len(tried.losses) == len(written.losses) == STEPS - 2
    assert written.losses == pytest.approx(tried.losses, rel=1e-4)
    assert written.losses == pytest.approx(plain.losses, rel=0.02)
    assert written.losses != pytest.approx(plain.losses, rel=1e-7), "it is not in float16"
    for one, other in zip(written.trial.watched, tried.trial.watched, strict=True):
        assert one.applied
        assert one.loss == pytest.approx(other.loss, rel=1e-4), "as before it was scaled"
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        assert one.learning_rate == other.learning_rate


@pytest.mark.parametrize("device", DEVICES)
def test_steps_that_overflow_are_skipped_alike(device: str, tmp_path: Path) -> None:
    plain, tried, written, _ = _three(tmp_path, OVERFLOWS, device)
    assert because(Done.STEP_SKIPPED, skipped=1) in done(tried.trial.applied)
    assert any(not step.applied for step in written.trial.watched)
    assert any(step.applied for step in written.trial.watched)
    assert written.losses == pytest.approx(tried.losses, rel=1e-4)
    assert tried.losses != pytest.approx(plain.losses, rel=0.02), "steps were skipped"
