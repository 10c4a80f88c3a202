"""The same tensor copied to the device every step."""

import pytest

from ridgeline.diagnosis.rules.copies import blocking_copy, pageable_copy
from ridgeline.diagnosis.rules.copies import repeated_copy as look
from tests.unit.diagnosis.rules.made_up_waits import at, case, copy, held

TABLE = """\
class Placed(nn.Module):
    def __init__(self):
        self.table = torch.arange(100)

    def forward(self, x):
        return x + self.table.to(x.device)
"""
HERE = at(5, "forward")


def test_an_attribute_set_in_init_is_found_and_becomes_a_buffer() -> None:
    made = case(TABLE, waits=(held(place=HERE),), copies=(copy(2.0, place=HERE),), busy=0.8)
    (finding,) = look(made)
    assert finding.line == 6
    assert finding.claim.startswith("`self.table.to(x.device)` moves the same 36.7 MiB to the GPU")
    assert finding.share_pct == pytest.approx(21.0)
    assert finding.confidence == "high"
    buffer = 'self.register_buffer("table", torch.arange(100), persistent=False)'
    assert finding.change.startswith(buffer)
    assert finding.change.endswith("return x + self.table")
    assert not list(pageable_copy(made))
    assert not list(blocking_copy(made))


def test_a_name_set_before_the_loop_is_found() -> None:
    text = "def main():\n    w = make()\n    for x in data:\n        f(x, w.to(device))\n"
    (finding,) = look(case(text, waits=(held(),), copies=(copy(),)))
    assert finding.line == 4
    assert finding.change.startswith("w = w.to(device)  # once, before the loop")


@pytest.mark.parametrize("line", ["x.to(device)", "ready[i % 4].to(device)", "w.to(device)"])
def test_what_the_loop_sets_or_fills_is_another_each_step(line: str) -> None:
    text = (
        f"def main(w):\n    for i, x in enumerate(data):\n        w.copy_(x)\n        y = {line}\n"
    )
    assert not list(look(case(text, waits=(held(),), copies=(copy(),))))


def test_without_a_source_it_says_nothing() -> None:
    assert not list(look(case(waits=(held(),), copies=(copy(),))))


def test_an_attribute_of_another_class_than_a_module_is_set_anew() -> None:
    text = TABLE.replace("(nn.Module)", "")
    (finding,) = look(case(text, waits=(held(place=HERE),), copies=(copy(2.0, place=HERE),)))
    assert finding.change.startswith("self.table = self.table.to(x.device)  #")
