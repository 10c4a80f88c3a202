"""What must be the same number: steps applied, samples, passes, gradients, settings.
A change that alters results by rounding at most alters none of them."""

from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.noise_bands import DATA
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial, WatchedStep
from ridgeline.units import plural


def counted(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    yield applied_steps(baseline, candidate)
    yield from _samples(baseline, candidate)
    yield from _passes(baseline, candidate)
    yield from _gradients(baseline, candidate)
    yield from _dropout(baseline, candidate)
    yield from _learning_rates(baseline, candidate)
    if baseline.settings and candidate.settings:
        same = sorted(baseline.settings) == sorted(candidate.settings)
        text = "the optimizers were told the same"
        text = text if same else _told(baseline.settings, candidate.settings)
        yield Check(what="settings", passed=same, text=text)


def applied_steps(baseline: Trial, candidate: Trial) -> Check:
    """Counts alone: which were skipped follows from the numbers."""
    ours = sum(step.applied for step in baseline.watched)
    theirs = sum(step.applied for step in candidate.watched)
    total = len(candidate.watched)
    if len(baseline.watched) != total:
        text = (
            f"it took {plural(total, 'step')} where the baseline took {len(baseline.watched)}"
            f"{f': {candidate.ended}' if candidate.ended else ''}"
        )
        return Check(what="applied steps", passed=False, text=text)
    places = [
        place
        for place, (one, other) in enumerate(zip(baseline.watched, candidate.watched, strict=True))
        if one.applied != other.applied
    ]
    if not places:
        text = f"{ours} of {plural(total, 'optimizer step')} applied, as in the baseline"
        return Check(what="applied steps", passed=True, text=text, difference=0.0)
    skipped = total - theirs
    text = f"{skipped} of {total} optimizer steps were skipped"
    if ours != total:
        text += f", {total - ours} in the baseline"
    return Check(what="applied steps", passed=False, text=text, difference=float(ours - theirs))


def _samples(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    yield from _each(baseline, candidate, "samples", lambda step: step.samples, "samples a step")


def _passes(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    yield from _each(baseline, candidate, "forwards", lambda step: step.forwards, "forwards a step")
    yield from _each(
        baseline, candidate, "backwards", lambda step: step.backwards, "backwards a step"
    )


def _gradients(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    yield from _each(
        baseline, candidate, "gradients", lambda step: step.gradients, "parameters with a gradient"
    )


def _dropout(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Of trials in which it drops nothing: a change under which it is not asked to does less."""
    ours, theirs = baseline.undropped, candidate.undropped
    if not ours or theirs is None:
        return
    text = f"dropout is asked for {plural(theirs, 'element')}"
    text += ", as in the baseline" if ours == theirs else f" where the baseline's is for {ours:,}"
    difference = float(abs(ours - theirs))
    yield Check(what="dropout", passed=ours == theirs, text=text, difference=difference)


def _learning_rates(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    pairs = [
        (place, one.learning_rate, other.learning_rate)
        for place, (one, other) in enumerate(zip(baseline.watched, candidate.watched, strict=False))
        if one.learning_rate is not None and other.learning_rate is not None
    ]
    # 1e-6: a rate kept in a float32 tensor (capturable) is not the Python number to the last bit.
    wrong = [pair for pair in pairs if not abs(pair[1] - pair[2]) <= 1e-6 * abs(pair[1])]
    if not pairs:
        return
    text = "the same learning rates"
    if wrong:
        place, one, other = wrong[0]
        text = f"the learning rate at step {place + 1} is {other:g}, not {one:g}"
        if one:
            text += f" ({small(abs(other / one - 1))} off)"
    yield Check(what="learning rates", passed=not wrong, text=text)


def _each(
    baseline: Trial,
    candidate: Trial,
    what: str,
    read: Callable[[WatchedStep], Any],
    words: str,
) -> Iterator[Check]:
    ours = [read(step) for step in baseline.watched]
    theirs = [read(step) for step in candidate.watched]
    seen = [
        (place, one, other)
        for place, (one, other) in enumerate(zip(ours, theirs, strict=False))
        if one is not None and other is not None
    ]
    # None at any step is not fewer: a pass is hidden where a whole step is one captured call.
    if not any(item[1] for item in seen) or not any(item[2] for item in seen):
        return
    wrong = [item for item in seen if item[1] != item[2]]
    if not wrong:
        yield Check(what=what, passed=True, text=f"the same {words}", difference=0.0)
        return
    place, one, other = wrong[0]
    where = "" if len(wrong) == len(seen) else f", at {steps_named([item[0] for item in wrong])}"
    text = f"{words}: {other} where the baseline has {one}{where}"
    yield Check(what=what, passed=False, text=text, difference=float(abs(one - other)), step=place)


def _told(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Where one group was told one thing else, that alone."""
    before = [text for text in ours if text not in theirs]
    after = [text for text in theirs if text not in ours]
    if before and after:
        old, new = before[0].split(", "), after[0].split(", ")
        other = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
        if len(old) == len(new) and len(other) <= 2:
            said = ", ".join(f"{new}, not {old.rpartition('=')[2]}" for old, new in other)
            return f"the optimizer was told {said}"
    said = after[0] if after else "fewer parameter groups"
    return f"the optimizer was told something else: {said}"


def data(baseline: Trial, candidate: Trial, within: float = DATA) -> Iterator[Check]:
    drifts = [value for value in distances.of_batch_sums(baseline, candidate) if value is not None]
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
