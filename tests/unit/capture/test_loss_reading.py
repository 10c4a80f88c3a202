"""The loss of a step, and what is said of one that is no number."""

import math

import pytest
import torch

from ridgeline.capture.losses import Losses


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_loss_that_is_not_finite_is_named(value: float, said: str) -> None:
    losses = Losses(torch)
    assert losses.read(losses.note(torch.tensor(value))) == (None, said)


def test_a_loss_is_read_and_what_is_no_single_number_is_not() -> None:
    losses = Losses(torch)
    assert losses.read(losses.note(torch.tensor(1.5))) == (1.5, "")
    assert losses.read(losses.note(torch.zeros(2))) == (None, "")
