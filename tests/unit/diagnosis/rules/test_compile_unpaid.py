"""Compiling that a short program cannot pay back."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.compilation import compile_unpaid as look
from ridgeline.records.run import Window
from ridgeline.records.sites import OpSite, Sites
from tests.unit.diagnosis.made_up_steps import step
from tests.unit.diagnosis.rules.made_up_memory import FILE, capture, case

TEXT = """\
def main():
    model = torch.compile(model)
"""


def short(seconds: float = 20.0, products: float = 0.8, steps: int = 60, **changed: Any) -> Case:
    """Steps of 100 ms, compiled in the first."""
    made = [
        step(i, ms=seconds * 1e3 + 100 if not i else 100, compile_ms=0 if i else seconds * 1e3)
        for i in range(steps)
    ]
    ops = (OpSite(op="aten::mm", host_ns=products * 100e6, device_ns=products * 100e6),)
    told = replace(case(TEXT, gpu=False), steps=tuple(made), sites=Sites(ops=ops))
    return replace(told, capture=capture(steps=steps), **changed)


def test_longer_than_all_it_can_save() -> None:
    (finding,) = look(short())
    assert finding.rule == "compile-unpaid"
    assert finding.place == f"{FILE}:2"
    assert "Compiling took 20 s, the 60 steps 6 s: it cannot pay before 500 steps" in finding.claim
    assert finding.share_pct == pytest.approx(100 * 20 / 26, abs=0.1)
    assert finding.change.startswith("# model = torch.compile(model)  # not in")


def test_the_change_is_a_whole_statement() -> None:
    for call in ("torch.compile(model)", "torch.compile(model, mode='max-autotune')"):
        other = case(f"def main():\n    net = {call}\n")
        (finding,) = look(short(sources=other.sources))
        assert finding.change == "net = model  # without torch.compile in a run this short"
    (finding,) = look(short(sources=case("def main():\n    model.compile()\n").sources))
    assert finding.change.startswith("# model.compile()  #")


def test_steps_after_the_windows_count() -> None:
    alone = Window(kind="alone", first_step=60, start_ns=0, end_ns=100_000_000_000)  # 1,000 steps
    made = short()
    assert not list(look(replace(made, capture=capture(steps=60, windows=(alone,)))))


def test_silent_where_it_may_have_paid() -> None:
    assert not list(look(short(seconds=2.2)))  # 0.04 s a step, 60 steps
    assert not list(look(short(products=0.3)))


def test_silent_where_nobody_waited() -> None:
    assert not list(look(short(seconds=1.5, products=0.99)))


def test_silent_where_the_program_did_not_end_by_itself() -> None:
    made = short()
    assert made.capture is not None
    assert not list(look(replace(made, capture=replace(made.capture, ended="stopped"))))


def test_compiling_later_is_another_rules() -> None:
    made = short(seconds=0.0)
    later = tuple(replace(s, compile_ns=10**10 if s.index in (20, 40) else 0) for s in made.steps)
    first = replace(later[0], compile_ns=10**9)
    assert not list(look(replace(made, steps=(first, *later[1:]))))


def test_only_the_first_of_steps_that_all_compile_is_the_start() -> None:
    made = short(seconds=0.0)
    every = tuple(replace(s, compile_ns=10**9) for s in made.steps)
    assert not list(look(replace(made, steps=every)))
