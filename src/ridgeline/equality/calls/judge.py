"""How far numbers lie from other numbers."""

from math import inf, isfinite, isnan, sqrt

import torch
from msgspec import Struct

from ridgeline.equality.calls.outputs import Leaf, Outputs

_HUGE = 1000.0
"""Numbers so many times the median are judged apart: next to a mask's -1e9 any error is small."""

_LOOKED_AT = 2**14  # elements, to find a median by


class Error(Struct, frozen=True):
    """Relative distances of one tensor from another."""

    norm: float = 0.0
    """Of the difference, over the norm of what it is measured against."""
    element: float = 0.0
    """The worst element's, over its own size plus the tensor's root mean square."""
    rest: float = 0.0
    """As `norm`, without numbers that dwarf the others; 0 where there are none such."""
    where: int = 0
    """The worst element's place."""


def numbers(values: torch.Tensor) -> torch.Tensor:
    """In a row, in float64; a complex number is two."""
    values = values.reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    if values.itemsize == 1 and values.is_floating_point():
        values = values.float()
    return values.double()


def error(values: torch.Tensor, target: torch.Tensor, scale: torch.Tensor | None = None) -> Error:
    """Of `values` against `target`, both in a row. `scale` is what the size is taken of, where that
    is not the target: a step's change is small beside the weights it changes."""
    if values.numel() == 0:
        return Error()
    scale = target if scale is None else scale
    if not isfinite(float(values.sum() + target.sum() + scale.sum())):
        finite = values.isfinite() & target.isfinite() & scale.isfinite()
        values, target, scale = values[finite], target[finite], scale[finite]
        if values.numel() == 0:
            return Error()
    difference = (values - target).abs()
    size = scale.abs()
    rms = float(size.square().mean().sqrt())
    # Nothing but zeros has no size to be relative to: the error is taken as it is.
    elements = difference / (size + rms) if rms else difference
    where = int(elements.argmax())
    total = float(difference.square().mean().sqrt())
    return Error(
        norm=total / rms if rms else total,
        element=float(elements[where]),
        rest=_rest(difference, size),
        where=where,
    )


