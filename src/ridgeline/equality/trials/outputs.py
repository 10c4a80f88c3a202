"""Checks of what the model returns, batch by batch, in a program that does not train: a mistake may
show from the second batch on only."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import isfinite

from msgspec import Struct

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials.distances import of_output_prints
from ridgeline.equality.trials.noise_bands import REPEAT_FACTOR, UNINFORMATIVE_BAND, Band
from ridgeline.records.parity import Check
from ridgeline.records.trial import OutputPrint, Trial
from ridgeline.units import plural

DISTINCT_FACTOR = 8.0
"""Outputs of two batches that lie further apart than the band divided by this (1.6 units in the
last place of bfloat16) do not become equal in every number through rounding."""
MAX_DOUBTED_DIFFERENCE = 0.1
"""Largest relative difference beyond the band that is doubted and not refused: without updates
nothing grows from batch to batch, and leaving out half the samples of a batch makes more."""
COARSE_BAND = 1e-3
"""A band this wide belongs to a precision in which rounding can change which of two logits is
larger."""


def _check_batches(
    repeats: Sequence[Trial], candidate: Trial, band: Band, perturbed: Sequence[Trial] = ()
) -> Iterator[Check]:
    """Check the outputs of each batch against `repeats[0]`. `perturbed`: perturbed runs of the
    baseline, if the fix may alter rounding."""
    base = repeats[0]
    ours, theirs = ([step.outputs for step in trial.watched] for trial in (base, candidate))
    if not any(ours):
        return
    both = range(min(len(ours), len(theirs)))
    unseen = [step for step in both if ours[step] and not theirs[step]]
    if unseen or not any(theirs):
        at = f" at {steps_named(unseen)}" if any(theirs) else ""
        yield _doubtful(f"the outputs of the changed program's model were not seen{at}")
    seen = [step for step in both if ours[step] and theirs[step]]
    comparable = [step for step in seen if has_fixed_sizes([*repeats, *perturbed], step)]
    if comparable:
        yield from _check_steps(repeats, candidate, comparable, band)
    elif seen:
        yield _doubtful("outputs were not compared: their sizes vary between runs of the baseline")
    yield from _check_kept_outputs(repeats, candidate)


def why_outputs_say_nothing(base: Trial) -> str:
    """Return why the outputs say nothing of what the model computes; "" if they do. A last layer
    that begins with zeros, as a vision transformer's does, gives the same output for every batch.
    """
    seen = [step for step in base.watched if step.outputs]
    if not seen or any(step.backwards for step in base.watched):
        return ""
    if not any(output.norm or output.odd for step in seen for output in step.outputs):
        return "every output of the model is zero"
    data = {step.batch_sum for step in seen} - {None}
    if len(data) > 1 and len({step.outputs for step in seen}) == 1:
        return "the model gives the same output for every batch"
    return ""


def _doubtful(text: str) -> Check:
    return Check(what="outputs", passed=True, text=text, doubt=True)


def _check_steps(
    repeats: Sequence[Trial], candidate: Trial, steps: list[int], band: Band
) -> Iterator[Check]:
    base, coarse = repeats[0], band.evaluation >= COARSE_BAND
    mismatches = list(find_mismatches(base, candidate, steps, band.doubt_factor > 1, coarse))
    refused = [mismatch.text for mismatch in mismatches if not mismatch.doubt]
    wrong = refused[0] if refused else _repeated_outputs(base, candidate, steps, band)
    if wrong:
        yield Check(what="outputs", passed=False, text=wrong)
        return
    if band.evaluation >= UNINFORMATIVE_BAND:
        text = "outputs were not compared: rounding alone changes them completely"
        yield Check(what="outputs", passed=True, text=text)
        return
    if mismatches:
        yield _doubtful(mismatches[0].text)
    mismatched = {mismatch.step for mismatch in mismatches}
    drifts = [
        (distance, step)
        for step in steps
        if step not in mismatched
        for distance in [
            of_output_prints(base.watched[step].outputs, candidate.watched[step].outputs)
        ]
        if distance is not None
    ]
    if drifts:
        yield _check_distances(repeats, drifts, band)
    elif not mismatches:
        yield _doubtful("outputs were not compared: their norms are not finite")


def _repeated_outputs(base: Trial, candidate: Trial, steps: Sequence[int], band: Band) -> str:
    """Return how the outputs of one step equal those of another in every number although the
    baseline's differ; "" if they do not. This counts however wide the band is, because the outputs
    of an untrained model resemble each other."""
    ours = [step.outputs for step in base.watched]
    theirs = [step.outputs for step in candidate.watched]
    repeated = []
    for before, after in combinations(steps, 2):
        distance = (
            of_output_prints(ours[before], ours[after]) if theirs[before] == theirs[after] else None
        )
        if distance is not None and distance > band.evaluation / DISTINCT_FACTOR:
            repeated.append((after, before))
    # A class that rounding changes may be that of another batch; most batches keep theirs.
    off = {step for pair in repeated for step in pair if ours[step] != theirs[step]}
    few = 2 * len(off) <= len(steps)
    if not repeated or (few and band.evaluation >= COARSE_BAND and _are_integers(base, steps)):
        return ""
    after, before = min(repeated)
    return f"the outputs of step {after + 1} repeat those of step {before + 1}"


def _are_integers(base: Trial, steps: Sequence[int]) -> bool:
    return all(output.whole for step in steps for output in base.watched[step].outputs)


def _check_distances(
    repeats: Sequence[Trial], drifts: Sequence[tuple[float, int]], band: Band
) -> Check:
    allowed = max(
        band.evaluation, *(REPEAT_FACTOR * distance for distance in _repeat_distances(repeats)), 0.0
    )
    worst, step = max(drifts, key=lambda item: (item[0], -item[1]))
    beyond = [item for item in drifts if not item[0] <= allowed]
    doubted = max(allowed, min(band.doubt_factor * allowed, MAX_DOUBTED_DIFFERENCE))
    wrong = [item for item in beyond if not item[0] <= doubted]
    if wrong and allowed >= COARSE_BAND and _are_integers(repeats[0], [step for _, step in drifts]):
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


def _repeat_distances(repeats: Sequence[Trial]) -> Iterator[float]:
    for first, second in combinations(repeats, 2):
        for a, b in zip(first.watched, second.watched, strict=False):
            yield of_output_prints(a.outputs, b.outputs) or 0.0


def _check_kept_outputs(repeats: Sequence[Trial], candidate: Trial) -> Iterator[Check]:
    """Check outputs that the program keeps, if no repeat of the baseline altered them later."""
    steps = [
        (number, other.outputs_changed)
        for number, other in enumerate(candidate.watched)
        if other.outputs_changed is not None
        and all(
            number < len(trial.watched) and trial.watched[number].outputs_changed == 0
            for trial in repeats
        )
    ]
    if not steps:
        return
    changed = [number for number, distance in steps if distance]
    text = f"the outputs of {plural(len(steps), 'step')} are still the same two steps later"
    if changed:
        text = f"later steps write over the outputs of step {changed[0] + 1}, which are kept"
    yield Check(what="kept outputs", passed=not changed, text=text)


Size = Callable[[OutputPrint], int]
SIZES: tuple[Size, ...] = (
    lambda output: output.numel, lambda output: output.rows, lambda output: output.odd,
)  # fmt: skip


class Mismatch(Struct, frozen=True, kw_only=True):
    """A step whose outputs have another size than the baseline's, or other elements that are not
    finite."""

    step: int
    text: str
    doubt: bool
    """Whether rounding could explain it, so that it is not refused."""


def has_fixed_sizes(trials: Sequence[Trial], step: int) -> bool:
    """Return whether all trials that saw this step's outputs saw the same sizes."""
    seen = [trial.watched[step].outputs for trial in trials if step < len(trial.watched)]
    return len({_sizes(outputs) for outputs in seen if outputs}) <= 1


