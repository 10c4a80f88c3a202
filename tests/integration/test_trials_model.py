"""Whole programs with changes of the model put on, each in a process of its own."""

import math
from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

TRAINS = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Linear(16, 16), nn.LayerNorm(16)
    def forward(self, x):
        return x + F.gelu(self.n(self.a(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.table = nn.Embedding(8192, 16)
    def forward(self, x):
        x = self.c(x).mean((2, 3))
        for block in self.blocks:
            x = block(x)
        return x @ self.table.weight.T

def main():
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(8192, (8,))
    model.eval()
    with torch.no_grad():
        model(x)  # evaluation comes first
    model.train()
    for step in range(100):
        for part in range(2):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

main()
"""
INFERS = """
import torch, torch.nn as nn
torch.manual_seed(1)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
net[1].running_mean.uniform_(); net[1].running_var.uniform_(0.5, 2)
net.eval()
with torch.no_grad():
    for step in range(100):
        net(torch.randn(4, 3, 3, 3))
"""


def tried(home: Path, program: str, *fixes: Asked, trains: bool = True, watch: int = 4) -> Trial:
    script = home / "program.py"
    script.write_text(program)
    plan = Plan(fixes=fixes, steps=8, watch=watch, trains=trains)
    target = Target(kind="script", name=str(script), arguments=())
    outcome = run(target, plan, home / "-".join(one.fix for one in fixes), timeout_s=300)
    assert outcome.trial is not None, (outcome.failure, outcome.last_lines)
    assert not outcome.trial.problems
    return outcome.trial


def off(trial: Trial, base: Trial) -> float:
    """The largest relative difference of the losses and gradient norms."""
    assert len(trial.watched) == len(base.watched) == 4
    found = []
    for one, was in zip(trial.watched, base.watched, strict=True):
        assert (one.gradients, one.applied, one.samples) == (was.gradients, True, was.samples)
        for ours, theirs in ((one.loss, was.loss), (one.gradient_norm, was.gradient_norm)):
            assert ours is not None
            assert theirs is not None
            assert math.isfinite(ours)
            found.append(abs(ours - theirs) / abs(theirs))
    return max(found)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return tried(tmp_path_factory.mktemp("base"), TRAINS)


def test_checkpointing_alters_nothing_and_names_the_line_of_the_blocks(
    base: Trial, tmp_path: Path
) -> None:
    trial = tried(tmp_path, TRAINS, Asked(fix="checkpointing"))
    blocks = trial.applied[0].targets[0].done.facts
    assert (blocks["blocks"], blocks["all_blocks"], blocks["block"]) == (4, 4, "Block")
    lines = [line for _, line in trial.applied[0].lines]
    text = TRAINS.splitlines()
    assert [text[line - 1].strip() for line in lines] == [
        "loss = F.cross_entropy(model(x), y) / 2",
        "x = block(x)",
    ]
    assert off(trial, base) == 0
    assert trial.tensors == base.tensors
    assert trial.evaluation == base.evaluation


def test_chunks_of_the_loss_and_channels_last_alter_rounding_alone(
    base: Trial, tmp_path: Path
) -> None:
    cut = Asked(fix="chunked-cross-entropy", options={"elements": str(2 * 8192)})
    trial = tried(tmp_path, TRAINS, cut, Asked(fix="channels-last"))
    assert done(trial.applied) == [
        because(Done.CHANNELS_LAST, model="Net", memory_format="channels_last", images=True),
        because(Done.LOSS_CHUNKED, classes=8192, rows=2),
    ]
    assert off(trial, base) < 1e-5


@pytest.mark.compiles
def test_a_fused_loss_takes_its_logits_in_16_bits_beside_autocast(
    base: Trial, tmp_path: Path
) -> None:
    """From the second step on: by then it is known that the program's loss is one."""
    fused = Asked(fix="fused-cross-entropy", options={"elements": "8192"})
    cast = tried(tmp_path, TRAINS, Asked(fix="autocast"))
    trial = tried(tmp_path, TRAINS, Asked(fix="autocast"), fused)
    assert done(trial.applied) == [
        because(Done.AUTOCAST, model="Net", device="cpu", dtype="bfloat16"),
        because(Done.LARGE_LOGITS_STAY),
        because(Done.LOSS_COMPILED, classes=8192),
    ]
    assert trial.compile_s > 0
    assert off(trial, cast) < 1e-4
    assert off(trial, cast) < off(trial, base) / 10


def test_float16_is_scaled_and_unscaled_around_clipping_and_accumulation(
    base: Trial, tmp_path: Path
) -> None:
    small = Asked(fix="autocast-fp16", options={"device": "cpu"})
    trial = tried(tmp_path, TRAINS, small)
    cast = because(Done.AUTOCAST, model="Net", device="cpu", dtype="float16")
    assert done(trial.applied) == [cast]
    assert 0 < off(trial, base) < 2e-2


@pytest.fixture(scope="module")
def resisting(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    asked = ("checkpointing", "compile-regional", "chunked-cross-entropy", "padded-vocabulary")
    fixes = [Asked(fix=one) for one in asked]
    return tried(tmp_path_factory.mktemp("plain"), INFERS, *fixes, trains=False)


def test_what_finds_nothing_to_change_says_why(resisting: Trial) -> None:
    assert resisting.applied == ()
    skips = {one.fix: one.reason.code for one in resisting.not_applied}
    assert set(skips) == set(resisting.fixes)
    assert skips["checkpointing"] == skips["compile-regional"] == Skip.NO_REPEATED_BLOCKS
    assert skips["chunked-cross-entropy"] == Skip.NO_LARGE_LOSS


def test_inference_is_folded_and_records_nothing(resisting: Trial, tmp_path: Path) -> None:
    asked = (Asked(fix="eval-fusing"), Asked(fix="inference-mode"))
    trial = tried(tmp_path, INFERS, *asked, trains=False)
    assert done(trial.applied) == [
        because(Done.NORMS_FOLDED, model="Sequential", norms=1),
        because(Done.INFERENCE_MODE, model="Sequential"),
    ]
    assert trial.evaluation
    assert trial.evaluation != resisting.evaluation
    assert trial.evaluation == pytest.approx(resisting.evaluation, rel=1e-5)
    assert [one.samples for one in trial.watched] == [one.samples for one in resisting.watched]


@pytest.mark.compiles
@pytest.mark.parametrize("fixes", [("compile-regional",), ("compile", "compiled-autograd")])
def test_a_compiled_model_trains_as_before(
    base: Trial, tmp_path: Path, fixes: tuple[str, ...]
) -> None:
    trial = tried(tmp_path, TRAINS, *(Asked(fix=one) for one in fixes))
    assert {one.fix for one in trial.applied} == set(fixes)
    assert trial.compile_s > 0
    assert off(trial, base) < 1e-4
