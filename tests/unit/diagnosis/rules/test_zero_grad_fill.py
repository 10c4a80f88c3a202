"""Gradients filled with zeros, and ones that are dropped."""

import pytest

from ridgeline.diagnosis.rules.optimizers import zero_grad_fill as look
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_launch import ACCUMULATE, ENGINE, case, gradients, site

SOURCE = """def main():
    for x in data:
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()
"""
NODE = (ENGINE + ACCUMULATE, ACCUMULATE)


def adds(calls: float = 100, ms: float = 6.0) -> OpSite:
    return site("add_", calls, ms, phase="backward", within=NODE)


def fill(calls: float = 100, ms: float = 3.0, **more: object) -> OpSite:
    return site("zero_", calls, ms, phase="optimizer", at=("main", 2), **more)  # type: ignore[arg-type]


def test_fill_and_additions_are_both_counted() -> None:
    ops = [fill(), adds(ms=3.0), *gradients()]
    (one,) = look(case(ops, source=SOURCE))
    assert one.place == "train.py:3"
    assert one.fix == "set-to-none"
    assert one.change == (
        "# before: optimizer.zero_grad(set_to_none=False)\noptimizer.zero_grad(set_to_none=True)"
    )
    assert one.confidence == "high"
    filling, adding = one.evidence[0].value or 0.0, one.evidence[1].value or 0.0
    assert filling == pytest.approx(0.2)  # all that the optimizer does
    assert adding == pytest.approx(0.03)
    assert one.share_pct == pytest.approx(120 * (filling + adding), abs=0.1)


def test_accumulation_over_batches_needs_its_additions() -> None:
    once = next(iter(look(case([fill(), adds(100), *gradients()], source=SOURCE))))
    four = next(iter(look(case([fill(), adds(400), *gradients()], source=SOURCE))))
    assert four.evidence[1].value == pytest.approx((once.evidence[1].value or 0) / 4, rel=0.1)


def test_all_at_once_counts_as_all_gradients() -> None:
    filled = site("_foreach_zero_", 1, 3.0, phase="optimizer", dims=())
    (one,) = look(case([filled, adds(), *gradients()]))
    assert one.evidence[1].text.endswith("100 additions")
    assert one.confidence == "medium"  # no source


def test_dropped_gradients_and_other_zeros_are_silent() -> None:
    assert not [*look(case([*gradients()]))]
    buffers = site("zero_", 5, 3.0, phase="forward", dims=([7, 7],))
    assert not [*look(case([buffers, adds(), *gradients()]))]
    assert not [*look(case([fill(), *gradients()]))]  # nothing is added onto them