def find_mismatches(
    base: Trial, candidate: Trial, steps: Iterable[int], rounds: bool, coarse: bool
) -> Iterator[Mismatch]:
    """Yield steps whose outputs have another form. `rounds`: the fix may alter rounding; `coarse`:
    so much that the larger of two logits may change."""
    for step in steps:
        ours, theirs = base.watched[step].outputs, candidate.watched[step].outputs
        text = _mismatch(ours, theirs, step + 1)
        if text:
            whole = coarse and all(output.whole for output in ours)
            doubt = rounds and (whole or not _is_fixed_where_different(base, ours, theirs))
            broken = len(ours) == len(theirs) and list(map(_is_finite, ours)) != list(
                map(_is_finite, theirs)
            )
            yield Mismatch(step=step, text=text, doubt=doubt and not broken)


def _mismatch(ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint], step: int) -> str:
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
        if _is_finite(a) != _is_finite(b):
            finite = "finite" if _is_finite(b) else "not finite"
            return f"an output of step {step} is {finite}, unlike the baseline's"
        if a.odd != b.odd:
            return (
                f"{plural(b.odd, 'element')} of an output of step {step} are not finite where "
                f"{a.odd} of the baseline's are not"
            )
    return ""


def _is_finite(output: OutputPrint) -> bool:
    return isfinite(output.norm) and not output.odd


