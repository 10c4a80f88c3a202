"""A race whose candidates raise in the program's own process: it goes on, and starts no other."""

import textwrap
import time
from pathlib import Path

import pytest

from ridgeline.harness.race.race_process import RaceProcess
from ridgeline.records.race import RaceMessage, RacePlan, RaceRequest
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked

PROGRAM = """
    import torch
    import torch.nn as nn


    class Strict(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if gradient.dtype != torch.float32:
                raise TypeError("only float32")
            return gradient


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)
            self.head = nn.Linear(4 * 6 * 6, 3)

        def forward(self, x):
            return Strict.apply(self.head(self.convolution(x).view(len(x), -1)))


    class NeverFused(torch.optim.AdamW):
        def step(self, closure=None):
            if self.param_groups[0].get("fused"):
                raise RuntimeError("never fused")
            return super().step(closure)


    model, loss = Net(), nn.CrossEntropyLoss()
    optimizer = NeverFused(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(100_000):
        if step == RAISES_AT:
            raise ValueError("of its own")
        optimizer.zero_grad()
        loss(model(torch.randn(4, 3, 8, 8)), torch.randint(3, (4,))).backward()
        optimizer.step()
        scheduler.step()
"""
SETS = tuple(
    tuple(Asked(fix=name) for name in names)
    for names in ((), ("channels-last",), ("autocast",), ("fused-optimizer",), ("tf32", "threads"))
)
"""The baseline, three sets that raise in forward, in backward and in the update, and one that does
not."""


def raced(folder: Path, raises_at: int) -> tuple[RaceProcess, list[RaceMessage]]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM).replace("RAISES_AT", str(raises_at)))
    target = Target(kind="script", name=str(script), arguments=())
    process = RaceProcess(target, RacePlan(), folder / "race")
    answers = []
    for message in process.messages(time.monotonic() + 60):
        if message is None:
            continue
        answers.append(message)
        if message.ready:
            process.ask(RaceRequest(number=0, sets=SETS, rounds=2))
        if message.measured:
            break
    return process, answers


def test_candidates_that_raise_are_given_up_and_the_process_goes_on(tmp_path: Path) -> None:
    process, answers = raced(tmp_path, raises_at=-1)
    try:
        members = [one.member for one in answers if one.member is not None]
        errors = {one.member: one.error for one in members if one.error}
        assert errors.keys() == {1, 2, 3}
        assert "view" in errors[1]
        assert errors[2] == "TypeError: only float32"
        assert errors[3] == "RuntimeError: never fused"
        timed = {(one.block.member, one.block.round) for one in answers if one.block is not None}
        assert timed == {(0, 0), (0, 1), (4, 0), (4, 1)}
        assert process.is_running
        assert answers[-1].measured == 1
    finally:
        process.end()


@pytest.mark.parametrize("raises_at", [2, 12])
def test_an_error_of_the_program_itself_ends_the_process(tmp_path: Path, raises_at: int) -> None:
    process, answers = raced(tmp_path, raises_at)
    try:
        assert not process.is_running
        failure = process.failure()
        assert failure is not None
        assert failure.facts["error"] == "ValueError: of its own"
        assert not any(one.measured for one in answers)
    finally:
        process.end()
