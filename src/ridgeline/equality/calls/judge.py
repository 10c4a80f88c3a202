"""Distances between the outputs of calls, and whether they are within tolerance."""

from math import inf, isfinite, isnan, sqrt

import msgspec
import torch
from msgspec import Struct

from ridgeline.equality.calls.outputs import Leaf, Outputs

MIN_DWARFING_RATIO = 1000.0
"""Numbers larger than this many times the median are judged separately: compared with a mask's -1e9
any error is small."""

_MEDIAN_SAMPLE = 2**14  # elements


class Error(Struct, frozen=True):
    """Relative distances of one tensor from another."""

    norm: float = 0.0
    """Norm of the difference, over the norm of the scale."""
    element: float = 0.0
    """Largest error of an element, over its own size plus the tensor's root mean square."""
    rest: float = 0.0
    """The same as `norm`, without numbers that dwarf the others; 0 if there are none."""
    where: int = 0
    """Index of the element with the largest error."""


def numbers(values: torch.Tensor) -> torch.Tensor:
    """Return the values in one row, in float64; a complex number becomes two."""
    values = values.reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    if values.itemsize == 1 and values.is_floating_point():
        values = values.float()
    return values.double()


def error(values: torch.Tensor, target: torch.Tensor, scale: torch.Tensor | None = None) -> Error:
    """Return the error of `values` against `target`, both in a row. Errors are relative to `scale`
    if given, else to the target: a step's change is small beside the weights it changes."""
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
    # A scale of zeros gives no relative error: use the absolute one.
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
    part = size[:: max(1, size.numel() // _MEDIAN_SAMPLE)]
    nonzero = part[part > 0]
    if nonzero.numel() < 2:
        return 0.0
    limit = MIN_DWARFING_RATIO * float(nonzero.median())
    if float(size.max()) <= limit:
        return 0.0
    huge = size > limit
    rest = float(size[~huge].norm())
    return float(difference[~huge].norm()) / rest if rest else 0.0


def distance(one: Outputs, other: Outputs) -> float:
    """Return the largest relative distance between two outputs' tensors; infinite if they differ in
    more than rounding."""
    if len(one.leaves) != len(other.leaves):
        return inf
    pairs = zip(one.leaves, other.leaves, strict=True)
    return max((_leaf_distance(a, b) for a, b in pairs), default=0.0)


def _leaf_distance(one: Leaf, other: Leaf) -> float:
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
    norm = error(numbers(other.values), numbers(one.values)).norm
    return inf if isnan(norm) else norm


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
    """Return whether two outputs are bit-identical."""
    if len(one.leaves) != len(other.leaves):
        return False
    return all(same_leaf(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def shuffled(values: torch.Tensor) -> torch.Tensor:
    """Return the values with every number moved to another place."""
    return values.reshape(-1).roll(max(1, int(sqrt(values.numel())))).reshape(values.shape)


ERROR_FACTOR, STATE_ERROR_FACTOR, FEW_ERROR_FACTOR = 3.0, 5.0, 10.0
"""The candidate's error may be this many times the baseline's, for outputs, for state, and for
tensors of few elements."""
FEW_ELEMENTS = 10
"""With fewer elements the baseline's own error is a single draw."""
ELEMENT_FACTOR = 10.0
"""One element may be this many times further off than the whole: the worst of a million normal
errors is 5 times the root mean square."""
STATE_FACTOR = 50.0
"""The change that a step makes may be this many times further off than an output, because an
optimizer divides by small numbers. 5e-4 of the change in float32 is still a twentieth of 1 %."""
MAX_STATE_ERROR = 0.7
"""Steps in two precisions differ by up to half with Adam, which takes a full step for any gradient,
even one of rounding (0.47 for a small GPT under bfloat16 autocast)."""
MAX_NOISE_SHARE = 0.5
"""State whose change depends on rounding by more than this share follows rounding alone: the bias
before a batch norm has a gradient of zero but for rounding, and Adam takes full steps along it."""
_TOLERANCES = {
    "float64": 1e-9, "complex128": 1e-9, "float32": 1e-5, "complex64": 1e-5, "float16": 1e-3,
    "complex32": 1e-3, "bfloat16": 1e-2,
}  # fmt: skip
_NO_REFERENCE_FACTORS = {"float32": 10.0, "complex64": 10.0, "float16": 2.0}
"""Factor on the tolerance if there is no reference: gradients of deep float32 networks differ by
1e-5 to 1e-4 if sums are taken in another order."""


class Pair(Struct, frozen=True, kw_only=True, eq=False):
    """A value of the baseline and its counterpart in the candidate."""

    path: str
    role: str
    """"output", "other inputs", or what kind of state it is."""
    baseline: Leaf
    candidate: Leaf
    reference: Leaf | None = None
    partial: bool = False
    """Whether the reference shares some of the baseline's rounding: then more error is allowed."""
    before: Leaf | None = None
    """For state: its value before the calls."""
    nudged: Error = Error()
    """How far the baseline moves if every input moves by its rounding error."""

    @property
    def is_state(self) -> bool:
        return self.role not in ("output", "other inputs")


class Rule(Struct, frozen=True):
    rtol: float | None = None
    """Declared tolerance, instead of the dtype's."""
    spread: float = 0.0
    """How far the baseline's repeats lie apart."""


class Judged(Struct, frozen=True, kw_only=True):
    """The judgement of one pair."""

    ok: bool
    identical: bool = False
    error: float = 0.0
    allowed: float = 0.0
    own_error: float | None = None
    """The baseline's error against the reference."""
    words: str = ""
    """What is wrong."""
    other_non_finite: bool = False
    """Whether other elements than the baseline's are NaN or infinite."""
    notes: tuple[str, ...] = ()
    nan_share: float = 0.0


def tolerance(dtype: str) -> float:
    """Return the relative tolerance of a dtype; 0 if it must be exact."""
    if dtype in _TOLERANCES:
        return _TOLERANCES[dtype]
    return 0.1 if dtype.startswith("float") else 0.0  # float8: two or three bits


def judge(pair: Pair, rule: Rule) -> Judged:
    baseline, candidate = pair.baseline, pair.candidate
    if baseline.values is None or candidate.values is None:
        return _judge_text(pair)
    if baseline.shape != candidate.shape:
        return _failed(pair, f"shape {_size(candidate)} against {_size(baseline)}")
    if candidate.values.shape != baseline.values.shape:
        return _failed(pair, f"layout {candidate.layout} against {baseline.layout}")
    notes: tuple[str, ...] = ()
    if baseline.dtype != candidate.dtype:
        notes = (f"{_name(pair)} is {candidate.dtype} where the baseline's is {baseline.dtype}",)
    if same_bits(baseline.values, candidate.values):
        share = baseline.nans / max(baseline.values.numel(), 1) if baseline.nans else 0.0
        return Judged(ok=True, identical=True, notes=notes, nan_share=share)
    wrong = _not_finite(pair)
    if wrong:
        return msgspec.structs.replace(_failed(pair, wrong), other_non_finite=True)
    exact = not (baseline.values.is_floating_point() or baseline.values.is_complex())
    if exact and rule.rtol is None:
        return _judge_exact(pair)
    return _judge_close(pair, rule, notes)


def _judge_text(pair: Pair) -> Judged:
    baseline, candidate = pair.baseline, pair.candidate
    if (baseline.values is None) != (candidate.values is None):
        return _failed(pair, f"{candidate.type} against {baseline.type}")
    same = baseline.text == candidate.text
    if baseline.kind == "text" and not same:
        return _failed(pair, f"{candidate.text[:40]} against {baseline.text[:40]}")
    if {baseline.kind, candidate.kind} == {"nothing", "opaque"}:
        return _failed(pair, f"{candidate.type} against {baseline.type}")
    if baseline.kind == "opaque":
        notes = (f"{_name(pair)} is a {baseline.type}: not compared",)
        return Judged(ok=True, identical=True, notes=notes)
    return Judged(ok=True, identical=True)


def _judge_exact(pair: Pair) -> Judged:
    baseline, candidate = numbers(pair.baseline.values), numbers(pair.candidate.values)  # type: ignore[arg-type]
    differing = int((baseline != candidate).sum())
    if differing:
        return _failed(
            pair,
            f"{differing:,} of {baseline.numel():,} values differ, and {pair.baseline.dtype} must "
            "not",
            share=differing / baseline.numel(),
        )
    return Judged(ok=True, identical=pair.baseline.dtype == pair.candidate.dtype)


def _judge_close(pair: Pair, rule: Rule, notes: tuple[str, ...]) -> Judged:
    errors = _errors(pair)
    if pair.is_state and max(errors.baseline.norm, pair.nudged.norm) > MAX_NOISE_SHARE:
        words = f"{_name(pair)} follows rounding alone and is not compared"
        return Judged(ok=True, identical=False, notes=(*notes, words))
    allowed = _allowed(pair, rule, errors)
    worst, limit, what = errors.candidate.norm, allowed.norm, ""
    for value, allowed_value, kind in (
        (errors.candidate.rest, allowed.rest, "without its largest numbers "),
        (errors.candidate.element, allowed.element, "at one element "),
    ):
        # Report the measure that is furthest beyond its limit.
        if value > allowed_value and value * max(limit, 1e-300) > worst * max(
            allowed_value, 1e-300
        ):
            worst, limit, what = value, allowed_value, kind
    ok = worst <= limit and isfinite(worst)
    values = pair.baseline.values
    assert values is not None
    return Judged(
        ok=ok,
        error=worst,
        allowed=limit,
        own_error=errors.baseline.norm if pair.reference is not None else None,
        words="" if ok else f"{_name(pair)}: off by {worst:.2g} {what}where {limit:.2g} is allowed",
        notes=notes,
        nan_share=pair.baseline.nans / max(values.numel(), 1),
    )


class _Errors(Struct, frozen=True):
    candidate: Error
    baseline: Error
    size: float
    """Norm of the values over the norm of the scale, which is their change if they are state."""


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


def _allowed(pair: Pair, rule: Rule, errors: _Errors) -> Error:
    few = pair.baseline.values is not None and pair.baseline.values.numel() < FEW_ELEMENTS
    factor = FEW_ERROR_FACTOR if few else STATE_ERROR_FACTOR if pair.is_state else ERROR_FACTOR
    dtype = pair.baseline.dtype
    no_reference = pair.reference is None
    allowed = tolerance(dtype) * (
        _NO_REFERENCE_FACTORS.get(dtype, 1.0) if no_reference else 1.0 if pair.partial else 0.1
    )
    if pair.is_state:
        # Storing a weight rounds it relative to its own size, not to that of its change.
        allowed = min(allowed * STATE_FACTOR, 0.2) + 4 * _eps(dtype) * errors.size
    own = errors.baseline
    if rule.rtol is not None:
        return _declared(pair, rule, errors)
    if no_reference:
        norm = max(allowed, factor * pair.nudged.norm) + ERROR_FACTOR * rule.spread
        rest = max(allowed, factor * pair.nudged.rest) + ERROR_FACTOR * rule.spread
    else:
        norm = factor * max(own.norm, pair.nudged.norm) + allowed + ERROR_FACTOR * rule.spread
        rest = factor * max(own.rest, pair.nudged.rest) + allowed + ERROR_FACTOR * rule.spread
    worst = max(own.element, pair.nudged.element)
    # A step may flip a sign where a gradient is only rounding: single elements are not judged.
    element = float("inf") if pair.is_state else ELEMENT_FACTOR * norm + ERROR_FACTOR * worst
    return Error(norm, element, ELEMENT_FACTOR * rest)


def _declared(pair: Pair, rule: Rule, errors: _Errors) -> Error:
    """Return what a declared tolerance allows. However large it is, the change of state must point
    the same way: a step not taken is off by 1."""
    rtol = rule.rtol or 0.0
    norm = rtol + errors.baseline.norm + ERROR_FACTOR * rule.spread
    if pair.is_state:
        return Error(
            max(norm, min(rtol * STATE_FACTOR, MAX_STATE_ERROR)), float("inf"), float("inf")
        )
    element = ELEMENT_FACTOR * (rtol + ERROR_FACTOR * rule.spread) + errors.baseline.element
    return Error(norm, element, ELEMENT_FACTOR * norm)


def _not_finite(pair: Pair) -> str:
    """Return what differs if NaN and infinity are not in the same places; "" if they are."""
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


def _failed(pair: Pair, words: str, share: float = float("inf")) -> Judged:
    return Judged(ok=False, words=f"{_name(pair)}: {words}", error=share)


def _name(pair: Pair) -> str:
    return pair.path or "the output"


def _size(leaf: Leaf) -> str:
    return "×".join(str(n) for n in leaf.shape) or "one number"


def _eps(dtype: str) -> float:
    kind = getattr(torch, dtype, None)
    floating = isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex)
    return float(torch.finfo(kind).eps) if floating else 0.0  # type: ignore[arg-type]
