"""Functions compared: in one process, or, where they would disturb each other, each in its own."""

from collections.abc import Callable, Sequence

import msgspec

from ridgeline.comparison.arms import BASELINE, CONTROL, ArmFailed, Disturbing, stand
from ridgeline.comparison.hosting.pipe import SkippedError
from ridgeline.comparison.hosting.remote import RemoteHost, remote_for
from ridgeline.comparison.isolated import isolated
from ridgeline.comparison.options import Options, Say
from ridgeline.comparison.together import together
from ridgeline.errors import RidgelineError
from ridgeline.measure.deadline import BudgetEnded
from ridgeline.records.comparison import Comparison, Skipped

_MANY_LINES = 20


def compare_functions(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare targets `file.py:name`, the first one the baseline."""
    return without_broken(targets, lambda left: _compare(left, options, say))


def without_broken(
    targets: Sequence[str], compare: Callable[[Sequence[str]], Comparison]
) -> Comparison:
    """Compare, and go on without a candidate that cannot be run; it is named in `broken`. Raises
    where the baseline or the only candidate cannot."""
    left, broken = list(targets), []
    while True:
        try:
            comparison = compare(left)
        except BudgetEnded as ended:
            raise _undecided(ended) from ended
        except ArmFailed as failed:
            if failed.arm in (BASELINE, CONTROL) or len(left) == 2:
                raise failed.error from failed
            at = int(failed.arm)
            broken.append(skipped(left.pop(at), failed.error))
        else:
            return msgspec.structs.replace(comparison, broken=tuple(broken))


def _undecided(ended: BudgetEnded) -> RidgelineError:
    """Return the error for a budget that ended before the first round: there is no verdict, and no
    variant has failed."""
    what = NOT_YET_DONE.get(ended.stage, "had been timed")
    return RidgelineError(
        f"UNDECIDED: the budget ended before {ended.about or 'the first round'} {what}",
        "allow more time with --budget",
    )


NOT_YET_DONE = {
    "open": "was built",
    "collect": "had made its first calls",
    "first_calls": "had made its first call",
    "run": "had ended its first run",
    "warm_up": "was warm",
}
"""What a variant had not yet done when the budget ended, by the stage that was under way."""


def skipped(name: str, error: Exception) -> Skipped:
    """An arm or a pair that was not measured, as a row of the table."""
    if isinstance(error, SkippedError):
        return Skipped(name=name, status="SKIP", reason=str(error))
    if isinstance(error, RidgelineError):
        return Skipped(name=name, status="BROKEN", reason=error.message, hint=error.hint)
    raise error


def _compare(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    if options.isolate:
        return isolated(targets, options, say)
    say("starting")
    with remote_for(options) as host:
        standings = stand(targets, lambda arm, name: host)
        try:
            for standing in standings:
                if standing.arm != CONTROL:
                    say(f"{standing.name}: building")
                    standing.open(options.seed)
            comparison = together(host, standings, options, say)
            return _noting(comparison, _printed(host))
        except Disturbing as disturbing:
            why = f"each variant ran in its own process, because one changes {disturbing}"
    say(why)
    return _noting(isolated(targets, options, say), why)


def _printed(host: RemoteHost) -> str:
    lines = host.printed_lines()
    if lines < _MANY_LINES:
        return ""
    return f"the variants printed {lines:,} lines, which were held back: printing is in their time"


def _noting(comparison: Comparison, note: str) -> Comparison:
    if not note:
        return comparison
    return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))
