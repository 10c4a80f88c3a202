"""Norms of gradients, one tensor at a time or all at once."""

import pytest

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.python_loops import clip_by_tensor as look
from ridgeline.diagnosis.rules.python_loops import metrics_by_tensor, python_loop
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_launch import case, gradients, site

SOURCE = """import torch
def clip(parameters, most):
    gradients = [p.grad for p in parameters]
    total = 0.0
    for gradient in gradients:
        total += gradient.square().sum()
    for gradient in gradients:
        gradient.mul_(most / total)
def main():
    for x in data:
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
"""


def norms(at: tuple[str, int] = ("clip", 2), ms: float = 4.0) -> list[OpSite]:
    ops = [site(op, 100, ms, at=at) for op in ("square", "sum", "mul_")]
    return [*ops, site("add_", 100, ms, at=at, dims=((), ()))]


def test_loop_over_gradients_is_found_at_its_line() -> None:
    (one,) = look(case([*norms(), *gradients()], source=SOURCE))
    assert "clip() goes through the gradients one tensor at a time: 400 operator" in one.claim
    assert one.place == "train.py:5"
    assert one.confidence == "high"
    assert 8 <= one.share_pct <= 25  # half of its operators, and the Python around them
    assert one.change == ("norm = torch.nn.utils.clip_grad_norm_(parameters, most)  # all at once")
    assert one.gain_bound == pytest.approx(with_tolerance(1 / (1 - one.share_pct / 100)), rel=0.01)


def test_torchs_own_function_by_tensor_is_found_at_its_call() -> None:
    ops = [site("linalg_vector_norm", 100, 3.0, at=("main", 10)), *gradients()]
    (one,) = look(case(ops, source=SOURCE, gpu=True))
    assert one.place == "train.py:12"
    assert "foreach" not in one.change
    assert not [*look(case(ops, source=SOURCE))]  # on a CPU it has no other way


def test_other_rules_do_not_claim_it_too() -> None:
    whole = case([*norms(), *gradients()], source=SOURCE)
    assert not [*python_loop(whole)]
    assert not [*metrics_by_tensor(whole)]


def test_all_at_once_is_silent() -> None:
    ops = [site("_foreach_norm", 1, 4.0), site("_foreach_mul_", 1, 4.0), *gradients()]
    assert not [*look(case(ops, source=SOURCE))]


def test_few_tensors_and_little_time_are_silent() -> None:
    few = [site("linalg_vector_norm", 4, 3.0), *gradients(4)]
    assert not [*look(case(few, source=SOURCE))]
    quick = [*(site("mm", 900, 50.0, module=f"L{i}") for i in range(9)), *norms(ms=0.01)]
    assert not [*look(case([*quick, *gradients()], source=SOURCE, shares={"forward": 0.05,
                "backward": 0.9}))]  # fmt: skip


def test_the_limit_is_the_programs_own_or_said_to_be_chosen() -> None:
    scaled = "gradient.mul_(most / total)"
    for then, limit in {
        "if total.sqrt() > 2.5: gradient.mul_(2.5 / total.sqrt())": "parameters, 2.5)",
        "gradient.mul_(self.limit / (total + 1e-6))": "parameters, self.limit)",
        "log(total)": "parameters, max_norm=1.0)  # all at once; max_norm: yours to choose",
    }.items():
        (one,) = look(case([*norms(), *gradients()], source=SOURCE.replace(scaled, then)))
        assert f"clip_grad_norm_({limit}" in one.change, then
    (one,) = look(case([*norms(), *gradients()]))
    assert "model and max_norm: yours to choose" in one.change


def test_clipping_by_value_stays_by_value() -> None:
    text = """def clip(net):
    for name, p in net.named_parameters():
        p.grad.clamp_(-0.5, 0.5)
"""
    at = ("clip", 1)
    ops = [site("clamp_", 100, 4.0, at=at), *gradients()]
    (one,) = look(case(ops, source=text, gpu=True))
    assert one.change.startswith("torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)")
