"""Wording of differences and steps in the sentences about equality."""

from collections.abc import Sequence
from math import floor, isfinite, log10

from ridgeline.units import percent


def small(value: float) -> str:
    """Return 2.3e-7 as "2e-7", 0.012 as "1.2 %", 0 as "0"."""
    if value == 0:
        return "0"
    if value >= 1e-3 or not isfinite(value):
        return percent(value)
    exponent = floor(log10(value))
    digit = round(value / 10.0**exponent)
    if digit == 10:
        digit, exponent = 1, exponent + 1
    return f"{digit}e{exponent}"


def steps_named(steps: Sequence[int]) -> str:
    """Return the steps, counted from 1: step 3; steps 3, 4 and 7; steps 3, 4, 5 and 6 more."""
    numbers = [str(step + 1) for step in steps]
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    if len(numbers) > 4:
        return f"steps {', '.join(numbers[:3])} and {len(numbers) - 3} more"
    return f"steps {', '.join(numbers[:-1])} and {numbers[-1]}"
