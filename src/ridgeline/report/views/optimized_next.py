"""The command to type after a search: a short check of the copy, a longer search if nothing is
confirmed, or the same search again."""

import math
import shlex

from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized, SearchCode, Total
from ridgeline.records.parity import MEANS, Parity
from ridgeline.records.trial import TrialFailure
from ridgeline.report.document import Command
from ridgeline.report.numbers import is_ratio
from ridgeline.report.views.optimized_phrases import remedy

MIN_STEPS, MAX_STEPS = 20, 60
"""Bounds on the steps of each of the 21 to 27 processes that `compare` runs. A process takes 3 to
4 s of a core to start, so with a second of steps in each the whole takes two minutes."""
COMPARED_STEPS_S = 1.0
DEFAULT_LOSS_TOLERANCE = 1e-3
"""The relative difference of losses that `compare` allows by default."""
_MORE_TIME_HELPS = (
    SearchCode.OUT_OF_TIME, SearchCode.TOO_LITTLE_TIME, TrialFailure.OUT_OF_TIME,
)  # fmt: skip
_GOALS_OF_COMPARE = ("memory", "throughput")
_OPTIMIZER_CHECKS = {"settings", "learning rates", "gradient norms"}
"""Checks that are made only if an optimizer took steps."""


def next_command(ladder: Ladder) -> Command | None:
    """Return what to type next, and why; None if there is nothing to do."""
    result = ladder.optimized
    if result.is_confirmed and (check := _compare(result)):
        return Command("check it yourself", check)
    helps = remedy(ladder)
    if helps == "time" and result.longer:
        return Command("with more time", result.longer)
    if result.stopped is not None and result.stopped.code in _MORE_TIME_HELPS and result.longer:
        quiet = "on a quiet machine, " if helps == "quiet" else ""
        return Command(f"{quiet}with more time", result.longer)
    if helps == "quiet" and result.resume:
        return Command("on a quiet machine", result.resume)
    # A program that could not be timed cannot be timed in a second call either.
    if result.stopped and result.resume and (result.baseline_ms or result.interrupted):
        return Command("continue", result.resume)
    words = _words(result.command)
    # `ridgeline run` goes inside torchrun, not before it.
    if result.total is None and words and words[0] != "torchrun" and not result.is_function:
        return Command("see where its time goes", f"ridgeline run {result.command}")
    return None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _compare(result: Optimized) -> str:
    """Return the command that compares the copy with the original; "" if `compare` cannot. It names
    a number of steps, because otherwise whole programs would run."""
    written, total = result.written, result.total
    words = _words(result.command)
    if written is None or not written.files or total is None or not words:
        return ""
    if any(check.what == MEANS for check in total.parity.checks):
        return ""  # the copy draws other samples, so its losses differ by more than any tolerance
    script, *arguments = words
    copy = written.files[0]
    # `compare` takes what follows a colon for the name of a function.
    if not script.endswith(".py") or ":" in script + copy:
        return ""
    typed = ["ridgeline", "compare", _as_path(script), _as_path(copy)]
    if _takes_steps(total.parity):
        typed += ["--by", "step", "--steps", str(steps_to_compare(total))]
    typed += ["--goal", result.goal] if result.goal in _GOALS_OF_COMPARE else []
    if tolerance := tolerance_of(total.parity):
        typed += ["--tolerance", f"{tolerance:g}"]
    return shlex.join([*typed, *(["--", *arguments] if arguments else [])])


def steps_to_compare(total: Total) -> int:
    """Return how many steps take the baseline about a second."""
    known = is_ratio(total.before_ms)
    wanted = round(1e3 * COMPARED_STEPS_S / total.before_ms) if known else MAX_STEPS
    return min(max(wanted, MIN_STEPS), MAX_STEPS)


def _as_path(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def _takes_steps(parity: Parity) -> bool:
    """Return whether an optimizer took steps. A program that only infers, or that moves its
    parameters itself, is compared by whole runs."""
    names = {check.what for check in parity.checks}
    if "applied steps" in names:
        return bool(names & _OPTIMIZER_CHECKS)
    return bool(names - {"evaluation"})


def tolerance_of(parity: Parity) -> float | None:
    """Return the tolerance that losses needed, rounded up to one digit; None if the default of
    `compare` is enough."""
    allowed = [check.allowed for check in parity.checks if check.what == "losses"]
    most = max((value for value in allowed if value and math.isfinite(value)), default=0.0)
    if most <= DEFAULT_LOSS_TOLERANCE:
        return None
    digit = 10.0 ** math.floor(math.log10(most))
    return round(math.ceil(most / digit) * digit, 12)
