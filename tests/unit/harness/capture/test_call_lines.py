"""Lines of the user's own code that made calls, as a real profiler knows them."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ridgeline.harness.capture import event_walk
from ridgeline.harness.capture.event_walk import Walk


def one_step(model: nn.Module, debug: bool) -> int:
    """Returns the line of the `.item()` that is read; the other one is not reached."""
    loss = model(torch.randn(2, 4)).sum()
    if debug:
        print(loss.item())
    first = sys._getframe().f_lineno + 1
    if loss.item() > 1e9:
        print("diverged")
    return first


@pytest.fixture(scope="module")
def traced() -> tuple[Any, int]:
    model = nn.Linear(4, 2)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(3):
            line = one_step(model, debug=False)
    return profiler, line


def test_the_lines_that_made_calls_are_known_and_no_others(traced: tuple[Any, int]) -> None:
    profiler, line = traced
    found = [one for one in Walk().over(profiler).calls() if one.file == __file__]
    items = [one for one in found if one.name == "item"]
    assert [(one.line, one.times) for one in items] == [(line, 3)]
    assert {"randn", "Linear", "sum", "one_step"} <= {one.name for one in found}
    assert not any(one.name == "print" for one in found)
    assert all("torch" not in one.file.split("/")[-2:-1] for one in Walk().over(profiler).calls())


def test_a_walk_over_events_that_takes_too_long_returns_nothing(
    traced: tuple[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_walk, "_EVENTS_BETWEEN_CLOCKS", 1)
    monkeypatch.setattr(event_walk, "MAX_WALK_S", -1.0)
    assert Walk().over(traced[0]).calls() == ()
