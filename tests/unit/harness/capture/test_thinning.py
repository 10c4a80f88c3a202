"""Short steps: every one timed, some looked at closely."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.harness.capture import live
from ridgeline.harness.capture.progress import (
    DETAIL_EVERY_NS,
    MAX_STEPS_PER_DETAILED,
    MIN_DETAILED_STEPS,
    Thinning,
)
from ridgeline.harness.capture.seams import begin, end
from ridgeline.records.run import Settings
from ridgeline.records.run_directory import RunDirectory

SETTLED = 3 + MIN_DETAILED_STEPS


@pytest.mark.parametrize(
    ("step_ms", "every"),
    [(150, 1), (60, 1), (30, 3), (10, 10), (5, 20), (0.01, MAX_STEPS_PER_DETAILED)],
)
def test_the_shorter_the_steps_the_fewer_are_recorded_in_detail(step_ms: float, every: int) -> None:
    thinning = Thinning()
    for _ in range(MIN_DETAILED_STEPS - 1):
        thinning.step(int(step_ms * 1e6))
        assert thinning.every == 1
    thinning.step(int(step_ms * 1e6))
    assert thinning.every == every
    assert every * step_ms * 1e6 <= max(DETAIL_EVERY_NS, step_ms * 1e6)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = RunDirectory.make(tmp_path / "runs", "test")
    session = begin(torch, str(made.path), Settings(trace_steps=0, full=True))
    yield made
    if live.session is not None:
        end(session, "finished", "")


def finish() -> None:
    assert live.session is not None
    end(live.session, "finished", "")


def train(steps: int, optimizers: int = 1) -> None:
    model = nn.Linear(4, 2)
    made = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    for _ in range(steps):
        for optimizer in made:
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()


def test_every_step_is_timed_and_some_are_known_in_detail(directory: RunDirectory) -> None:
    train(300)
    finish()
    steps = directory.steps()
    assert [step.index for step in steps] == list(range(300))
    assert all(step.detailed for step in steps[:SETTLED])
    close = [step for step in steps[SETTLED + 1 :] if step.detailed]
    assert 0 < len(close) < 200
    assert all(step.samples == 8 and step.forwards == 1 and step.loss is not None for step in close)
    for earlier, later in itertools.pairwise(steps):
        if earlier.window == later.window == "light":
            assert later.start_ns == earlier.start_ns + earlier.dur_ns


def test_with_ridgeline_step_every_step_is_recorded_in_detail(directory: RunDirectory) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(120):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        with ridgeline.region("after"):
            pass
        ridgeline.step()
    finish()
    steps = directory.steps()
    assert len(steps) == 120
    assert all(step.detailed and step.samples == 8 for step in steps)


def test_with_two_optimizers_every_step_is_recorded_in_detail(directory: RunDirectory) -> None:
    train(120, optimizers=2)
    finish()
    steps = directory.steps()
    assert len(steps) == 120
    assert all(step.detailed and step.optimizer_steps == 2 for step in steps[1:])


def test_a_second_optimizer_that_comes_later_ends_the_thinning(directory: RunDirectory) -> None:
    train(100)
    train(50, optimizers=2)
    finish()
    steps = directory.steps()
    assert 148 <= len(steps) <= 152
    assert all(step.detailed for step in steps[105:])


def test_a_fork_of_a_thinned_program_writes_nothing(directory: RunDirectory) -> None:
    train(100)
    assert live.session is not None
    live.session.progress.detailed = False
    before = list(live.session.progress._timed)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(60)
            code = 0 if live.session.progress._timed == before else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
