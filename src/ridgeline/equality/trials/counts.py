"""Checks of what must be the same number: steps applied, samples, passes, gradients, settings.
A fix that alters results by rounding at most alters none of them."""

from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.noise_bands import BATCH_SUM_TOLERANCE
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial, WatchedStep
from ridgeline.units import plural

_COUNTS: tuple[tuple[str, str, Callable[[WatchedStep], Any]], ...] = (
    ("samples", "samples a step", lambda step: step.samples),
    ("forwards", "forwards a step", lambda step: step.forwards),
    ("backwards", "backwards a step", lambda step: step.backwards),
    ("gradients", "parameters with a gradient", lambda step: step.gradients),
)


def check_counts(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    yield _check_applied_steps(baseline, candidate)
    for what, words, count in _COUNTS:
        yield from _check_each_step(baseline, candidate, what, words, count)
    yield from _check_dropout(baseline, candidate)
    yield from _check_learning_rates(baseline, candidate)
    if baseline.settings and candidate.settings:
        same = sorted(baseline.settings) == sorted(candidate.settings)
        text = "the optimizers have the same settings"
        text = text if same else _other_settings(baseline.settings, candidate.settings)
        yield Check(what="settings", passed=same, text=text)


def _check_applied_steps(baseline: Trial, candidate: Trial) -> Check:
    """Compare how many steps were applied: which ones a gradient scaler skipped depends on the
    numbers."""
    ours = sum(step.applied for step in baseline.watched)
    theirs = sum(step.applied for step in candidate.watched)
    total = len(candidate.watched)
    if len(baseline.watched) != total:
        text = (
            f"it took {plural(total, 'step')} where the baseline took {len(baseline.watched)}"
            f"{f': {candidate.ended}' if candidate.ended else ''}"
        )
        return Check(what="applied steps", passed=False, text=text)
    pairs = zip(baseline.watched, candidate.watched, strict=True)
    if all(before.applied == after.applied for before, after in pairs):
        text = f"{ours} of {plural(total, 'optimizer step')} applied, as in the baseline"
        return Check(what="applied steps", passed=True, text=text, difference=0.0)
    text = f"{total - theirs} of {total} optimizer steps were skipped"
    if ours != total:
        text += f", {total - ours} in the baseline"
    return Check(what="applied steps", passed=False, text=text, difference=float(ours - theirs))


def _check_dropout(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Compare how many elements dropout would drop in trials where it drops none: a fix under which
    dropout is called for fewer elements computes less."""
    ours, theirs = baseline.undropped, candidate.undropped
    if not ours or theirs is None:
        return
    text = f"dropout is called for {plural(theirs, 'element')}"
    text += (
        ", as in the baseline" if ours == theirs else f" where the baseline calls it for {ours:,}"
    )
    difference = float(abs(ours - theirs))
    yield Check(what="dropout", passed=ours == theirs, text=text, difference=difference)


def _check_learning_rates(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    pairs = [
        (step, ours.learning_rate, theirs.learning_rate)
        for step, (ours, theirs) in enumerate(
            zip(baseline.watched, candidate.watched, strict=False)
        )
        if ours.learning_rate is not None and theirs.learning_rate is not None
    ]
    if not pairs:
        return
    # 1e-6: a rate kept in a float32 tensor (capturable) differs from the Python number in its last
    # bits.
    wrong = [pair for pair in pairs if not abs(pair[1] - pair[2]) <= 1e-6 * abs(pair[1])]
    text = "the same learning rates"
    if wrong:
        step, before, after = wrong[0]
        text = f"the learning rate at step {step + 1} is {after:g}, not {before:g}"
        if before:
            text += f" ({small(abs(after / before - 1))} off)"
    yield Check(what="learning rates", passed=not wrong, text=text)


def _check_each_step(
    baseline: Trial,
    candidate: Trial,
    what: str,
    words: str,
    count: Callable[[WatchedStep], Any],
) -> Iterator[Check]:
    steps = enumerate(zip(baseline.watched, candidate.watched, strict=False))
    counts = [(step, count(ours), count(theirs)) for step, (ours, theirs) in steps]
    seen = [item for item in counts if item[1] is not None and item[2] is not None]
    # A count of zero at every step is not evidence: a pass is hidden if the whole step is one
    # captured call.
    if not any(item[1] for item in seen) or not any(item[2] for item in seen):
        return
    wrong = [item for item in seen if item[1] != item[2]]
    if not wrong:
        yield Check(what=what, passed=True, text=f"the same {words}", difference=0.0)
        return
    step, before, after = wrong[0]
    where = "" if len(wrong) == len(seen) else f", at {steps_named([item[0] for item in wrong])}"
    text = f"{words}: {after} where the baseline has {before}{where}"
    difference = float(abs(before - after))
    yield Check(what=what, passed=False, text=text, difference=difference, step=step)


def _other_settings(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Return how the settings differ: only those that do, if they are one or two of one group."""
    before = [settings for settings in ours if settings not in theirs]
    after = [settings for settings in theirs if settings not in ours]
    if before and after:
        old, new = before[0].split(", "), after[0].split(", ")
        other = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
        if len(old) == len(new) and len(other) <= 2:
            changes = ", ".join(f"{new}, not {old.rpartition('=')[2]}" for old, new in other)
            return f"the optimizer has other settings: {changes}"
    return f"the optimizer has other settings: {after[0] if after else 'fewer parameter groups'}"


def check_data(
    baseline: Trial, candidate: Trial, allowed: float = BATCH_SUM_TOLERANCE
) -> Iterator[Check]:
    drifts = [value for value in distances.of_batch_sums(baseline, candidate) if value is not None]
    if not drifts:
        return
    others = [step for step, value in enumerate(drifts) if not value <= allowed]
    over = f"over {plural(len(drifts), 'step')}"
    if others:
        text = f"the data of {steps_named(others)} are not the baseline's"
    elif max(drifts) > BATCH_SUM_TOLERANCE:
        text = f"data equal to {small(max(drifts))} {over}: a model makes some of them"
    else:
        text = f"the same data in the same order, {over}"
    yield Check(what="data", passed=not others, text=text, difference=max(drifts), allowed=allowed)
