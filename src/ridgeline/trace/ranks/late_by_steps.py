"""Which rank the others wait for, judged by the work of each rank alone in the same steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.late_rank import LateRank

MIN_LATE_SHARE = 0.03
"""The smallest share of the step by which a rank must be behind the slowest other rank: ranks are
never exactly together."""
MIN_SHARE_OF_LATENESS = 0.75
"""The smallest share of all lateness that one rank must cause. Nine programs with equal ranks had
0.47 to 0.64 on a busy machine; fourteen with a slow rank had 0.89 to 1."""
OUTLIER_SHARE = 0.05
"""The share of the steps that are left out as outliers, those with the largest differences. One
stall of the scheduler among forty steps does not make a rank late."""
MIN_STEPS = 8
"""The fewest steps in which outliers can be told from what happens again and again."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """The steps of one rank, in nanoseconds."""

    rank: int
    index: NDArray[np.int64]
    length_ns: Floats
    own_ns: dict[str, Floats]
    """Time without waiting in collectives, by phase, one value for each step."""

    def at(self, index: NDArray[np.int64]) -> "OwnSteps":
        """Return only the steps with these numbers."""
        rows = np.flatnonzero(np.isin(self.index, index))
        own = {phase: ns[rows] for phase, ns in self.own_ns.items()}
        return OwnSteps(self.rank, self.index[rows], self.length_ns[rows], own)

    def total(self) -> Floats:
        total: Floats = np.sum([*self.own_ns.values(), np.zeros(len(self.index))], axis=0)
        return total


def late_by_steps(ranks: Sequence[OwnSteps]) -> LateRank | None:
    """Return the one rank that keeps the others waiting in the steps that all ranks have; None if
    there is no such rank."""
    if len(ranks) < 2:
        return None
    shared = reduce(np.intersect1d, [one.index for one in ranks])
    if not len(shared):
        return None
    ranks = [one.at(shared) for one in ranks]
    behind = _behind(ranks)
    late = int(np.maximum(behind, 0).mean(axis=1).argmax())
    kept = _without_outliers(behind[late])
    lateness = np.maximum(behind[:, kept], 0).mean(axis=1)
    step_ns = float(np.mean([one.length_ns.mean() for one in ranks]))
    if (
        lateness[late] < MIN_SHARE_OF_LATENESS * lateness.sum()
        or behind[late, kept].mean() < MIN_LATE_SHARE * step_ns
    ):
        return None
    phase, phase_ns = _longer_phase(ranks, late)
    return LateRank(
        rank=ranks[late].rank,
        late_ns=float(np.maximum(behind[late], 0).mean()),
        step_ns=step_ns,
        slowest_other_ns=max(float(r.total().mean()) for i, r in enumerate(ranks) if i != late),
        share_of_lateness=float(lateness[late] / lateness.sum()),
        phase=phase,
        phase_ns=phase_ns,
        steps=len(shared),
        late_steps=int((behind[late] > 0).sum()),
    )


def _behind(ranks: Sequence[OwnSteps]) -> Floats:
    """Return how much longer each rank works in each step than the slowest of the others."""
    totals = np.array([one.total() for one in ranks])
    slowest_other = [np.delete(totals, r, axis=0).max(axis=0) for r in range(len(ranks))]
    difference: Floats = totals - np.array(slowest_other)
    return difference


def _without_outliers(behind: Floats) -> NDArray[np.int64]:
    """Return the indices of the steps that count. If there are enough steps, those with the largest
    differences are left out."""
    outliers = math.ceil(OUTLIER_SHARE * len(behind)) if len(behind) >= MIN_STEPS else 0
    return np.argsort(np.abs(behind))[: len(behind) - outliers]


def _longer_phase(ranks: Sequence[OwnSteps], late: int) -> tuple[str, float]:
    """Return the phase in which the late rank works longer than the others, and by how much."""

    def mean(one: OwnSteps, phase: str) -> float:
        return float(one.own_ns[phase].mean()) if phase in one.own_ns else 0.0

    others = [one for r, one in enumerate(ranks) if r != late]
    longer = {
        phase: mean(ranks[late], phase) - float(np.median([mean(one, phase) for one in others]))
        for phase in ranks[late].own_ns
    }
    phase = max(longer, key=lambda name: longer[name])
    return phase, longer[phase]
