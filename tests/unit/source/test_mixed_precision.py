"""Autocast as it is written computes what autocast put on from outside does, bit for bit."""

from typing import Any

import pytest
import torch

from ridgeline.fixes import precision
from ridgeline.fixes.program import Model
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing import patched
from ridgeline.source.mixed_precision import cast_edits, scaler_edits

HEADER = 'torch.autocast("cpu", dtype=torch.bfloat16)'
BEGIN = """\
import torch
import torch.nn.functional as F
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x, y=None):
        out = self.two(torch.relu(self.one(x)))
        return RETURN
model = Net()
WRAP
opt = torch.optim.SGD(model.parameters(), lr=0.5)
seen = []
def note(loss):
    seen.append(float(loss.detach()))
"""
LOOPS = {
    "a name": "out = model(x)\nloss = (out - y).square().mean()",
    "nested": "loss = F.mse_loss(model(x), y)",
    "a method of the result": "loss = model(x).sub(y).square().mean()",
    "several on a line": "loss = F.mse_loss(model(x), y); opt.zero_grad(); loss.backward()",
    "an object": "out = model(x)\nloss = F.mse_loss(out['out'], y)",
    "a tuple": "out, loss = model(x, y)",
    "a field": "loss = F.mse_loss(model(x)['out'], y)",
}
RETURNS = {
    "an object": "{'out': out}",
    "a tuple": "out, (out - y).square().mean()",
    "a field": "{'out': out}",
}


def script(name: str, wrap: str = "") -> str:
    loop = LOOPS[name]
    loop += "" if "backward" in loop else "\nopt.zero_grad()\nloss.backward()"
    body = "x, y = torch.randn(6, 8), torch.randn(6, 4)\n" + loop + "\nopt.step()\nnote(loss)"
    text = BEGIN.replace("RETURN", RETURNS.get(name, "out")).replace("WRAP", wrap)
    return text + "for step in range(3):\n" + "".join(f"    {row}\n" for row in body.split("\n"))


def ran(text: str, **given: Any) -> list[float]:
    scope: dict[str, Any] = dict(given)
    exec(compile(text, "t.py", "exec"), scope)
    found: list[float] = scope["seen"]
    return found


def written(text: str, kind: str = "Net") -> str:
    line = 1 + next(
        at
        for at, row in enumerate(text.split("\n"))
        if "= model(x" in row.replace("F.mse_loss(", "")
    )
    edits = cast_edits("t.py", lambda _: text, line, HEADER, "w", kind)
    assert not isinstance(edits, Reason), edits
    result = patched("t.py", text.encode(), edits)
    assert not result.refused
    return result.text


@pytest.mark.parametrize("name", LOOPS)
def test_it_computes_what_the_trial_computed(name: str) -> None:
    def put_on(model: Any) -> None:
        precision.cast(torch, Model(model, (), {}, ""), "autocast", "bfloat16")

    plain = ran(script(name))
    tried = ran(script(name, "put_on(model)"), put_on=put_on)
    assert tried != plain
    copied = ran(written(script(name)))
    if name == "a tuple":  # its loss is computed inside the model
        assert copied == pytest.approx(tried, rel=1e-6)
    else:
        assert copied == tried


def test_what_runs_before_the_call_is_not_overtaken() -> None:
    text = "m = Net()\nfor x in d:\n    loss = f(g(x), m(x))\n    loss.backward()\n"
    edits = cast_edits("t.py", lambda _: text, 3, HEADER, "w")
    assert not isinstance(edits, Reason)
    assert [type(one).__name__ for one in edits] == ["Within", "Import"]


def test_a_body_on_its_header_s_line_is_refused() -> None:
    text = "m = Net()\nfor x in d: m(x).sum().backward()\n"
    refused = cast_edits("t.py", lambda _: text, 2, HEADER, "w")
    assert refused == because(Obstacle.ONE_STATEMENT)


def test_a_scaler_is_written_into_a_plain_loop() -> None:
    text = (
        "import torch\nm = Net()\nfor x in d:\n    out = m(x)\n    loss = f(out)\n"
        "    loss.backward()\n    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\n"
        "    opt.step()\n    scheduler.step()\n"
    )
    edits = scaler_edits("t.py", text, 4, "cuda", 4096.0)
    assert not isinstance(edits, Reason)
    new = patched("t.py", text.encode(), edits).text
    bare = [row.strip().partition("  #")[0] for row in new.split("\n") if row.strip()[:3] != "# r"]
    assert bare[1] == 'scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)'
    assert bare[6:12] == [
        "scaler.scale(loss).backward()",
        "scaler.unscale_(opt)",
        "torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)",
        "scaler.step(opt)",
        "scaler.update()",
        "scheduler.step()",
    ]


def test_a_loop_that_reads_gradients_gets_no_scaler() -> None:
    text = (
        "m = Net()\nfor x in d:\n    m(x).sum().backward()\n    n = p.grad.norm()\n    opt.step()\n"
    )
    assert scaler_edits("t.py", text, 3, "cuda", 4096.0) == because(Obstacle.GRADIENTS_READ)
