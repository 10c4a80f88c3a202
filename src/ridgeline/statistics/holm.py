"""Several candidates at once: each is judged more strictly, so that the whole errs in 5 %."""

from collections.abc import Sequence


def holm_alphas(p_values: Sequence[float], alpha: float) -> tuple[float, ...]:
    """The level for each candidate's interval, in the order given, such that "the interval at
    this level leaves out 1" is Holm's decision: the smallest p-value is judged at alpha / m, the
    next at alpha / (m - 1), and from the first that fails on all at that one's level."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ValueError("p-values must lie between 0 and 1")
    levels = [alpha] * len(p_values)
    failed: float | None = None
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        level = alpha / (len(p_values) - rank) if failed is None else failed
        if failed is None and not p_values[at] < level:
            failed = level
        levels[at] = level
    return tuple(levels)
