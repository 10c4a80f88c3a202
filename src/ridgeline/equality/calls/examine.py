"""Compares the evidence of two workloads: whether the results are the same, how much the check is
worth, and whether anything was seen that would make a timing wrong."""

from collections.abc import Callable, Sequence
from math import isfinite

import msgspec
import torch
from msgspec import Struct

from ridgeline.equality.calls.evidence import Evidence
from ridgeline.equality.calls.guards import guards_of
from ridgeline.equality.calls.judge import Judged, Pair, Rule, distance, judge, numbers, shuffled
from ridgeline.equality.calls.outputs import Leaf, Outputs, put_together
from ridgeline.equality.calls.pairing import Paired, pair_up
from ridgeline.errors import TargetError
from ridgeline.harness.usercode.workload import Check, Declared
from ridgeline.records.comparison import Guard, Results, Strength

WRONG_SCALES = (1.5, 1.05, 1.01)
MIN_NUMBERS = 8
"""Fewer numbers can agree by chance, and a sum can hide differences."""
MAX_TRIED_ELEMENTS = 2**16

Accepts = Callable[[Sequence[Leaf]], bool]
"""Returns whether a check passes with these leaves in place of the candidate's."""


class CheckStrength(Struct, frozen=True):
    strength: Strength
    reasons: tuple[str, ...]


def strength_of(
    pairs: Sequence[Pair], accepts: Accepts, compared: int, nan_share: float
) -> CheckStrength:
    """Judge a check by whether wrong answers pass it. `accepts` gets one leaf for each pair."""
    if not compared:
        return CheckStrength("none", ("nothing that was returned or changed could be compared",))
    reasons = []
    floats = any(_is_float(pair) for pair in pairs)
    if accepts([_zeros(pair) for pair in pairs]):
        stale = all(pair.is_state for pair in pairs)
        reasons.append("a step not taken would pass" if stale else "an answer of zeros would pass")
    for scale in WRONG_SCALES if floats else ():
        if accepts([_scaled(pair, scale) for pair in pairs]):
            reasons.append(f"an answer {100 * (scale - 1):.0f} % off would pass")
            break
    movable = [pair for pair in pairs if _can_be_shuffled(pair)]
    if movable and accepts([_shuffled(pair) for pair in pairs]):
        reasons.append("the right numbers in the wrong places would pass")
    changed = any(pair.is_state for pair in pairs)
    if compared < MIN_NUMBERS and not changed:
        reasons.append(
            f"{'one number was' if compared == 1 else f'{compared} numbers were'} compared"
        )
    if nan_share > 0.5:
        reasons.append(f"{100 * nan_share:.0f} % of the numbers are NaN in both")
    return CheckStrength("weak" if reasons else "strong", tuple(reasons))


def by_rule(pairs: Sequence[Pair], rule: Rule) -> Accepts:
    """Return our own check in the form that `strength_of` needs."""

    def accepts(leaves: Sequence[Leaf]) -> bool:
        return all(
            judge(msgspec.structs.replace(pair, candidate=leaf), rule).ok
            for pair, leaf in zip(pairs, leaves, strict=True)
        )

    return accepts


