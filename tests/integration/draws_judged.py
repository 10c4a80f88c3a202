"""A program that draws random numbers, under a fix with which it draws others, judged as a search
does."""

import math
from pathlib import Path

from msgspec import Struct

from ridgeline.fixes.fix import find_fix
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.bench import ProgramBench
from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.judge import Judge
from ridgeline.optimization.measure import STEP
from ridgeline.records.parity import Parity
from ridgeline.records.run import Target
from ridgeline.records.trial import Plan

PROGRAM = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
    def forward(self, x):
        x = F.dropout(F.gelu(self.conv(x)), 0.2, self.training).flatten(2).mT
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        dropped = 0.1 if self.training else 0.0
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=dropped)[:, 0])
        return self.head(x.mean(1))
net = Net().to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(60):
    images = torch.randn(16, 3, 8, 8).to(device)
    labels = (images.mean((1, 2, 3)) * 20 + 5).long().clamp(0, 9)
    loss = F.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


class Judged(Struct, frozen=True):
    as_it_is: Parity
    redrawn: Parity
    trials: int


def judged(home: Path, *fixes: str, program: str = PROGRAM, trains: bool = True) -> Judged:
    script = home / "program.py"
    script.write_text(program)
    target = Target(kind="script", name=str(script), arguments=())
    plan = Plan(steps=20, trains=trains)
    bench = ProgramBench(target, home / "trials", plan, deadline=Deadline(math.inf))
    judge = Judge(bench, STEP, lambda text: None)
    on = [Candidate(fix=find_fix(name).fix) for name in fixes]
    assert judge.learn(on, False, lambda found: None) is None
    found = bench.trial(asked(on))
    assert found.trial is not None, (found.failure, found.last_lines)
    assert not judge.missing(found.trial, on)
    before = bench.taken
    redrawn = judge.compared(found.trial, on)
    return Judged(judge.parity(found.trial, on), redrawn, bench.taken - before)
