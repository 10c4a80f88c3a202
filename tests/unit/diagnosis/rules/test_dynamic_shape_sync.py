"""Results whose size only the device knows."""

import pytest

from ridgeline.diagnosis.rules.host_waits import dynamic_shape_sync as look
from tests.unit.diagnosis.rules.made_up_waits import case, wait

MASK = """\
def main():
    for x in data:
        chosen = labels == 3
        first = x[0]
        mean = errors[chosen].mean()
"""
INDEX = ("aten::index", "aten::nonzero")


def test_a_mask_in_brackets_is_found_and_its_mean_rewritten() -> None:
    (finding,) = look(case(MASK, waits=(wait(2.0, ops=INDEX, via=()),)))
    assert finding.line == 5
    assert finding.claim.startswith("`errors[chosen]` has a size only the GPU knows")
    assert finding.share_pct == pytest.approx(20.0)
    assert finding.change.startswith("torch.where(chosen, errors, 0).sum() / (chosen).sum()")


def test_an_assignment_to_a_mask_becomes_one_to_the_whole() -> None:
    text = "def main():\n    for x in data:\n        x[x < 0] = 0.0\n"
    (finding,) = look(case(text, waits=(wait(2.0, ops=INDEX, via=()),)))
    assert finding.change.startswith("x = x.masked_fill(x < 0, 0.0)\n")
    text = text.replace("0.0", "y[x < 0]")
    (finding,) = look(case(text, waits=(wait(2.0, ops=INDEX, via=()),)))
    assert finding.change.startswith("x = torch.where(x < 0, y, x)\n")


def test_calls_are_found_by_the_operator() -> None:
    text = "def main():\n    for x in data:\n        values = torch.unique(x)\n"
    via = ("torch/functional.py:_unique_impl", "_unique2")
    (finding,) = look(case(text, waits=(wait(2.0, ops=("aten::_unique2",), via=via),)))
    assert finding.line == 3
    text = "def main():\n    for x in data:\n        y = torch.repeat_interleave(x, n)\n"
    ops = ("aten::repeat_interleave", "aten::item")
    (finding,) = look(case(text, waits=(wait(2.0, ops=ops, via=("repeat_interleave",)),)))
    assert "output_size=total)" in finding.change


def test_without_a_source_the_operator_is_named() -> None:
    (finding,) = look(case(waits=(wait(2.0, ops=("aten::nonzero",), via=(), place=None),)))
    assert finding.claim.startswith("`nonzero`")


def test_an_item_is_not_its() -> None:
    assert not list(look(case(MASK, waits=(wait(2.0),))))
