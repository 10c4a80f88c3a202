"""Linear layers in float8 on a GPU that has it: near the exact ones, trained, compiled, tried."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ridgeline.fixes.catalog import fp8_linear
from ridgeline.fixes.program import Program
from ridgeline.fixes.torch_functions import float8_linear
from ridgeline.harness.trials.trial_process import run
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from tests.unit.fixes.seams_here import done

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="needs a CUDA device with float8 tensor cores",
    ),
]
STEPS = 12
PROGRAM = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))
net = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(512, 64)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
x, y = torch.randn(1024, 512).cuda(), torch.randint(64, (1024,)).cuda()
for step in range(20):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trial(home: Path, *fixes: str) -> Trial:
    home.mkdir(exist_ok=True)
    script = home / "train.py"
    script.write_text(PROGRAM)
    plan = Plan(fixes=tuple(Asked(fix=name) for name in fixes), steps=STEPS, watch=STEPS)
    found = run(Target(kind="script", name=str(script)), plan, home / "home", timeout_s=300)
    assert found.trial is not None, (found.failure, found.last_lines)
    return found.trial


def test_products_and_gradients_are_within_float8s_rounding() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(1024, 768, device="cuda")
    x = torch.randn(4, 512, 1024, device="cuda", requires_grad=True)
    of = (x, layer.weight, layer.bias)
    exact, found = layer(x), float8_linear(x, layer.weight, layer.bias)
    seed = torch.randn_like(exact)
    theirs = torch.autograd.grad(exact, of, seed)
    ours = torch.autograd.grad(found, of, seed.bfloat16())
    for one, other in zip((found.detach(), *ours), (exact.detach(), *theirs), strict=True):
        assert float((one.float() - other).norm() / other.norm()) < 0.1


def test_a_compiled_model_trains_with_them() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    model, x = nn.Sequential(body, nn.Linear(512, 64)).cuda(), torch.randn(256, 512, device="cuda")
    program = Program(torch)
    fp8_linear.apply(program, {})
    program.call_begins(model, (x,), {})
    products, _ = done(program.outcome()[0])
    assert products.facts["layers"] == 2
    model(x).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.compile()
    model(x).square().mean().backward()
    made = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(made) == len(plain) == 6
    for one, other in zip(made, plain, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.2  # 0.07 on a CPU


def test_a_whole_program_trains_alike_alone_and_compiled(tmp_path: Path) -> None:
    plain = trial(tmp_path / "plain")
    for fixes in (("fp8-linear",), ("fp8-linear", "compile")):
        found = trial(tmp_path / "-".join(fixes), *fixes)
        assert {one.fix for one in found.applied} == set(fixes)
        fp8 = [one for one in found.applied if one.fix == "fp8-linear"]
        products, compared = done(fp8)
        assert products == because(
            Done.FLOAT8_PRODUCTS, model="Sequential", layers=8, rest_in_bfloat16=True
        )
        assert compared.facts["rows"] == 1024
        for ours, theirs in zip(found.watched, plain.watched, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, rel=0.03)
            assert ours.gradients == theirs.gradients
