"""Whether gradients are cleared between two steps of an optimizer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ridgeline.harness.capture.inventory import MAX_DEVICE_READINGS, MAX_STEPS, GradientClearing

STEPS = 8


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a GPU only a few values are read, and the version counter tells the rest: the same logic
    runs here on tensors of the host."""
    if request.param == "gpu":
        monkeypatch.setattr(GradientClearing, "_is_cheap_to_read", lambda self, grad: False)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return str(request.param)


class Program:
    """A small training, with the calls a session makes around it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.clearing = GradientClearing(torch)

    def backward(self, scale: float = 1.0) -> None:
        loss = self.net(torch.randn(8, 4)).square().mean() * scale
        self.clearing.backward_begins()
        loss.backward()
        self.clearing.backward_ended()

    def step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        (optimizer or self.optimizer).step()
        self.clearing.stepped(optimizer or self.optimizer)

    @property
    def seen(self) -> tuple[int, int]:
        return self.clearing.seen(id(self.optimizer))


def gradients(program: Program) -> list[Any]:
    return [p.grad for p in program.net.parameters() if p.grad is not None]


def forget(program: Program) -> None:
    for parameter in program.net.parameters():
        parameter.grad = None


def fill_by_hand(program: Program) -> None:
    for grad in gradients(program):
        grad.detach_().zero_()


def fill_the_data(program: Program) -> None:
    """Clear gradients in a way that the version counter does not see."""
    for grad in gradients(program):
        grad.data.zero_()


CLEARS: dict[str, Callable[[Program], None]] = {
    "optimizer": lambda p: p.optimizer.zero_grad(),
    "optimizer, filled": lambda p: p.optimizer.zero_grad(set_to_none=False),
    "module": lambda p: p.net.zero_grad(),
    "none": forget,
    "by hand": fill_by_hand,
    "data": fill_the_data,
}


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
def test_every_way_to_clear_gradients_is_recognised(
    clear: Callable[[Program], None], device: str
) -> None:
    program = Program()
    for _ in range(STEPS):
        clear(program)
        program.backward()
        program.step()
    checked, kept = program.seen
    assert checked == STEPS - 1
    # On a GPU the first steps alone are read, which shows what the version counter does not.
    unseen = clear is fill_the_data and device == "gpu"
    assert kept == (checked - MAX_DEVICE_READINGS if unseen else 0)


@pytest.mark.usefixtures("device")
def test_gradients_that_are_never_cleared_are_seen() -> None:
    program = Program()
    for _ in range(STEPS):
        program.backward()
        torch.nn.utils.clip_grad_norm_(program.net.parameters(), 1.0)
        program.step()
    assert program.seen == (STEPS - 1, STEPS - 1)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("clears", [True, False])
def test_gradients_accumulated_on_purpose_are_cleared_after_the_step(clears: bool) -> None:
    program = Program()
    for _ in range(STEPS):
        for _ in range(4):
            program.backward(0.25)
        program.step()
        if clears:
            program.optimizer.zero_grad()
    assert program.seen == (STEPS - 1, 0 if clears else STEPS - 1)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("to_none", [True, False])
def test_two_optimizers_may_each_clear_their_gradients_before_their_own_turn(to_none: bool) -> None:
    """The other optimizer's backward goes through both sets of parameters, and comes first."""
    program = Program()
    critic = torch.nn.Linear(2, 1)
    other = torch.optim.Adam(critic.parameters())
    for _ in range(STEPS):
        for optimizer in (other, program.optimizer):
            optimizer.zero_grad(set_to_none=to_none)
            loss = critic(program.net(torch.randn(8, 4))).mean()
            program.clearing.backward_begins()
            loss.backward()
            program.clearing.backward_ended()
            program.step(optimizer)
    assert program.clearing.seen(id(other)) == (STEPS - 1, 0)
    assert program.seen == (STEPS - 1, 0)


def test_gradients_set_without_a_backward_are_not_checked() -> None:
    program = Program()
    for _ in range(STEPS):
        for parameter in program.net.parameters():
            parameter.grad = torch.randn_like(parameter)
        program.step()
    assert program.seen == (0, 0)


def test_a_step_that_could_not_be_checked_is_not_counted() -> None:
    program = Program()
    for number in range(STEPS):
        program.backward()
        if number == 4:
            program.optimizer.step()
            program.clearing.pass_over()
        else:
            program.step()
    assert program.seen == (STEPS - 3, STEPS - 3)


def test_gradients_are_checked_in_the_first_steps_only() -> None:
    program = Program()
    for _ in range(2 * MAX_STEPS):
        program.backward()
        program.step()
    assert program.seen == (MAX_STEPS, MAX_STEPS)
