"""Differences as people read them, and the sentence for the table."""

from collections.abc import Sequence
from math import floor, isfinite, log10

from ridgeline.records.parity import MEANS, Check
from ridgeline.units import percent, plural


def small(value: float) -> str:
    """2.3e-7 -> "2e-7", 0.012 -> "1.2 %", 0 -> "0"."""
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
    """Counted from 1: step 3; steps 3, 4 and 7; steps 3, 4, 5 and 6 more."""
    numbers = [str(step + 1) for step in steps]
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    if len(numbers) > 4:
        return f"steps {', '.join(numbers[:3])} and {len(numbers) - 3} more"
    return f"steps {', '.join(numbers[:-1])} and {numbers[-1]}"


def why_differs(checks: Sequence[Check]) -> str:
    failed = [check for check in checks if not check.passed]
    rest = [check.what for check in failed[1:]]
    text = f"differs: {failed[0].text}"
    if not rest:
        return text
    return f"{text}; so do {', '.join(rest[:3])}{' …' if len(rest) > 3 else ''}"


def why_equal(checks: Sequence[Check], steps: int) -> str:
    """losses equal to 2e-7 over 8 steps, parameters to 3e-7"""
    measured = {check.what: check.difference for check in checks}
    parts = [
        check.text.partition(", allowed")[0]
        for check in checks
        if check.what == "outputs" and check.difference is not None and not check.doubt
    ]
    parameters = "parameters"
    if measured.get(parameters) is None:
        early = ("parameters after 2 steps", "first gradients")
        parameters = next((what for what in early if measured.get(what) is not None), parameters)
    parts += [
        f"{check.text.partition(', allowed')[0]} over {plural(steps, 'step')}"
        for check in checks
        if check.what == MEANS
    ]
    for what in ("losses", "gradient norms", parameters, "evaluation"):
        difference = measured.get(what)
        if difference is None:
            continue
        verb = ("equal to " if difference else "equal exactly") if not parts else "to "
        if parts and not difference:
            verb = "exactly"
        over = f" over {plural(steps, 'step')}" if not parts else ""
        parts.append(f"{what} {verb}{small(difference) if difference else ''}{over}")
    return ", ".join(parts[:1] + parts[-2:] if len(parts) > 3 else parts)
