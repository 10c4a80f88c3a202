"""A fused cross-entropy on a real GPU: the same results, in less time, with its logits in 16 bits
and their rows padded."""

from pathlib import Path
from statistics import median

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done

pytestmark = pytest.mark.gpu

PROGRAM = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Embedding(50257, 128), torch.nn.Linear(128, 50257)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
ids = torch.randint(50257, (4, 1024), device="cuda")
for step in range(100):
    logits = net(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def tried(home: Path, *fixes: str) -> Trial:
    script = home / "program.py"
    script.write_text(PROGRAM)
    plan = Plan(fixes=tuple(Asked(fix=one) for one in fixes), steps=40, watch=8)
    target = Target(kind="script", name=str(script), arguments=())
    found = run(target, plan, home / "-".join(fixes), timeout_s=300)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


def test_it_computes_the_same_in_less_time(tmp_path: Path) -> None:
    beside = ("autocast", "padded-vocabulary")
    before = tried(tmp_path, *beside)
    after = tried(tmp_path, *beside, "fused-cross-entropy")
    assert {one.fix for one in after.applied} == {*beside, "fused-cross-entropy"}
    assert because(Done.LARGE_LOGITS_STAY) in done(after.applied)
    for one, other in zip(before.watched, after.watched, strict=True):
        assert one.loss is not None
        assert other.loss == pytest.approx(one.loss, rel=1e-3)
    was, now = (median(trial.step_ns) / 1e6 for trial in (before, after))
    print(f"{was:.2f} ms, {now:.2f} ms with the fused loss")
    assert now < was
    assert after.peak_bytes < before.peak_bytes
