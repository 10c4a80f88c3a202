"""What jittered trials say of rounding: how far a change of a given precision may lie from the
baseline, by how far moving the parameters a little moved it."""

from collections.abc import Sequence
from math import log

from ridgeline.equality.trials.floors import ULP, Floor

PERTURBED = 16.0
"""A jitter moves the inputs alone, a reordering rounds anew in every layer."""
MATCHED = 8.0
"""A jitter of the size of the precision's rounding: autocast differed by up to 4 times as much."""
SKETCHED, MATCHED_SKETCHED, MUCH = 6.0, 3.0, 0.1
"""Beyond a tenth of a tensor's way: compiled, in channels_last and under autocast, ways and first
gradients differed by 0.3 to 2.5 times what a jitter of their precision did."""
SCALED = 3.0
"""Where the jitter is of another size than the precision's rounding, it is scaled: less is then
added, as the scaling is already generous."""
STEEP = 1e-3
"""Moved so far by one ulp, a program runs apart, and what a thousand ulps do does not follow."""
LOST = 1.0
"""The most that means anything: two ways that have nothing in common lie 1.4 apart."""

Moved = Sequence[tuple[float, float]]
"""(jitter, how far it drifted)"""


def allowed(floor: Floor, moved: Moved, *, sketched: bool = False) -> float:
    """`sketched`: drifts are of many numbers, not one or two; what is lost is then more than 1."""
    own = [drifted for jitter, drifted in moved if matches(floor, jitter)]
    if own:
        return _of_its_size(floor, max(own), sketched)
    below = [item for item in moved if item[0] < floor.unit]
    above = [item for item in moved if item[0] > floor.unit]
    if below and above:
        return _of_its_size(floor, _between(max(below), min(above), floor.unit), sketched)
    return max((_scaled(floor, *item) for item in below), default=0.0)


def matches(floor: Floor, jitter: float) -> bool:
    return 0.25 <= jitter / floor.unit <= 4


def known(floor: Floor, jitters: Sequence[float]) -> bool:
    """Of this size, or of sizes on both sides of it."""
    between = any(j < floor.unit for j in jitters) and any(j > floor.unit for j in jitters)
    return between or any(matches(floor, jitter) for jitter in jitters)


def usable(floor: Floor, jitter: float) -> bool:
    """One that is far larger than what the change rounds would let anything pass."""
    return jitter < floor.unit or matches(floor, jitter)


def _of_its_size(floor: Floor, drifted: float, sketched: bool) -> float:
    fine = floor.unit <= ULP
    wide = (PERTURBED if fine else MATCHED) * drifted
    if not sketched:
        return min(wide, LOST)
    # Without one number's luck, less is needed of much.
    return min(wide, max(MUCH, (SKETCHED if fine else MATCHED_SKETCHED) * drifted))


def _between(below: tuple[float, float], above: tuple[float, float], unit: float) -> float:
    """Along a power of the jitter: 1 where rounding only adds up, less where it has run apart."""
    (small, least), (large, most) = below, above
    if least <= 0 or most <= least:
        return max(most * unit / large, least)
    return float(least * (most / least) ** (log(unit / small) / log(large / small)))


def _scaled(floor: Floor, jitter: float, drifted: float) -> float:
    if drifted > STEEP * jitter / ULP:
        return LOST
    return min(SCALED * floor.unit / jitter * drifted, floor.most)
