"""How much faster a program could become by a change, from the share of its step that the change
can touch.

A bound decides which changes are not tried at all, so it may be too large but never too small:
where the share is not known there is no bound.
"""

MAX_SAVED_SHARE = 0.98
"""Of the step. A larger share says no more than that almost all of the step may go; the search
treats a bound from 0.97 on as no bound."""
SAVED_BESIDE_UPDATE_ON_CPU = 1.5
"""Times what an optimizer's update takes on a CPU: the most that a fused one saves. The passes of
an update over memory push what forward and backward need out of the cache: where Adam's update
took 2.7 ms of a step of 19.6 ms, a fused one made the step 3.6 ms shorter."""


def speedup_without(share: float | None) -> float | None:
    """Return how many times as fast the step would be without `share` of its time; None: no bound,
    because the share is not known."""
    if share is None:
        return None
    return 1 / (1 - min(max(share, 0.0), MAX_SAVED_SHARE))
