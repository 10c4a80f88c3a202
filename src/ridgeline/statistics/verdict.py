"""FASTER, SLOWER, SAME or UNDECIDED, and why.

FASTER and SLOWER need an interval without 1 and an estimate beyond what matters and beyond what
identical code showed in the same rounds. SAME is a finding, too: the whole interval lies within
what does not matter. All else is UNDECIDED, with what is missing; too few rounds are never SAME.
"""

import math

from ridgeline.records.comparison import Control, Estimate
from ridgeline.records.facts import Verdict

FEWEST_ROUNDS = 6
"""Under 6 rounds no 95 % interval of the median exists, and no bootstrap invents one."""
_FAR = 5  # times the threshold: 10 % apart, where the threshold is 2 %
_HOPELESS = 100  # times the rounds; beyond, a number would be a guess


def judge(estimate: Estimate, control: Control, *, threshold: float) -> tuple[Verdict, str]:
    """`threshold` is the share that matters: 0.02 for a ratio of 1.02 or 1 / 1.02."""
    if threshold < 0 or not math.isfinite(threshold):
        raise ValueError(f"the share that matters must be finite and not negative, not {threshold}")
    if estimate.rounds < FEWEST_ROUNDS:
        rounds = f"only {estimate.rounds} round{'s' if estimate.rounds != 1 else ''}"
        return "UNDECIDED", f"{rounds}; {FEWEST_ROUNDS} are needed"
    if control.differs:
        apart = _percent(abs(math.log(control.estimate.ratio)))
        return "UNDECIDED", f"identical code looked {apart} apart: no verdict can be believed"
    size = abs(math.log(estimate.ratio))
    matters = math.log1p(threshold)
    apart_from_one = estimate.ci_low > 1.0 or estimate.ci_high < 1.0
    if apart_from_one and _clears(estimate, control, size, threshold):
        verdict: Verdict = "FASTER" if estimate.ratio > 1.0 else "SLOWER"
        return verdict, _beyond(estimate, control, threshold)
    if -matters <= math.log(estimate.ci_low) and math.log(estimate.ci_high) <= matters:
        reach = f"{_ratio(estimate.ci_low)} to {_ratio(estimate.ci_high)}"
        return "SAME", f"any difference is below the {_percent(matters)} that matters: {reach} ×"
    return "UNDECIDED", _missing(estimate, control, size, matters, apart_from_one)


def _clears(estimate: Estimate, control: Control, size: float, threshold: float) -> bool:
    """Beyond what matters and beyond what identical code showed. Where that was far, and the
    control's own interval leaves out 1, chance is a poor excuse for it: then all of the candidate's
    interval must be. (Asked of every control that leaves out 1, it would cost 4 of the 93 % of
    5 % effects found.)"""
    if size < math.log1p(max(threshold, control.floor)):
        return False
    aa = control.estimate
    if aa.ci_low <= 1.0 <= aa.ci_high or control.floor < _FAR * threshold:
        return True
    nearest = min(abs(math.log(estimate.ci_low)), abs(math.log(estimate.ci_high)))
    return nearest >= math.log1p(control.floor)


def differs(strict: Estimate, *, threshold: float) -> bool:
    """Whether the control, its interval at a fifth of the level, says that identical code
    differs, and by something that matters."""
    apart = strict.ci_low > 1.0 or strict.ci_high < 1.0
    return (
        strict.rounds >= FEWEST_ROUNDS
        and apart
        and abs(math.log(strict.ratio)) >= math.log1p(threshold)
    )


def _beyond(estimate: Estimate, control: Control, threshold: float) -> str:
    found = (
        f"{_ratio(estimate.ratio)} × as fast ({_ratio(estimate.ci_low)} to"
        f" {_ratio(estimate.ci_high)})"
    )
    if control.floor > threshold:
        return f"{found}, more than the {_percent(math.log1p(control.floor))} of identical code"
    return f"{found}, more than the {_percent(math.log1p(threshold))} that matters"


def _missing(
    estimate: Estimate, control: Control, size: float, matters: float, apart_from_one: bool
) -> str:
    half = (math.log(estimate.ci_high) - math.log(estimate.ci_low)) / 2
    if size < matters:
        more = _more_rounds(half, matters - size)
        if not apart_from_one:
            return _reaches(estimate) + more
        return (
            f"a difference of {_percent(size)} was found, less than the {_percent(matters)} that"
            f" matters, but up to {_percent(size + half)} cannot be ruled out{more}"
        )
    if not apart_from_one:
        return _reaches(estimate) + _more_rounds(half, size)
    floor = math.log1p(control.floor)
    return (
        f"a difference of {_percent(size)} was found, but identical code looked"
        f" {_percent(floor)} apart in the same rounds{_more_rounds(floor, size)}"
    )


def _reaches(estimate: Estimate) -> str:
    return f"the interval reaches from {_ratio(estimate.ci_low)} to {_ratio(estimate.ci_high)}"


def _more_rounds(have: float, need: float) -> str:
    """Widths shrink with the square root of the rounds."""
    if need <= 0.0 or have / need > math.sqrt(_HOPELESS):
        return "; no number of rounds worth running would settle it"
    return f"; about {max(math.ceil((have / need) ** 2), 2)} × as many rounds would settle it"


def _percent(size: float) -> str:
    """A difference of logarithms as a share."""
    share = 100 * math.expm1(min(size, 300.0))
    if share >= 10:
        return f"{share:.0f} %" if share < 1e6 else "over a million %"
    text = f"{share:.1f}"
    return f"{text.removesuffix('.0')} %"


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if 0.9 < ratio < 1.1 else f"{ratio:.3g}"
