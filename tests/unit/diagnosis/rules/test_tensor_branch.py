"""Conditions on values that are on the device."""

import ast

import pytest

from ridgeline.diagnosis.rules.host_waits import tensor_branch as look
from tests.unit.diagnosis.rules.made_up_waits import ITEM, case, wait

LOOP = """\
def main():
    for step, x in enumerate(data):
        if step % 10 == 0:
            log()
        for p in model.parameters():
            if p.grad is None:
                continue
            norm = p.grad.norm()
            if norm > LIMIT:
                p.grad.mul_(LIMIT / norm)
"""
BRANCH = ("aten::is_nonzero", *ITEM)


def test_the_if_on_a_tensor_is_found_among_others() -> None:
    (finding,) = look(case(LOOP, waits=(wait(2.0, ops=BRANCH, via=()),)))
    assert finding.line == 9
    assert finding.claim == (
        "`norm > LIMIT` is decided on the host: it waits for the GPU 20 times a step"
    )
    assert finding.share_pct == pytest.approx(20.0)
    assert finding.change.startswith("p.grad.mul_(torch.where(norm > LIMIT, LIMIT / norm, 1))")


def test_while_assert_and_python_functions_that_compare() -> None:
    text = "def main():\n    for x in data:\n        assert torch.isfinite(x).all(), 'bad'\n"
    (finding,) = look(case(text, waits=(wait(2.0, ops=BRANCH, via=()),)))
    assert finding.line == 3
    text = "def main():\n    for x in data:\n        best = max(best, x.norm())\n"
    (finding,) = look(case(text, waits=(wait(2.0, ops=BRANCH, via=("max",)),)))
    assert finding.line == 3
    text = "def main():\n    for x in data:\n        if torch.equal(x, y):\n            stop()\n"
    (finding,) = look(case(text, waits=(wait(2.0, ops=("aten::equal",), via=("equal",)),)))
    assert finding.line == 3


def test_one_check_a_step_on_a_busy_device_is_silent() -> None:
    once = wait(0.05, ops=BRANCH, via=(), times=1.0)
    assert not list(look(case(LOOP, waits=(once,), busy=0.98)))


@pytest.mark.parametrize(
    ("branch", "change"),
    [
        ("if x.amax() > LIMIT:\n            self.n += 1", "self.n += x.amax() > LIMIT  #"),
        ("if x.amax() > 9:\n            n -= 2", "n -= 2 * (x.amax() > 9)  #"),
        ("if x.norm() > 9:\n            x = x / x.norm()",
         "x = torch.where(x.norm() > 9, x / x.norm(), x)  #"),
        ("assert torch.isfinite(x).all()", "torch._assert_async(torch.isfinite(x).all())  #"),
        ("assert torch.allclose(x, y, atol=1e-3)",
         "torch._assert_async(torch.isclose(x, y, atol=1e-3).all())  #"),
        ("best = max(best, x.norm())", "best = x.norm().detach().clamp(min=best)  #"),
        ("if ready and x.isnan().any():\n            raise ValueError",
         "seen = 0  # once, before the loop\nseen = seen + (x.isnan().any())  #"),
        ("while x.norm() > 1:\n            x = f(x)", "for done in itertools.count():  #"),
    ],
)  # fmt: skip
def test_the_change_lets_the_device_decide_the_same(branch: str, change: str) -> None:
    text = f"def main(self):\n    for step, x in enumerate(data):\n        {branch}\n"
    via = ("max",) if branch.startswith("best") else ()
    (finding,) = look(case(text, waits=(wait(2.0, ops=BRANCH, via=via),)))
    assert finding.change.startswith(change)
    ast.parse(finding.change)