def _rest(difference: torch.Tensor, size: torch.Tensor) -> float:
    part = size[:: max(1, size.numel() // _LOOKED_AT)]
    nonzero = part[part > 0]
    if nonzero.numel() < 2:
        return 0.0
    limit = _HUGE * float(nonzero.median())
    if float(size.max()) <= limit:
        return 0.0
    huge = size > limit
    rest = float(size[~huge].norm())
    return float(difference[~huge].norm()) / rest if rest else 0.0


def distance(one: Outputs, other: Outputs) -> float:
    """The largest relative distance between two outputs' tensors; infinite where they differ in
    anything but rounding."""
    if len(one.leaves) != len(other.leaves):
        return inf
    return max((_apart(a, b) for a, b in zip(one.leaves, other.leaves, strict=True)), default=0.0)


def _apart(one: Leaf, other: Leaf) -> float:
    if (one.shape, one.dtype, one.text, one.nans) != (
        other.shape, other.dtype, other.text, other.nans,
    ):  # fmt: skip
        return inf
    if one.values is None or other.values is None:
        return 0.0 if one.values is other.values else inf
    if same_bits(one.values, other.values):
        return 0.0
    if not (one.values.is_floating_point() or one.values.is_complex()):
        return inf
    found = error(numbers(other.values), numbers(one.values)).norm
    return inf if isnan(found) else found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    a, b = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if a.is_complex():
        a, b = torch.view_as_real(a).reshape(-1), torch.view_as_real(b).reshape(-1)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def same_leaf(one: Leaf, other: Leaf) -> bool:
    about = ("path", "kind", "dtype", "shape", "text")
    if any(getattr(one, name) != getattr(other, name) for name in about):
        return False
    if one.values is None or other.values is None:
        return one.values is other.values
    return same_bits(one.values, other.values)


def same_outputs(one: Outputs, other: Outputs) -> bool:
    """Bit for bit."""
    if len(one.leaves) != len(other.leaves):
        return False
    return all(same_leaf(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def shuffled(values: torch.Tensor) -> torch.Tensor:
    """Every number in another's place."""
    return values.reshape(-1).roll(max(1, int(sqrt(values.numel())))).reshape(values.shape)


K, K_STATE, K_FEW = 3.0, 5.0, 10.0
FEW = 10
"""Below so many elements the baseline's own error is one draw of luck, and k is K_FEW."""
ELEMENT = 10.0
"""One element may be so many times further off than the whole: the worst of a million normal errors
is 5 times the root mean square."""
STATE = 50.0
"""The change of a step may be so many times further off than an output: an optimizer divides by
small numbers. 5e-4 of the change in float32, still a twentieth of 1 %."""
SAME_WAY = 0.7
"""Steps in two precisions differ by up to half with Adam, which takes a full step for any gradient,
rounding included (0.47 for a small GPT under bfloat16 autocast)."""
NOISE = 0.5
"""State whose change depends on rounding by more than this share follows nothing else: the bias
before a batch norm has a gradient of zero but for rounding, and Adam takes full steps along it."""
_TOLERANCES = {
    "float64": 1e-9, "complex128": 1e-9, "float32": 1e-5, "complex64": 1e-5, "float16": 1e-3,
    "complex32": 1e-3, "bfloat16": 1e-2,
}  # fmt: skip
_ALONE = {"float32": 10.0, "complex64": 10.0, "float16": 2.0}
"""Without a reference: gradients of deep float32 networks differ by 1e-5 to 1e-4 when sums are
taken in another order."""


class Pair(Struct, frozen=True, kw_only=True, eq=False):
    """One value of the baseline beside the candidate's."""

    path: str
    role: str
    """"output", "other inputs", or what kind of state it is."""
    baseline: Leaf
    candidate: Leaf
    reference: Leaf | None = None
    partial: bool = False
    """The reference shares some of the baseline's rounding, so the candidate gets more leeway."""
    before: Leaf | None = None
    """For state: what it was before the calls."""
    nudged: Error = Error()
    """What moving every input by its rounding error does to the baseline."""

    @property
    def is_state(self) -> bool:
        return self.role not in ("output", "other inputs")


class Rule(Struct, frozen=True):
    rtol: float | None = None
    """Declared, in place of the dtype's."""
    spread: float = 0.0
    """How far the baseline lies from itself."""


class Judged(Struct, frozen=True, kw_only=True):
    """What became of one pair."""

    ok: bool
    identical: bool = False
    error: float = 0.0
    allowed: float = 0.0
    own_error: float | None = None
    """The baseline's, against the reference."""
    words: str = ""
    """What is wrong."""
    notes: tuple[str, ...] = ()
    nan_share: float = 0.0


def tolerance(dtype: str) -> float:
    """Relative; 0 for what is exact."""
    if dtype in _TOLERANCES:
        return _TOLERANCES[dtype]
    return 0.1 if dtype.startswith("float") else 0.0  # float8: two or three bits


def judge(pair: Pair, rule: Rule) -> Judged:
    baseline, candidate = pair.baseline, pair.candidate
    if baseline.values is None or candidate.values is None:
        return _judge_words(pair)
    if baseline.shape != candidate.shape:
        return _wrong(pair, f"shape {_size(candidate)} against {_size(baseline)}")
    if candidate.values.shape != baseline.values.shape:
        return _wrong(pair, f"layout {candidate.layout} against {baseline.layout}")
    notes: tuple[str, ...] = ()
    if baseline.dtype != candidate.dtype:
        notes = (f"{_name(pair)} is {candidate.dtype} where the baseline's is {baseline.dtype}",)
    if same_bits(baseline.values, candidate.values):
        share = baseline.nans / max(baseline.values.numel(), 1) if baseline.nans else 0.0
        return Judged(ok=True, identical=True, notes=notes, nan_share=share)
    wrong = _not_finite(pair)
    if wrong:
        return _wrong(pair, wrong)
    exact = not (baseline.values.is_floating_point() or baseline.values.is_complex())
    if exact and rule.rtol is None:
        return _judge_exact(pair)
    return _judge_close(pair, rule, notes)


def _judge_words(pair: Pair) -> Judged:
    baseline, candidate = pair.baseline, pair.candidate
    if (baseline.values is None) != (candidate.values is None):
        return _wrong(pair, f"{candidate.type} against {baseline.type}")
    same = baseline.text == candidate.text
    if baseline.kind == "text" and not same:
        return _wrong(pair, f"{candidate.text[:40]} against {baseline.text[:40]}")
    if {baseline.kind, candidate.kind} == {"nothing", "opaque"}:
        return _wrong(pair, f"{candidate.type} against {baseline.type}")
    if baseline.kind == "opaque":
        notes = (f"{_name(pair)} is a {baseline.type}: not compared",)
        return Judged(ok=True, identical=True, notes=notes)
    return Judged(ok=True, identical=True)


def _judge_exact(pair: Pair) -> Judged:
    baseline, candidate = numbers(pair.baseline.values), numbers(pair.candidate.values)  # type: ignore[arg-type]
    differing = int((baseline != candidate).sum())
    if differing:
        return _wrong(
            pair,
            f"{differing:,} of {baseline.numel():,} values differ, and {pair.baseline.dtype} must "
            "not",
            share=differing / baseline.numel(),
        )
    return Judged(ok=True, identical=pair.baseline.dtype == pair.candidate.dtype)


def _judge_close(pair: Pair, rule: Rule, notes: tuple[str, ...]) -> Judged:
    found = _errors(pair)
    if pair.is_state and max(found.baseline.norm, pair.nudged.norm) > NOISE:
        words = f"{_name(pair)}: it moves by rounding alone, and is not compared"
        return Judged(ok=True, identical=False, notes=(*notes, words))
    allowed = _allowed(pair, rule, found)
    worst, limit, what = found.candidate.norm, allowed.norm, ""
    for value, most, kind in (
        (found.candidate.rest, allowed.rest, "without its largest numbers "),
        (found.candidate.element, allowed.element, "at one element "),
    ):
        # Whichever is furthest beyond what it may be says most.
        if value > most and value * max(limit, 1e-300) > worst * max(most, 1e-300):
            worst, limit, what = value, most, kind
    ok = worst <= limit and isfinite(worst)
    values = pair.baseline.values
    assert values is not None
    return Judged(
        ok=ok,
        error=worst,
        allowed=limit,
        own_error=found.baseline.norm if pair.reference is not None else None,
        words="" if ok else f"{_name(pair)}: off by {worst:.2g} {what}where {limit:.2g} is allowed",
        notes=notes,
        nan_share=pair.baseline.nans / max(values.numel(), 1),
    )


class _Errors(Struct, frozen=True):
    candidate: Error
    baseline: Error
    size: float
    """Of the values beside that of what is measured, which is their change where they are state."""


def _errors(pair: Pair) -> _Errors:
    baseline, candidate = numbers(pair.baseline.values), numbers(pair.candidate.values)  # type: ignore[arg-type]
    target = baseline
    if pair.reference is not None and pair.reference.values is not None:
        target = numbers(pair.reference.values)
    scale, size = target, 1.0
    if pair.before is not None and pair.before.values is not None:
        scale = baseline - numbers(pair.before.values)
        moved = float(scale.norm())
        size = float(baseline.norm()) / moved if moved else 1.0
    own = error(baseline, target, scale) if target is not baseline else Error()
    return _Errors(error(candidate, target, scale), own, size)


def _allowed(pair: Pair, rule: Rule, found: _Errors) -> Error:
    few = pair.baseline.values is not None and pair.baseline.values.numel() < FEW
    k = K_FEW if few else K_STATE if pair.is_state else K
    dtype = pair.baseline.dtype
    alone = pair.reference is None
    tol = tolerance(dtype) * (_ALONE.get(dtype, 1.0) if alone else 1.0 if pair.partial else 0.1)
    if pair.is_state:
        # Storing a weight rounds it by its own size, not by that of its change.
        tol = min(tol * STATE, 0.2) + 4 * _eps(dtype) * found.size
    own = found.baseline
    if rule.rtol is not None:
        return _declared(pair, rule, found)
    if alone:
        norm = max(tol, k * pair.nudged.norm) + K * rule.spread
        rest = max(tol, k * pair.nudged.rest) + K * rule.spread
    else:
        norm = k * max(own.norm, pair.nudged.norm) + tol + K * rule.spread
        rest = k * max(own.rest, pair.nudged.rest) + tol + K * rule.spread
    worst = max(own.element, pair.nudged.element)
    # A step may flip a sign where a gradient is nothing but rounding; that is one element's matter.
    element = float("inf") if pair.is_state else ELEMENT * norm + K * worst
    return Error(norm, element, ELEMENT * rest)


def _declared(pair: Pair, rule: Rule, found: _Errors) -> Error:
    """Whatever a tolerance says, the change of state must point the same way: a step not taken is
    off by 1."""
    rtol = rule.rtol or 0.0
    norm = rtol + found.baseline.norm + K * rule.spread
    if pair.is_state:
        return Error(max(norm, min(rtol * STATE, SAME_WAY)), float("inf"), float("inf"))
    element = ELEMENT * (rtol + K * rule.spread) + found.baseline.element
    return Error(norm, element, ELEMENT * norm)


def _not_finite(pair: Pair) -> str:
    """NaN and infinity must be in the same places; agreeing there is no agreement elsewhere."""
    baseline, candidate = pair.baseline, pair.candidate
    for kind, theirs, ours in (
        ("NaN", baseline.nans, candidate.nans),
        ("infinite", baseline.infinities, candidate.infinities),
    ):
        if theirs != ours:
            return f"{ours:,} {kind} values where the baseline has {theirs:,}"
    if not (baseline.nans or baseline.infinities):
        return ""
    a, b = numbers(baseline.values), numbers(candidate.values)  # type: ignore[arg-type]
    if not torch.equal(a.isnan(), b.isnan()):
        return "NaN in other places than the baseline's"
    infinite = a.isinf()
    if not torch.equal(infinite, b.isinf()) or not torch.equal(a[infinite], b[infinite]):
        return "infinities in other places than the baseline's, or of another sign"
    return ""


def _wrong(pair: Pair, words: str, share: float = float("inf")) -> Judged:
    return Judged(ok=False, words=f"{_name(pair)}: {words}", error=share)


def _name(pair: Pair) -> str:
    return pair.path or "the output"


def _size(leaf: Leaf) -> str:
    return "×".join(str(n) for n in leaf.shape) or "one number"


def _eps(dtype: str) -> float:
    kind = getattr(torch, dtype, None)
    floating = isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex)
    return float(torch.finfo(kind).eps) if floating else 0.0  # type: ignore[arg-type]
