"""The recorded loss is the one that a user would print, and a closure is part of its step."""

from typing import Any

import pytest
import torch

from ridgeline.harness.capture.session import StopAfter
from tests.unit.harness.capture.test_session import net, session

__all__ = ["session"]


def shown(seen: Any) -> list[float]:
    return [step.loss for step in seen.steps]


@pytest.mark.parametrize("written", ["divided", "multiplied", "by a tensor"])
@pytest.mark.parametrize("scaled", [False, True])
def test_scaling_and_division_of_a_loss_before_its_backward_are_undone(
    session: Any, scaled: bool, written: str
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    losses = []
    with session() as seen:
        for _ in range(6):
            for _ in range(4):
                loss = model(torch.randn(8, 4)).square().mean()
                part = {
                    "divided": loss / 4, "multiplied": loss * 0.25,
                    "by a tensor": loss / torch.tensor(4.0),
                }[written]  # fmt: skip
                scaler.scale(part).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert shown(seen) == pytest.approx(losses, rel=1e-6)
    assert not seen.capture.problems


def test_a_loss_divided_by_another_number_than_the_backwards_is_kept(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with session() as seen:
        for _ in range(5):
            loss = model(torch.randn(8, 4)).square().sum() / 8
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert shown(seen) == losses


def test_a_step_with_many_closures_is_one_step(session: Any) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=10, tolerance_change=0.0)
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    done = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    def train() -> None:
        for number in range(20):
            optimizer.step(closure)
            done.append(number)

    with session(stop_after=3) as seen, pytest.raises(StopAfter):
        train()
    assert done == [0, 1]  # the third ended the program as it ended
    assert [step.optimizer_steps for step in seen.steps] == [1, 1, 1]
    assert all(step.backwards > 5 for step in seen.steps)
