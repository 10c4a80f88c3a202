"""The largest batch that fits: each size tried by prediction, the first that does not fit included,
so that no size is recommended that was only guessed."""

from collections.abc import Callable
from typing import Literal

from ridgeline.errors import RidgelineError
from ridgeline.records.model import Fit

MOST_PASSES = 60
LARGEST_BATCH = 2**22


def largest_batch(
    peak_of: Callable[[int], int], budget_bytes: int, mode: Literal["inference", "training"]
) -> Fit:
    """`peak_of(batch)` predicts; it grows with the batch, nearly in a line, so a secant between
    the largest that fits and the smallest that does not finds the border in a few passes."""
    tried: dict[int, int] = {}

    def peak(batch: int) -> int:
        if batch not in tried:
            if len(tried) >= MOST_PASSES:
                raise RidgelineError(f"no border found in {MOST_PASSES} passes")
            tried[batch] = peak_of(batch)
        return tried[batch]

    fits, fails = 0, 1
    while peak(fails) <= budget_bytes:
        fits = fails
        if fits >= LARGEST_BATCH:
            break
        fails = _beyond(tried, fits, budget_bytes)
    halving = False
    while fails - fits > 1 and fits < LARGEST_BATCH:
        width = fails - fits
        middle = (fits + fails) // 2 if halving else _between(tried, fits, fails, budget_bytes)
        if peak(middle) <= budget_bytes:
            fits = middle
        else:
            fails = middle
        # memory that grows in steps fools a line: after a poor step, halve
        halving = not halving and fails - fits > width // 2
    return Fit(
        budget_bytes=budget_bytes,
        mode=mode,
        batch=fits,
        peak_bytes=tried.get(fits, 0),
        next_batch=fails if fits < LARGEST_BATCH else 0,
        next_peak_bytes=tried.get(fails, 0) if fits < LARGEST_BATCH else 0,
        passes=len(tried),
    )


def _beyond(tried: dict[int, int], fits: int, budget: int) -> int:
    """A batch that a line through the last two tried says is just too large."""
    smaller = [b for b in tried if b < fits]
    if smaller:
        known = max(smaller)
        slope = (tried[fits] - tried[known]) / (fits - known)
        if slope > 0:
            guess = fits + int((budget - tried[fits]) / slope) + 1
            return min(max(guess, fits + 1), LARGEST_BATCH)
    return min(fits * 2, LARGEST_BATCH)


def _between(tried: dict[int, int], fits: int, fails: int, budget: int) -> int:
    if fits in tried:
        slope = (tried[fails] - tried[fits]) / (fails - fits)
        guess = fits + int((budget - tried[fits]) / slope) if slope > 0 else fits
        if fits < guess < fails:
            return guess
        if guess <= fits:
            return fits + 1
        return fails - 1
    return (fits + fails) // 2