def _is_fixed_where_different(
    base: Trial, ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint]
) -> bool:
    """Return whether a size that differs is constant over the steps of the baseline."""
    if len(ours) != len(theirs):
        return len({len(step.outputs) for step in base.watched if step.outputs}) == 1
    return any(
        _is_fixed(base, place, size)
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        for size in SIZES
        if size(a) != size(b)
    )


def _is_fixed(base: Trial, place: int, size: Size) -> bool:
    """Return whether a size is the same at all steps, or the same for each sample."""
    steps = [step for step in base.watched if place < len(step.outputs)]
    sizes = [size(step.outputs[place]) for step in steps]
    per_sample = {n / (step.samples or 1) for n, step in zip(sizes, steps, strict=True)}
    return len(set(sizes)) == 1 or len(per_sample) == 1


def _sizes(outputs: Sequence[OutputPrint]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size(output) for size in SIZES) for output in outputs)


ERROR_FACTOR, FEW_ERROR_FACTOR, FEW_ELEMENTS = 3.0, 10.0, 16
"""The candidate's error may be this many times the baseline's; more below 16 elements, where the
baseline's error is a single draw."""


def check_float64_error(
    candidate_error: float,
    baseline_error: float,
    numel: int,
    *,
    tolerance: float = 1e-5,
    what: str = "outputs",
) -> Check:
    """Compare two errors against float64, relative to the reference's norm. `tolerance` belongs to
    the precision: 1e-5 for float32, 1e-3 for float16, 1e-2 for bfloat16."""
    if not isfinite(baseline_error):
        text = f"{what}: the baseline itself is not finite, so its error says nothing"
        return Check(what="float64", passed=not isfinite(candidate_error), text=text)
    factor = FEW_ERROR_FACTOR if numel < FEW_ELEMENTS else ERROR_FACTOR
    allowed = factor * baseline_error + tolerance / 10
    passed = isfinite(candidate_error) and candidate_error <= allowed
    error = small(candidate_error) if isfinite(candidate_error) else "no finite number"
    text = (
        f"{what}: {error} from float64 where the baseline is {small(baseline_error)}, "
        f"allowed {small(allowed)}"
    )
    difference = candidate_error if isfinite(candidate_error) else None
    return Check(what="float64", passed=passed, text=text, difference=difference, allowed=allowed)


def check_outputs(
    repeats: Sequence[Trial], candidate: Trial, band: Band, perturbed: Sequence[Trial] = ()
) -> Iterator[Check]:
    """Check the model's outputs before the first step, and at each step if it does not train."""
    yield from _check_batches(repeats, candidate, band, perturbed)
    errors = [trial.float64_error for trial in repeats if trial.float64_error is not None]
    error = candidate.float64_error
    if errors and error is not None:
        # A tenth of the tolerance is allowed; `band.outputs` is what the precision may err by.
        yield check_float64_error(error, max(errors), FEW_ELEMENTS, tolerance=10 * band.outputs)
    elif errors:
        text = candidate.no_reference or "no float64 reference: the model's outputs were not seen"
        yield Check(what="float64", passed=True, text=text)
