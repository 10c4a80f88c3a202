"""What no rounding alters of a model's outputs: how many they are, how large, and where they are
finite. Boxes that are left over, tokens up to an end, are as many as the numbers say: where the
baseline's own sizes are not fixed, others are doubted and not refused."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite

from msgspec import Struct

from ridgeline.records.trial import OutputPrint, Trial
from ridgeline.units import plural

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
