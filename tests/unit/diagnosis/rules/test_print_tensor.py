"""Tensors on the device made into text."""

import pytest

from ridgeline.diagnosis.rules.host_waits import print_tensor as look
from tests.unit.diagnosis.rules.made_up_waits import case, wait

LOOP = """\
def main():
    for step in range(100):
        print("step", step)
        print("norms", norms)
        text = f"loss {loss:.3f}"
        logger.info("best %s", best)
        if step % 10 == 0:
            print(norms)
"""


def printing(*via: str) -> object:
    return look(case(LOOP, waits=(wait(3.0, ops=(), via=via, times=1.0, waits=70.0),)))


def test_a_printed_tensor_is_named_with_its_line_and_its_waits() -> None:
    (finding,) = printing("print", "torch/_tensor.py:__repr__")
    assert finding.line == 4
    assert finding.claim.startswith("A tensor on the GPU is made into text once a step: 70 waits")
    assert finding.share_pct == pytest.approx(30.0)
    assert "if step % 100 == 0:" in finding.change


def test_f_strings_and_loggers_are_told_apart_by_what_was_seen() -> None:
    (inline,) = printing("torch/_tensor.py:__format__", "item")
    assert inline.line == 5
    (logged,) = printing("logging/__init__.py:info", "torch/_tensor.py:__repr__")
    assert logged.line == 6


def test_a_number_read_and_then_printed_is_not_its() -> None:
    assert not list(look(case(LOOP, waits=(wait(3.0, via=("item",)),))))
