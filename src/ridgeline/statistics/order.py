"""Whether the place in a round, or who ran just before, changed an arm's time.

Shuffling spreads such an effect over the arms; it does not remove it, and where one arm leaves
the caches or the clocks worse than another the ratios say less than they seem to. Every arm in
every place and after every other arm is one contrast; the largest of all is held against the
largest that the same times give when the orders are dealt out anew, which pays for their number.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.comparison import OrderEffect
from ridgeline.statistics.correlation import average_ranks

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]
Contrast = tuple[int, NDArray[np.bool_], str]
"""An arm, the rounds in which it holds, and the words for it."""

LEVEL = 0.05
_DEALS = 499
_CELLS = 1_000_000  # of ranks dealt at once: 8 MB
_FEWEST = 5  # rounds on either side of a contrast; fewer say nothing and fatten the largest


def order_effect(
    samples: Floats,
    positions: Integers,
    *,
    names: Sequence[str] = (),
    process: Integers | None = None,
    seed: int = 0,
) -> OrderEffect:
    """Of times and places (rounds, arms); the names are for the sentence. The first arm of a
    round ran after the last of the round before, unless the processes changed in between."""
    arms = samples.shape[1]
    named = names or [f"arm {at}" for at in range(arms)]
    relative = _relative(np.log(samples))
    contrasts = _contrasts(positions, _before(positions, process), named)
    kept = [contrast for contrast in contrasts if _enough(contrast[1])]
    if not kept or arms < 2:
        return OrderEffect(share=0.0, significant=False)
    ranks = np.stack([average_ranks(relative[:, arm]) for arm in range(arms)], axis=1)
    ranks -= ranks.mean(axis=0)
    scores = _scores(ranks[None], kept)[0]
    largest = int(np.argmax(scores))
    arm, mask, text = kept[largest]
    change = np.median(relative[mask, arm]) - np.median(relative[~mask, arm])
    return OrderEffect(
        share=float(np.expm1(min(change, 690.0))),
        significant=_chance(ranks, kept, float(scores[largest]), seed) <= LEVEL,
        where=text,
    )


def _relative(logs: Floats) -> Floats:
    """Each arm's log time less the mean of the others' in its round: what slows the whole round
    drops out, and an effect on one arm keeps its size."""
    arms = logs.shape[1]
    others = (logs.sum(axis=1, keepdims=True) - logs) / max(arms - 1, 1)
    relative: Floats = logs - others
    return relative


def _before(positions: Integers, process: Integers | None) -> Integers:
    """Which arm ran just before each arm, -1 where none did."""
    order = np.argsort(positions, axis=1)
    rounds = order.shape[0]
    carried = np.concatenate([[-1], order[:-1, -1]])
    if process is not None:
        carried[1:][np.diff(process) != 0] = -1
    ran_before = np.concatenate([carried[:, None], order[:, :-1]], axis=1)
    before: Integers = ran_before[np.arange(rounds)[:, None], positions]
    return before


def _contrasts(positions: Integers, before: Integers, names: Sequence[str]) -> list[Contrast]:
    arms = positions.shape[1]
    found = []
    for arm in range(arms):
        for place in range(arms):
            words = "first" if place == 0 else "last" if place == arms - 1 else f"at {place + 1}"
            found.append((arm, positions[:, arm] == place, f"{names[arm]} when {words}"))
        for other in range(arms):
            text = f"{names[arm]} after {'itself' if other == arm else names[other]}"
            found.append((arm, before[:, arm] == other, text))
    return found


def _enough(mask: NDArray[np.bool_]) -> bool:
    inside = int(mask.sum())
    return min(inside, mask.size - inside) >= _FEWEST


def _scores(ranks: Floats, contrasts: Sequence[Contrast]) -> Floats:
    """Rank sums inside each contrast in their standard deviations, unsigned; `ranks` are
    (deals, rounds, arms), centred, the result is (deals, contrasts)."""
    rounds, arms = ranks.shape[1:]
    found = []
    for arm in range(arms):
        masks = np.array([mask for owner, mask, _ in contrasts if owner == arm], np.float64)
        inside = masks.sum(axis=-1)
        variance = ranks[0, :, arm].var() * inside * (rounds - inside) / (rounds - 1)
        if masks.size:
            found.append(ranks[:, :, arm] @ masks.T / np.sqrt(np.maximum(variance, 1e-12)))
    scores: Floats = np.abs(np.concatenate(found, axis=1))
    return scores


def _chance(ranks: Floats, contrasts: Sequence[Contrast], score: float, seed: int) -> float:
    """How often the largest of all contrasts comes out as large when rounds keep their times and
    get each other's orders."""
    rng = np.random.default_rng(seed)
    rounds = ranks.shape[0]
    at_once = max(1, _CELLS // ranks.size)
    reached = 1  # the measured orders are one deal of those possible
    for done in range(0, _DEALS, at_once):
        some = min(at_once, _DEALS - done)
        deals = rng.permuted(np.tile(np.arange(rounds), (some, 1)), axis=1)
        largest = _scores(ranks[deals], contrasts).max(axis=1)
        reached += int((largest >= score - 1e-9).sum())
    return reached / (_DEALS + 1)
