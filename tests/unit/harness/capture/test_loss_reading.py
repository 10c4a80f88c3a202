"""The loss of a step, and what is said of one that is no number."""

import math
from typing import Any

import pytest
import torch

from ridgeline.harness.capture.step_counts import Losses


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_loss_that_is_not_finite_is_named(value: float, said: str) -> None:
    losses = Losses(torch)
    assert losses.read(losses.note(torch.tensor(value))) == (None, said)


def test_only_a_loss_that_is_a_single_number_is_read() -> None:
    losses = Losses(torch)
    assert losses.read(losses.note(torch.tensor(1.5))) == (1.5, "")
    assert losses.read(losses.note(torch.zeros(2))) == (None, "")


@pytest.mark.parametrize(
    ("made", "divisor"),
    [(lambda loss: loss / 4, 4.0), (lambda loss: loss * 0.25, 4.0), (lambda loss: loss + 1, 1.0),
     (lambda loss: loss / torch.tensor([2.0, 2.0]), 1.0), (lambda loss: loss * 0, 1.0)],
)  # fmt: skip
def test_the_number_a_loss_was_divided_by_last_is_known(made: Any, divisor: float) -> None:
    loss = made(torch.ones(3, requires_grad=True).sum())
    assert Losses(torch).divisor(loss) == divisor


def test_a_programs_own_hooks_on_saved_tensors_are_not_called() -> None:
    """Checkpointing computes a forward again in one, and refuses to do it twice."""
    called: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, called.append):
        loss = torch.ones(3, requires_grad=True).sum() / torch.tensor(4.0)
    assert Losses(torch).divisor(loss) == 1.0
    assert called == []
