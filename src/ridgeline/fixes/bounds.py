"""Bounds on how much faster a fix can make a program, from the share of the step that it can touch.

A bound decides which fixes are not tried at all. So a bound may be too large but never too small,
and where the share is not known there is no bound.
"""

MAX_SAVED_SHARE = 0.98
"""Largest share of the step that a bound assumes to go. A larger share says only that almost all of
the step may go; the search treats a share from 0.97 on as no bound."""
SAVED_BESIDE_UPDATE_ON_CPU = 1.5
"""The most that a fused update saves on a CPU, as a multiple of the time of the update it replaces.
The passes of an update over memory push the data of forward and backward out of the cache. Where
Adam's update took 2.7 ms of a step of 19.6 ms, a fused one made the step 3.6 ms shorter."""


def speedup_without(share: float | None) -> float | None:
    """Return how many times as fast the step would be without `share` of its time. Return None, no
    bound, if the share is not known."""
    if share is None:
        return None
    return 1 / (1 - min(max(share, 0.0), MAX_SAVED_SHARE))
