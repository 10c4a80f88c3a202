"""Losses and gradient norms, step by step, against the band."""

from collections.abc import Iterator

from ridgeline.equality.trials import drift
from ridgeline.equality.trials.band import Band
from ridgeline.equality.trials.drift import Series
from ridgeline.equality.trials.rounding import LOST
from ridgeline.equality.trials.words import small
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial
from ridgeline.units import plural

EARLY = 2
"""Steps that no update, or one, has come before: nothing has grown yet, and less is doubted."""

_Step = tuple[float, float, int]
"""Difference, what is allowed, which."""
TELLS = 0.1
"""A wider band passes what is no longer the same: losses are spoken of up to there."""


def steps_told(baseline: Trial, candidate: Trial, band: Band) -> int:
    """How many losses tell something."""
    drifts = drift.of_losses(baseline, candidate)
    both = enumerate(zip(drifts, band.losses, strict=False))
    return len(_told([(value, limit, at) for at, (value, limit) in both if value is not None]))


def _told(seen: list[_Step]) -> list[_Step]:
    if not any(value for value, _, _ in seen):
        return seen
    return [item for item in seen if item[1] <= TELLS] or seen


def trajectory(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    losses = drift.of_losses(baseline, candidate)
    doubts = (band.first_doubt, band.doubt)
    yield from _along("losses", "loss", losses, band.losses, doubts)
    norms = drift.of_gradient_norms(baseline, candidate)
    yield from _along("gradient norms", "gradient norm", norms, band.gradient_norms, doubts)


def _along(
    what: str, one: str, drifts: Series, allowed: tuple[float, ...], doubts: tuple[float, float]
) -> Iterator[Check]:
    seen = [
        (value, limit, step)
        for step, (value, limit) in enumerate(zip(drifts, allowed, strict=False))
        if value is not None
    ]
    if not seen:
        return
    # Where rounding alone makes another loss, another loss is not wrong: earlier ones tell.
    seen = [item for item in seen if item[1] < LOST] or seen
    beyond = [item for item in seen if not item[0] <= item[1]]
    wrong = [item for item in beyond if not item[0] <= doubts[item[2] >= EARLY] * item[1]]
    if beyond:
        value, limit, step = (wrong or beyond)[0]
        text = f"the {one} at step {step + 1} is off by {small(value)}, allowed {small(limit)}"
    else:
        seen = _told(seen)
        value, limit, step = max(seen)
        over = f"over {plural(len(seen), 'step')}"
        text = f"{what} equal to {small(value)} {over}, allowed {small(limit)} at step {step + 1}"
        text = text if value else f"{what} equal exactly {over}"
    yield Check(
        what=what, passed=not wrong, text=text, difference=value, allowed=limit, step=step,
        doubt=bool(beyond) and not wrong,
    )  # fmt: skip
