"""Applies a loss of one argument, or one that wants a target too."""

from collections.abc import Callable
from typing import Any


def apply_loss(loss: Callable[..., Any], output: Any, zeros: Callable[[Any], Any]) -> Any:
    """The loss of the output; against zeros where it will not do without a target."""
    try:
        return loss(output)
    except TypeError:
        return loss(output, zeros(output))
