"""The data that the steps of two trials were given, as far as sums of batches tell."""

from collections.abc import Iterator, Sequence
from statistics import pstdev

from ridgeline.equality.trials import drift, rounding
from ridgeline.equality.trials.floors import DATA, ULP, Floor
from ridgeline.equality.trials.words import small, steps_named
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial
from ridgeline.units import plural

OTHERS = 0.2
"""Of how far the sums of one program's own batches lie apart. What a model has made of random
numbers (a fake that another judges) is moved by rounding, by less than a hundredth of that."""


def the_same(repeats: Sequence[Trial], perturbed: Sequence[Trial]) -> bool:
    """Whether the unchanged program sees the same batches each time. A jitter moves parameters, and
    may move what a model makes, but makes no other data of them."""
    base = repeats[0]
    exact = all(
        value is None or value <= ULP
        for place, one in enumerate(repeats)
        for other in repeats[place + 1 :]
        for value in drift.of_batch_sums(one, other)
    )
    return exact and not any(_others(base, trial) for trial in perturbed)


def _others(base: Trial, trial: Trial) -> bool:
    known = [
        (ours.batch_sum, theirs.batch_sum)
        for ours, theirs in zip(base.watched, trial.watched, strict=False)
        if ours.batch_sum is not None and theirs.batch_sum is not None
    ]
    apart = max((abs(a - b) for a, b in known), default=0.0)
    usual = pstdev([a for a, _ in known]) if known else 0.0
    return usual > 0 and apart > OTHERS * usual


def allowed(base: Trial, perturbed: Sequence[Trial], floor: Floor) -> float:
    """As the sums of what a model makes differ by rounding, where it makes some."""
    moved = [
        (trial.jitter, max((v for v in drift.of_batch_sums(base, trial) if v), default=0.0))
        for trial in perturbed
    ]
    return max(DATA, rounding.allowed(floor, [item for item in moved if item[1] > ULP]))


def data(baseline: Trial, candidate: Trial, within: float = DATA) -> Iterator[Check]:
    drifts = [value for value in drift.of_batch_sums(baseline, candidate) if value is not None]
    if not drifts:
        return
    others = [place for place, value in enumerate(drifts) if not value <= within]
    steps = f"over {plural(len(drifts), 'step')}"
    if others:
        text = f"the data of {steps_named(others)} are not the baseline's"
    elif max(drifts) > DATA:
        text = f"data equal to {small(max(drifts))} {steps}: a model makes some of them"
    else:
        text = f"the same data in the same order, {steps}"
    yield Check(what="data", passed=not others, text=text, difference=max(drifts), allowed=within)
