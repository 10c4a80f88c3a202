"""Changes of the batch and of numbers' width on whole programs, each in a process of its own."""

from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

STEPS = 8
TRAINS = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(512, 64), torch.randint(4, (512,)))
held = DataLoader(TensorDataset(*data[:64]), batch_size=8, shuffle=False)
loader = DataLoader(data, batch_size=8, shuffle=True)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    schedule.step()
"""
INFERS = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.tiny = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)
    def forward(self, x):
        assert self.a.weight.dtype == torch.float32
        return self.tiny(self.b(self.a(x).relu()).relu())
net = Net().eval()
for (x,) in DataLoader(TensorDataset(torch.randn(384, 64)), batch_size=32):
    with torch.no_grad():
        net(x)
"""
RESISTS = """
import torch, torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(128, 64))
for (x,) in DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 8, False)):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trial(home: Path, source: str, *fixes: str, trains: bool = True) -> Trial:
    home.mkdir(exist_ok=True)
    script = home / "train.py"
    script.write_text(source)
    options = {"larger-batch": {"factor": "4"}, "gradient-accumulation": {"parts": "4"}}
    asked = tuple(Asked(fix=name, options=options.get(name, {})) for name in fixes)
    plan = Plan(fixes=asked, steps=STEPS, watch=STEPS, trains=trains)
    target = Target(kind="script", name=str(script))
    found = run(target, plan, home / "home", timeout_s=120)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return trial(tmp_path_factory.mktemp("plain"), TRAINS)


def test_micro_batches_train_as_the_whole_batch_does(baseline: Trial, tmp_path: Path) -> None:
    found = trial(tmp_path, TRAINS, "gradient-accumulation")
    in_parts = because(Done.CALLED_IN_PARTS, model="Sequential", parts=4)
    assert done(found.applied) == [in_parts]
    for ours, theirs in zip(found.watched, baseline.watched, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
        assert ours.learning_rate == theirs.learning_rate
        assert (ours.samples, ours.batch_sum) == (theirs.samples, theirs.batch_sum)
        assert (ours.forwards, ours.backwards) == (1, 1)


def test_a_larger_batch_is_the_same_samples_in_fewer_steps(baseline: Trial, tmp_path: Path) -> None:
    found = trial(tmp_path, TRAINS, "larger-batch")
    assert done(found.applied) == [because(Done.LARGER_BATCH, batch_size=32, factor=4, before=8)]
    assert found.applied[0].lines == ((f"{tmp_path}/train.py", 9),)
    assert [step.samples for step in found.watched] == [32] * STEPS
    rates = [step.learning_rate for step in baseline.watched]
    assert [step.learning_rate for step in found.watched] == rates
    assert found.watched[0].batch_sum == pytest.approx(
        sum(step.batch_sum or 0.0 for step in baseline.watched[:4]), rel=1e-9
    )


def test_int8_layers_say_how_far_their_outputs_are_off(tmp_path: Path) -> None:
    found = trial(tmp_path, INFERS, "int8-dynamic", trains=False)
    weights, first, later = done(found.applied)
    assert weights == because(Done.INT8_WEIGHTS, model="Net", layers=2)
    assert (first.facts["batches"], first.facts["rows"]) == (1, 32)
    assert (later.facts["batches"], later.facts["rows"]) == (4, 128)
    plain = trial(tmp_path / "plain", INFERS, trains=False)
    assert len(found.watched) == len(plain.watched) == STEPS
    assert found.evaluation != plain.evaluation
    assert found.evaluation == pytest.approx(plain.evaluation, rel=0.05)


def test_a_program_that_resists_is_not_applied_with_a_reason(tmp_path: Path) -> None:
    names = ("larger-batch", "gradient-accumulation", "int8-dynamic", "fp8-linear")
    found = trial(tmp_path, RESISTS, *names)
    assert found.applied == ()
    assert {one.fix: one.reason.code for one in found.not_applied} == {
        "larger-batch": Skip.NO_BATCHING,
        "gradient-accumulation": Skip.DRAWS_RANDOM_NUMBERS,
        "int8-dynamic": Skip.TRAINING_MODE,
        "fp8-linear": Skip.NO_GPU,
    }
    assert len(found.watched) == STEPS
