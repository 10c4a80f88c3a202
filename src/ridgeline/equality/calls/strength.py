"""How good a check is, found out by giving it wrong answers.

A tolerance so wide that anything passes, or a check that looks at nothing, says "equal" as readily
as a good one. So it is given the baseline's own answer as zeros, scaled, and shuffled.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch
from msgspec import Struct

from ridgeline.equality.calls.equality import Pair, Rule, judge
from ridgeline.equality.calls.error import numbers, shuffled
from ridgeline.equality.calls.leaf import Leaf
from ridgeline.records.comparison import Strength

SCALES = (1.5, 1.05, 1.01)
ENOUGH = 8
"""Fewer numbers agree by chance, or hide what a sum hides."""
_TRIED_ELEMENTS = 2**16

Accepts = Callable[[Sequence[Leaf]], bool]
"""Whether a check passes these leaves in place of the candidate's."""


class Judgement(Struct, frozen=True):
    strength: Strength
    reasons: tuple[str, ...]


def strength_of(
    pairs: Sequence[Pair], accepts: Accepts, compared: int, nan_share: float
) -> Judgement:
    """Try wrong answers on a check. `accepts` is told one leaf for each pair."""
    if not compared:
        return Judgement("none", ("nothing that was returned or changed could be compared",))
    reasons = []
    floats = any(_is_float(pair) for pair in pairs)
    if accepts([_zeros(pair) for pair in pairs]):
        stale = all(pair.is_state for pair in pairs)
        reasons.append("a step not taken would pass" if stale else "an answer of zeros would pass")
    for scale in SCALES if floats else ():
        if accepts([_scaled(pair, scale) for pair in pairs]):
            reasons.append(f"an answer {100 * (scale - 1):.0f} % off would pass")
            break
    movable = [pair for pair in pairs if _can_be_shuffled(pair)]
    if movable and accepts([_shuffled(pair) for pair in pairs]):
        reasons.append("the right numbers in the wrong places would pass")
    changed = any(pair.is_state for pair in pairs)
    if compared < ENOUGH and not changed:
        reasons.append(
            f"{'one number was' if compared == 1 else f'{compared} numbers were'} compared"
        )
    if nan_share > 0.5:
        reasons.append(f"{100 * nan_share:.0f} % of the numbers are NaN in both")
    return Judgement("weak" if reasons else "strong", tuple(reasons))


def by_rule(pairs: Sequence[Pair], rule: Rule) -> Accepts:
    """Our own check, as `strength_of` asks it."""

    def accepts(leaves: Sequence[Leaf]) -> bool:
        return all(
            judge(msgspec.structs.replace(pair, candidate=leaf), rule).ok
            for pair, leaf in zip(pairs, leaves, strict=True)
        )

    return accepts


def thinned(pair: Pair) -> Pair:
    """The pair by a part of its elements: a scale or a shuffle shows in any part of a tensor."""
    values = pair.baseline.values
    if values is None or values.numel() <= _TRIED_ELEMENTS:
        return pair
    step = -(-values.numel() // _TRIED_ELEMENTS)

    def thin(leaf: Leaf | None) -> Leaf | None:
        if leaf is None or leaf.values is None or leaf.values.numel() != values.numel():
            return leaf
        few = leaf.values.reshape(-1)[::step]
        nans = int(numbers(few).isnan().sum()) if leaf.nans else 0
        infinities = int(numbers(few).isinf().sum()) if leaf.infinities else 0
        return msgspec.structs.replace(
            leaf, values=few, shape=tuple(few.shape), whole=False, nans=nans, infinities=infinities
        )

    parts = ("baseline", "candidate", "reference", "before")
    changes = {name: thin(getattr(pair, name)) for name in parts}
    return msgspec.structs.replace(pair, **changes)


def _zeros(pair: Pair) -> Leaf:
    if pair.before is not None and pair.before.values is not None:
        return _with(pair.baseline, pair.before.values)
    values = pair.baseline.values
    return pair.baseline if values is None else _with(pair.baseline, torch.zeros_like(values))


def _scaled(pair: Pair, scale: float) -> Leaf:
    values = pair.baseline.values
    if values is None or not _is_float(pair):
        return pair.baseline
    start = _start(pair, values)
    return _with(pair.baseline, start + (_wide(values) - start) * scale)


def _shuffled(pair: Pair) -> Leaf:
    values = pair.baseline.values
    if values is None:
        return pair.baseline
    if not _is_float(pair):
        return _with(pair.baseline, shuffled(values))
    start = _start(pair, values)
    return _with(pair.baseline, start + shuffled(_wide(values) - start))


def _can_be_shuffled(pair: Pair) -> bool:
    values = pair.baseline.values
    return values is not None and values.numel() > 1 and not torch.equal(values, shuffled(values))


def _start(pair: Pair, values: torch.Tensor) -> torch.Tensor:
    before = pair.before.values if pair.before is not None else None
    return _wide(before) if before is not None else torch.zeros_like(_wide(values))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


def _with(leaf: Leaf, values: torch.Tensor) -> Leaf:
    # Kept in the leaf's own dtype: a file's check may look at it.
    if leaf.values is not None and leaf.kind != "number":
        values = values.to(leaf.values.dtype)
    row = numbers(values)
    nans, infinities = int(row.isnan().sum()), int(row.isinf().sum())
    return msgspec.structs.replace(leaf, values=values, nans=nans, infinities=infinities)


def _is_float(pair: Pair) -> bool:
    values = pair.baseline.values
    return values is not None and (values.is_floating_point() or values.is_complex())
