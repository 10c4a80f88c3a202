"""What the model of a program that does not train returns, batch by batch: what is wrong from the
second batch on is right at the first."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from ridgeline.equality.trials.band import OWN, Band
from ridgeline.equality.trials.output_sizes import otherwise, settled
from ridgeline.equality.trials.outputs_apart import apart
from ridgeline.equality.trials.rounding import LOST
from ridgeline.equality.trials.words import small, steps_named
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial
from ridgeline.units import plural

TOLD = 8.0
"""Two batches' outputs that lie further apart than such a part of the band (1.6 units in the last
place of bfloat16) do not become the same number by number through rounding."""
DOUBTED = 0.1
"""Of their norm, at the most, beyond the band: without updates nothing grows from batch to batch,
and half the samples of a batch are more."""
COARSE = 1e-3
"""A band as wide is of a precision in which the larger of two logits may be the other one."""


def batches(
    repeats: Sequence[Trial], candidate: Trial, band: Band, jitters: Sequence[Trial] = ()
) -> Iterator[Check]:
    """`repeats[0]` is what the candidate is held against. `jitters`: trials of it that round
    otherwise, where the change may."""
    base = repeats[0]
    ours, theirs = ([step.outputs for step in trial.watched] for trial in (base, candidate))
    if not any(ours):
        return
    both = range(min(len(ours), len(theirs)))
    unseen = [step for step in both if ours[step] and not theirs[step]]
    if unseen or not any(theirs):
        at = f" at {steps_named(unseen)}" if any(theirs) else ""
        yield _doubt(f"what the changed program's model returns was not seen{at}")
    seen = [step for step in both if ours[step] and theirs[step]]
    asked = [step for step in seen if settled([*repeats, *jitters], step)]
    if asked:
        yield from _asked(repeats, candidate, asked, band)
    elif seen:
        yield _doubt("the outputs are not asked: the baseline's own are of other sizes each time")
    yield from _kept(repeats, candidate)


def tells_nothing(base: Trial) -> str:
    """Why a model's outputs say nothing of what it computes: a last layer that begins with zeros,
    as a vision transformer's does, answers every batch alike."""
    seen = [step for step in base.watched if step.outputs]
    if not seen or any(step.backwards for step in base.watched):
        return ""
    if not any(one.norm or one.odd for step in seen for one in step.outputs):
        return "every output of the model is zero"
    data = {step.batch_sum for step in seen} - {None}
    if len(data) > 1 and len({step.outputs for step in seen}) == 1:
        return "the model answers every batch alike"
    return ""


def _doubt(text: str) -> Check:
    return Check(what="outputs", passed=True, text=text, doubt=True)


def _asked(
    repeats: Sequence[Trial], candidate: Trial, steps: list[int], band: Band
) -> Iterator[Check]:
    base, coarse = repeats[0], band.evaluation >= COARSE
    others = list(otherwise(base, candidate, steps, band.doubt > 1, coarse))
    refused = [one.text for one in others if not one.doubt]
    wrong = refused[0] if refused else _again(base, candidate, steps, band)
    if wrong:
        yield Check(what="outputs", passed=False, text=wrong)
        return
    if band.evaluation >= LOST:
        text = "the outputs are not asked: rounding alone makes others of them"
        yield Check(what="outputs", passed=True, text=text)
        return
    if others:
        yield _doubt(others[0].text)
    left = {one.step for one in others}
    drifts = [
        (far, step)
        for step in steps
        if step not in left
        for far in [apart(base.watched[step].outputs, candidate.watched[step].outputs)]
        if far is not None
    ]
    if drifts:
        yield _along(repeats, drifts, band)
    elif not others:
        yield _doubt("the outputs are not asked: their norms are not finite")


def _again(base: Trial, candidate: Trial, steps: Sequence[int], band: Band) -> str:
    """Another step's outputs, number by number, where the baseline's differ: told however wide
    the band is, as the outputs of a model that has not learnt are much alike."""
    ours = [step.outputs for step in base.watched]
    theirs = [step.outputs for step in candidate.watched]
    found = []
    for before, after in combinations(steps, 2):
        far = apart(ours[before], ours[after]) if theirs[before] == theirs[after] else None
        if far is not None and far > band.evaluation / TOLD:
            found.append((after, before))
    # A class that rounding makes another may be that of another batch; most batches keep theirs.
    off = {step for pair in found for step in pair if ours[step] != theirs[step]}
    few = 2 * len(off) <= len(steps)
    if not found or (few and band.evaluation >= COARSE and _whole(base, steps)):
        return ""
    after, before = min(found)
    return f"the outputs of step {after + 1} are those of step {before + 1} once more"


def _whole(base: Trial, steps: Sequence[int]) -> bool:
    return all(one.whole for step in steps for one in base.watched[step].outputs)


def _along(repeats: Sequence[Trial], drifts: Sequence[tuple[float, int]], band: Band) -> Check:
    allowed = max(band.evaluation, *(OWN * far for far in _own(repeats)), 0.0)
    worst, step = max(drifts, key=lambda item: (item[0], -item[1]))
    beyond = [item for item in drifts if not item[0] <= allowed]
    doubted = max(allowed, min(band.doubt * allowed, DOUBTED))
    wrong = [item for item in beyond if not item[0] <= doubted]
    if wrong and allowed >= COARSE and _whole(repeats[0], [step for _, step in drifts]):
        wrong = []
    if beyond:
        worst, step = (wrong or beyond)[0]
        text = f"the outputs of step {step + 1} are off by {small(worst)}, allowed {small(allowed)}"
    else:
        near = f"to {small(worst)}" if worst else "exactly"
        text = f"outputs equal {near} over {len(drifts)} batch{'es' if len(drifts) > 1 else ''}"
        text += f", allowed {small(allowed)}" if worst else ""
    return Check(
        what="outputs", passed=not wrong, text=text, difference=worst, allowed=allowed, step=step,
        doubt=bool(beyond) and not wrong,
    )  # fmt: skip


def _own(repeats: Sequence[Trial]) -> Iterator[float]:
    for one, other in combinations(repeats, 2):
        for a, b in zip(one.watched, other.watched, strict=False):
            yield apart(a.outputs, b.outputs) or 0.0


def _kept(repeats: Sequence[Trial], candidate: Trial) -> Iterator[Check]:
    """Outputs that the program keeps, and that nothing altered in any repeat of the baseline."""
    steps = [
        (number, other.outputs_changed)
        for number, other in enumerate(candidate.watched)
        if other.outputs_changed is not None
        and all(
            number < len(one.watched) and one.watched[number].outputs_changed == 0
            for one in repeats
        )
    ]
    if not steps:
        return
    changed = [number for number, far in steps if far]
    text = f"the outputs of {plural(len(steps), 'step')} are still the same two steps later"
    if changed:
        text = f"later steps write over the outputs of step {changed[0] + 1}, which are kept"
    yield Check(what="kept outputs", passed=not changed, text=text)
