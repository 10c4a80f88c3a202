"""Attention that is written out, run from rewritten source in a process of its own."""

from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.optimization.candidates import attention_edits
from ridgeline.records.finding import Finding
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

SCRIPT = """\
import torch
from attend import Attention

torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    loss = model(torch.randn(2, 16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MODULE = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    @staticmethod
    def mixed(q, k, v):
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-2, -1) / 32**0.5
        return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v

    def forward(self, x):
        return self.mixed(*self.qkv(x).chunk(3, dim=-1))
"""
LINE = 13


def trial(folder: Path, plan: Plan) -> Trial:
    target = Target(kind="script", name=str(folder / "train.py"))
    found = run(target, plan, folder / "trials")
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


def test_a_rewritten_function_computes_the_same_in_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "attend.py").write_text(MODULE)
    finding = Finding(
        rule="written-attention", id="a", claim="", share_pct=50.0, gain_bound=2.0,
        confidence="high", file=str(tmp_path / "attend.py"), line=LINE,
    )  # fmt: skip
    edits, why = attention_edits([finding])
    assert not why
    plain = trial(tmp_path, Plan(steps=12))
    changed = trial(tmp_path, Plan(steps=12, fixes=(Asked(fix="sdpa"),), functions=edits))
    assert [one.fix for one in changed.applied] == ["sdpa"]
    assert changed.applied[0].lines == ((str(tmp_path / "attend.py"), 10),)
    losses = [step.loss for step in changed.watched]
    assert losses == pytest.approx([step.loss for step in plain.watched], rel=1e-5)
    assert losses != [step.loss for step in plain.watched]  # rounding: it truly is another operator


def test_a_function_that_nobody_calls_is_not_applied(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "attend.py").write_text(MODULE)
    found = trial(tmp_path, Plan(steps=12, fixes=(Asked(fix="sdpa"),)))
    assert not found.applied
    assert [(one.fix, one.reason.code) for one in found.not_applied] == [
        ("sdpa", Skip.NOTHING_REWRITTEN)
    ]