def thinned(pair: Pair) -> Pair:
    """Return the pair with fewer elements: a scale or a shuffle shows in any part of a tensor."""
    values = pair.baseline.values
    if values is None or values.numel() <= MAX_TRIED_ELEMENTS:
        return pair
    step = -(-values.numel() // MAX_TRIED_ELEMENTS)

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
        return _leaf_with(pair.baseline, pair.before.values)
    values = pair.baseline.values
    return pair.baseline if values is None else _leaf_with(pair.baseline, torch.zeros_like(values))


def _scaled(pair: Pair, scale: float) -> Leaf:
    values = pair.baseline.values
    if values is None or not _is_float(pair):
        return pair.baseline
    start = _start(pair, values)
    return _leaf_with(pair.baseline, start + (_widened(values) - start) * scale)


def _shuffled(pair: Pair) -> Leaf:
    values = pair.baseline.values
    if values is None:
        return pair.baseline
    if not _is_float(pair):
        return _leaf_with(pair.baseline, shuffled(values))
    start = _start(pair, values)
    return _leaf_with(pair.baseline, start + shuffled(_widened(values) - start))


def _can_be_shuffled(pair: Pair) -> bool:
    values = pair.baseline.values
    return values is not None and values.numel() > 1 and not torch.equal(values, shuffled(values))


def _start(pair: Pair, values: torch.Tensor) -> torch.Tensor:
    before = pair.before.values if pair.before is not None else None
    return _widened(before) if before is not None else torch.zeros_like(_widened(values))


def _widened(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128) if values.is_complex() else values.double()


def _leaf_with(leaf: Leaf, values: torch.Tensor) -> Leaf:
    # Kept in the leaf's own dtype: a file's check may look at it.
    if leaf.values is not None and leaf.kind != "number":
        values = values.to(leaf.values.dtype)
    row = numbers(values)
    nans, infinities = int(row.isnan().sum()), int(row.isinf().sum())
    return msgspec.structs.replace(leaf, values=values, nans=nans, infinities=infinities)


def _is_float(pair: Pair) -> bool:
    values = pair.baseline.values
    return values is not None and (values.is_floating_point() or values.is_complex())


class UserCheck:
    """The user's own check, called on the outputs of each call."""

    def __init__(self, check: Check, baseline: Evidence, candidate: Evidence) -> None:
        self._check = check
        self._calls = list(zip(baseline.outputs, candidate.outputs, strict=False))

    def why_not_usable(self) -> str:
        """Return why the check cannot be called; "" if it can."""
        if any(not outputs.whole for pair in self._calls for outputs in pair):
            return "the outputs are too large to keep whole for the user's check"
        return ""

    def refuse_broken(self) -> None:
        """Raise if the check rejects the baseline compared with itself."""
        ours = self._calls[0][0]
        words = self._call(ours, ours, None)
        if words:
            raise TargetError(
                f"the check rejects the baseline's own output beside itself: {words}",
                "check(baseline_output, candidate_output) must accept two equal outputs",
            )

    def objection(self) -> str:
        """Return why the check rejects the candidate; "" if it does not."""
        for turn, (ours, theirs) in enumerate(self._calls):
            words = self._call(ours, theirs, None)
            if words:
                return words if turn == 0 else f"call {turn + 1}: {words}"
        return ""

    def accepts(self, leaves: Sequence[Leaf]) -> bool:
        """Return whether the baseline's first output passes if these values replace its own."""
        ours = self._calls[0][0]
        return not self._call(ours, ours, tuple(leaves))

    @property
    def first(self) -> Outputs:
        """The baseline's first outputs."""
        return self._calls[0][0]

    def _call(self, ours: Outputs, theirs: Outputs, leaves: tuple[Leaf, ...] | None) -> str:
        """Call the check and return its objection in words; "" if it passes."""
        try:
            answer = self._check(put_together(ours), put_together(theirs, leaves))
        except AssertionError as error:
            lines = [line for line in str(error).strip().splitlines() if line.strip()]
            return lines[0][:300] if lines else "an assertion failed"
        except Exception as error:
            return f"it raised {type(error).__name__}: {str(error)[:200]}"
        if isinstance(answer, str):
            return answer[:300]
        if answer is None:
            return ""
        try:
            return "" if bool(answer) else "it returned False"
        except (RuntimeError, ValueError, TypeError):
            return f"it returned a {type(answer).__name__}, neither True nor False"


UNDECLARED = Declared()
MAX_SPREAD = 0.01
"""A baseline whose repeats lie further apart than this cannot be compared by numbers."""


def examine(
    baseline: Evidence,
    candidate: Evidence,
    *,
    declared: Declared = UNDECLARED,
    check: Check | None = None,
) -> tuple[Results, tuple[Guard, ...]]:
    """Judge the candidate's evidence by the baseline's. Runs no user code but `check`."""
    spread = baseline.spread or 0.0
    rule = Rule(rtol=declared.rtol, spread=spread if spread <= MAX_SPREAD else 0.0)
    paired = pair_up(baseline, candidate)
    judged = [judge(pair, rule) for pair in paired.pairs]
    case = _Case(baseline, candidate, paired, judged, rule)
    results = _by_check(case, check) if check is not None else _by_numbers(case)
    return results, guards_of(baseline, candidate, judged, rule)


class _Case(Struct, frozen=True, eq=False):
    baseline: Evidence
    candidate: Evidence
    paired: Paired
    judged: list[Judged]
    rule: Rule

    @property
    def objections(self) -> list[str]:
        return [*self.paired.differences, *(j.words for j in self.judged if not j.ok)]

    @property
    def compared(self) -> int:
        """Number of compared values, each counted once."""
        return sum(
            pair.baseline.numbers
            for place, pair in enumerate(self.paired.pairs)
            if place not in self.paired.repeated and pair.candidate.values is not None
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        noted = dict.fromkeys((*self.paired.notes, *self.baseline.notes, *self.candidate.notes))
        for judged in self.judged:
            noted |= dict.fromkeys(judged.notes[:1])
        return tuple(noted)


def _by_numbers(case: _Case) -> Results:
    method = _method(case)
    pairs = case.paired.pairs
    objections = case.objections
    words = any(pair.baseline.kind == "text" for pair in pairs)
    if not (case.compared or words or objections):
        return _not_compared("the calls returned nothing and changed no tensor that can be seen")
    if objections and not case.paired.differences:
        excuse = _excuse(case)
        if excuse:
            return _not_compared(excuse, detail=objections[0])
    worst = _worst(case.judged)
    if objections:
        return Results(
            status="different",
            method=method,
            strength="strong",
            detail="; ".join([*objections[:2], *_different_start(case), *case.remarks]),
            compared=case.compared,
            worst_error=_finite(worst.error),
            allowed_error=worst.allowed or None,
            baseline_error=worst.own_error,
        )
    strength = _strength(case)
    identical = all(j.identical for j in case.judged)
    exact = case.rule.rtol is None
    return Results(
        status="bit-identical" if identical else "equal" if exact else "within tolerance",
        method=method,
        strength=strength.strength,
        detail=_detail(case, worst, identical),
        reasons=strength.reasons,
        compared=case.compared,
        worst_error=0.0 if identical else worst.error,
        allowed_error=worst.allowed or None,
        baseline_error=worst.own_error,
    )


def _by_check(case: _Case, check: Check) -> Results:
    user_check = UserCheck(check, case.baseline, case.candidate)
    method = "its own check"
    trouble = user_check.why_not_usable()
    if trouble:
        return _not_compared(trouble)
    user_check.refuse_broken()
    objection = user_check.objection()
    worst = _worst(case.judged)
    numbers = case.compared
    if objection:
        return Results(
            status="different", method=method, strength="strong", compared=numbers,
            detail=f"its own check rejects it: {objection}",
        )  # fmt: skip
    ours = user_check.first
    pairs = [
        Pair(path=leaf.path, role="output", baseline=leaf, candidate=leaf) for leaf in ours.leaves
    ]
    strength = strength_of(pairs, user_check.accepts, ours.numbers, 0.0)
    if not ours.numbers:
        strength = CheckStrength("weak", ("the outputs hold no numbers to try the check with",))
    status = "within tolerance" if case.objections else "equal"
    if not case.objections and case.judged and all(j.identical for j in case.judged):
        status = "bit-identical"
    by_us = f"; by our own measure {case.objections[0]}" if case.objections else ""
    return Results(
        status=status,  # type: ignore[arg-type]
        method=method,
        strength=strength.strength,
        detail="; ".join([f"its own check accepts it{by_us}", *case.remarks]),
        reasons=strength.reasons,
        compared=numbers,
        worst_error=_finite(worst.error),
    )


def _excuse(case: _Case) -> str:
    """Return why different results prove nothing against the candidate; "" if they do."""
    ours, theirs = draws_random_numbers(case.baseline), draws_random_numbers(case.candidate)
    alike = case.baseline.generator_states == case.candidate.generator_states
    if ours and theirs is not False and not alike:
        return (
            "both draw random numbers, but not the same ones: compare in eval mode, or give a check"
        )
    spread = case.baseline.spread
    if spread is not None and spread > MAX_SPREAD:
        own = f"{100 * spread:.2g} %" if isfinite(spread) else "more than rounding"
        return f"the baseline is not repeatable: its own results lie {own} apart; give a check"
    return ""


def draws_random_numbers(evidence: Evidence) -> bool | None:
    """Return whether another seed gives another result; None if that is unknown."""
    other, repeat = evidence.other_seed.outputs, evidence.repeat.outputs
    if other is None or repeat is None:
        return None
    own, moved = distance(evidence.outputs[0], repeat), distance(evidence.outputs[0], other)
    if moved == 0.0 or (own <= MAX_SPREAD and moved <= 3 * own):
        return False
    return True if own == 0.0 or moved > 10 * own else None


def _strength(case: _Case) -> CheckStrength:
    pairs = [thinned(pair) for pair in case.paired.pairs if pair.candidate.values is not None]
    nans = sum(j.nan_share * p.baseline.numbers for j, p in _judged_pairs(case))
    share = nans / max(sum(p.baseline.numbers for _, p in _judged_pairs(case)), 1)
    return strength_of(pairs, by_rule(pairs, case.rule), case.compared, share)


def _judged_pairs(case: _Case) -> list[tuple[Judged, Pair]]:
    return list(zip(case.judged, case.paired.pairs, strict=True))


def _worst(judged: Sequence[Judged]) -> Judged:
    """Return the judged pair nearest to its limit, or furthest beyond it."""
    return max(
        judged,
        key=lambda j: (not j.ok, j.error / j.allowed if j.allowed else j.error),
        default=Judged(ok=True),
    )


def _method(case: _Case) -> str:
    if case.rule.rtol is not None:
        return "declared tolerance"
    if any(pair.reference is not None for pair in case.paired.pairs):
        return "float64 reference"
    dtypes = dict.fromkeys(
        pair.baseline.dtype for pair in case.paired.pairs if pair.baseline.values is not None
    )
    floats = [name for name in dtypes if "float" in name or "complex" in name]
    if floats:
        return f"tolerances of {', '.join(floats)}"
    return "exact" if dtypes else "none"


def _detail(case: _Case, worst: Judged, identical: bool) -> str:
    numbers = f"{case.compared:,} number{'s' if case.compared != 1 else ''}"
    if identical:
        words = f"{numbers}, the same bit for bit" if case.compared else "the same text"
        return "; ".join([words, *case.remarks])
    parts = [f"worst error {worst.error:.2g}"]
    if worst.own_error is not None:
        parts += [f"the baseline's own {worst.own_error:.2g}", "against a float64 reference"]
    parts.append(f"{worst.allowed:.2g} allowed")
    if case.rule.spread:
        parts.append(f"the baseline's repeats {case.rule.spread:.2g} apart")
    return "; ".join([", ".join(parts), numbers, *case.remarks])


def _different_start(case: _Case) -> list[str]:
    """Return a remark if the two start with different values, which explains different results."""
    ours = {tensor.name: tensor for tensor in case.baseline.held}
    for theirs in case.candidate.held:
        mine = ours.get(theirs.name)
        if mine is None or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            continue
        if mine.digest != theirs.digest:
            return [f"they start with different values in {theirs.name}: give both the same seed"]
    return []


def _not_compared(reason: str, detail: str = "") -> Results:
    return Results(
        status="not compared", method="none", strength="none", detail=detail or reason,
        reasons=(reason,),
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
