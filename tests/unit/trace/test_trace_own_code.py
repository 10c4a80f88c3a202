"""Host time in the program's own Python code, by function where stacks tell."""

from pathlib import Path

import pytest
from traces_made import Made

from ridgeline.records.sites import OwnCode
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.phases import own_code
from ridgeline.trace.links import Links

MS = 1_000_000


def own_of(made: Made, folder: Path) -> OwnCode:
    trace = made.trace(folder)
    window = Window(start_ns=0, end_ns=2000 * MS, basis="test", steps=2)
    return own_code(trace, Links(trace), window)


def two_steps(stacks: bool) -> Made:
    """Of each second: 100 ms in the loader, 200 in operators, 100 in the optimizer, the rest in
    the program's own functions."""
    made = Made()
    for at in (0, 1_000_000):
        made.span(f"ProfilerStep#{at // 1_000_000}", at, 1_000_000)
        made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100_000)
        made.op("aten::mm", at + 200_000, 200_000)
        made.span("Optimizer.step#SGD.step", at + 900_000, 100_000)
        if stacks:
            made.frame("train.py(5): rollout", at + 400_000, 500_000)
    return made


def test_what_is_in_no_operator_loader_or_optimizer_is_the_programs_own(tmp_path: Path) -> None:
    found = own_of(two_steps(stacks=False), tmp_path)
    assert found.ns == pytest.approx(600 * MS)
    assert found.places == ()


def test_with_stacks_own_code_is_divided_by_function(tmp_path: Path) -> None:
    found = own_of(two_steps(stacks=True), tmp_path)
    assert found.ns == pytest.approx(600 * MS)
    [(place, ns)] = found.places
    assert (place.file, place.line, place.function) == ("train.py", 5, "rollout")
    assert ns == pytest.approx(500 * MS, rel=0.01)
