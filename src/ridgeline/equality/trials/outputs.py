"""What the model of a program that does not train returns, batch by batch: what is wrong from the
second batch on is right at the first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import isfinite

from msgspec import Struct

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials.distances import apart
from ridgeline.equality.trials.noise_bands import LOST, OWN, Band
from ridgeline.records.parity import Check
from ridgeline.records.trial import OutputPrint, Trial
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
        batches=len(drifts), doubt=bool(beyond) and not wrong,
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


Size = Callable[[OutputPrint], int]
SIZES: tuple[Size, ...] = (
    lambda one: one.numel, lambda one: one.rows, lambda one: one.odd,
)  # fmt: skip


class Otherwise(Struct, frozen=True, kw_only=True):
    step: int
    text: str
    doubt: bool
    """Not refused."""


def settled(trials: Sequence[Trial], step: int) -> bool:
    """Whether all that saw its outputs saw them of the same sizes."""
    seen = [trial.watched[step].outputs for trial in trials if step < len(trial.watched)]
    return len({_sizes(outputs) for outputs in seen if outputs}) <= 1


def otherwise(
    base: Trial, candidate: Trial, steps: Iterable[int], rounds: bool, coarse: bool
) -> Iterator[Otherwise]:
    """`rounds`: the change may; `coarse`: so that the larger of two logits may be the other."""
    for step in steps:
        ours, theirs = base.watched[step].outputs, candidate.watched[step].outputs
        text = _said(ours, theirs, step + 1)
        if text:
            whole = coarse and all(one.whole for one in ours)
            doubt = rounds and (whole or not _fixed_where_other(base, ours, theirs))
            broken = len(ours) == len(theirs) and list(map(_fine, ours)) != list(map(_fine, theirs))
            yield Otherwise(step=step, text=text, doubt=doubt and not broken)


def _said(ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint], step: int) -> str:
    if len(ours) != len(theirs):
        return f"{plural(len(theirs), 'output')} at step {step} where the baseline has {len(ours)}"
    for a, b in zip(ours, theirs, strict=True):
        if a.numel != b.numel:
            return (
                f"an output of step {step} has {plural(b.numel, 'element')} where the "
                f"baseline's has {a.numel}"
            )
        if a.rows != b.rows and a.rows and b.rows:
            return (
                f"an output of step {step} has {plural(b.rows, 'row')} where the baseline's "
                f"has {a.rows}"
            )
        if _fine(a) != _fine(b):
            finite = "finite" if _fine(b) else "not finite"
            return f"an output of step {step} is {finite}, unlike the baseline's"
        if a.odd != b.odd:
            return (
                f"{plural(b.odd, 'element')} of an output of step {step} are not finite where "
                f"{a.odd} of the baseline's are not"
            )
    return ""


def _fine(one: OutputPrint) -> bool:
    return isfinite(one.norm) and not one.odd


def _fixed_where_other(
    base: Trial, ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint]
) -> bool:
    """Whether a size that is another one is the same at all steps of the baseline."""
    if len(ours) != len(theirs):
        return len({len(step.outputs) for step in base.watched if step.outputs}) == 1
    return any(
        _fixed(base, place, size)
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        for size in SIZES
        if size(a) != size(b)
    )


def _fixed(base: Trial, place: int, size: Size) -> bool:
    """The same at all steps, or for each sample."""
    steps = [step for step in base.watched if place < len(step.outputs)]
    found = [size(step.outputs[place]) for step in steps]
    each = {n / (step.samples or 1) for n, step in zip(found, steps, strict=True)}
    return len(set(found)) == 1 or len(each) == 1


def _sizes(outputs: Sequence[OutputPrint]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size(one) for size in SIZES) for one in outputs)


K, K_FEW, FEW = 3.0, 10.0, 16
"""Below 16 elements the baseline's own error is one draw of luck."""


def closer(
    candidate_error: float,
    baseline_error: float,
    numel: int,
    *,
    tolerance: float = 1e-5,
    what: str = "outputs",
) -> Check:
    """Errors relative to the reference's norm; `tolerance` is the precision's: 1e-5 for float32,
    1e-3 for float16, 1e-2 for bfloat16."""
    if not isfinite(baseline_error):
        text = f"{what}: the baseline is itself not finite, and says nothing"
        return Check(what="float64", passed=not isfinite(candidate_error), text=text)
    k = K_FEW if numel < FEW else K
    allowed = k * baseline_error + tolerance / 10
    passed = isfinite(candidate_error) and candidate_error <= allowed
    error = small(candidate_error) if isfinite(candidate_error) else "no finite number"
    text = (
        f"{what}: {error} from float64 where the baseline is {small(baseline_error)}, "
        f"allowed {small(allowed)}"
    )
    difference = candidate_error if isfinite(candidate_error) else None
    return Check(what="float64", passed=passed, text=text, difference=difference, allowed=allowed)


def anchored(
    repeats: Sequence[Trial], candidate: Trial, band: Band, jitters: Sequence[Trial] = ()
) -> Iterator[Check]:
    """Of the model's outputs before the first step, and of each step where it does not train."""
    yield from batches(repeats, candidate, band, jitters)
    errors = [trial.float64_error for trial in repeats if trial.float64_error is not None]
    error = candidate.float64_error
    if errors and error is not None:
        # 10: `closer` adds a tenth, and `band.outputs` is what the precision may err by.
        yield closer(error, max(errors), FEW, tolerance=10 * band.outputs)
    elif errors:
        text = candidate.no_reference or "no float64 reference: the model's outputs were not seen"
        yield Check(what="float64", passed=True, text=text)
