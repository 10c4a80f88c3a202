"""Whether the patched program does by itself what the trial it was made from did."""

from collections.abc import Sequence

from ridgeline import units
from ridgeline.equality.trials.parity import compare
from ridgeline.fixes.change import of
from ridgeline.harness.trials.arm import Outcome
from ridgeline.optimization.candidate import alters, precision
from ridgeline.optimization.measure import timed, typical_ms
from ridgeline.records.facts import because
from ridgeline.records.optimized import SearchCode, Total
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.records.trial import Trial
from ridgeline.report.reasons import explain

HALF = 0.5
"""Of the gain, in logarithms: one process by itself against the middle of several differs by a few
per cent, a change that is not there by all it brings."""
SLOWER = 1.2
"""Times the trial's time, where that was kept for something else than speed: memory."""
WAVERS = 1.1
"""Times as slow as the trials' interval, and one process may still be one of them."""


def doubtful(total: Total, outcome: Outcome) -> bool:
    """The copy ran slower than the trials let expect: that, or the machine was busy just then. Run
    again it tells: a change that is not there is not there either time."""
    return outcome.trial is not None and timed(outcome.trial) and _slower(total, outcome.trial)


def agreement(
    total: Total,
    outcomes: Sequence[Outcome],
    missing: Sequence[str],
    baseline: Sequence[Trial],
    like: Trial | None,
) -> tuple[str, bool]:
    """A sentence, and whether it is as fast and computes the same. `outcomes`: of the copy, run
    once, or again where that was doubtful; `missing`: changes the copy has not."""
    ran = [one.trial for one in outcomes if one.trial is not None and timed(one.trial)]
    if not ran:
        failure = outcomes[0].failure or because(SearchCode.TOO_FEW_STEPS)
        return f"the copy does not run as the program did: {explain(failure)}", False
    tried = _tried(total)
    said = ["by itself: " + ", run again ".join(_speed(total, one) for one in ran)]
    parity, whose = _parity(total, ran[0], baseline, like)
    if parity is not None:
        said.append(_results(parity, whose))
    fast = max(_gain(total, one) for one in ran) >= (tried**HALF if tried > 1 else tried / SLOWER)
    if missing:
        titles = ", ".join(of(change).change.title for change in dict.fromkeys(missing))
        said.append(f"without what is to be written by hand ({titles}): {tried:.2f} × with it")
    elif not fast:
        said.append(f"the trial reached {tried:.2f} ×: the copy is not what was tried")
    elif all(_slower(total, one) for one in ran):
        said.append(f"the trials reached {tried:.2f} ×, {units.seconds(total.after_ms / 1e3)}")
    same = parity is None or parity.equality in ("equal", "weak")
    return "; ".join(said), fast and same and not missing


def _tried(total: Total) -> float:
    return total.before_ms / total.after_ms if total.after_ms else 1.0


def _gain(total: Total, trial: Trial) -> float:
    alone = typical_ms((trial,))
    return total.before_ms / alone if alone else 0.0


def _slower(total: Total, trial: Trial) -> bool:
    low = total.ratio.ci_low / total.ratio.value
    return _gain(total, trial) < _tried(total) * low / WAVERS


def _speed(total: Total, trial: Trial) -> str:
    alone = typical_ms((trial,))
    return f"{_gain(total, trial):.2f} ×, {units.seconds(alone / 1e3)} a step"


def _results(parity: Parity, whose: str) -> str:
    named = {check.what for check in parity.checks}
    what = "losses" if named & {"losses", MEANS} else "results"
    if parity.equality in ("equal", "weak"):
        like = "like" if MEANS in named else "equal to"
        weak = "" if parity.equality == "equal" else f" ({parity.why})"
        return f"{what} {like} {whose}{weak}"
    return f"{what} {'differ' if parity.equality == 'differs' else 'unknown'}: {parity.why}"


def _parity(
    total: Total, trial: Trial, baseline: Sequence[Trial], like: Trial | None
) -> tuple[Parity | None, str]:
    """Against the trial first, which drew the same random numbers where it was compiled; then
    against the unchanged program, whose own variation is known. And whose results these were."""
    changes = [of(one.change).change for one in total.applied]
    most, lowest = alters(changes), precision(changes)
    found, whose = None, "the trial's"
    if like is not None:
        # what alters semantics altered the trial's as well: the copy must still do what it did
        known: Alters = "rounding" if most == "semantics" else most
        found = compare([like], trial, known, lowest)
    if baseline and (found is None or found.equality in ("differs", "unknown")):
        plain = compare(baseline, trial, most, lowest)
        if found is None or plain.equality in ("equal", "weak"):
            found, whose = plain, "the unchanged program's"
    return found, whose
