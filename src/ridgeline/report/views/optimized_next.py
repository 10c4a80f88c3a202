"""What to type after a search: a check of the copy that ends soon, more time for what is not
confirmed, the same again."""

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
"""Steps of each of the 21 to 27 processes that `compare` runs. One takes 3 to 4 s of a core to
start: with a second of steps in each, two minutes in all."""
STEPS_S = 1.0
DEFAULT_LOSS_TOLERANCE = 1e-3
"""What `compare` allows losses where it is not told otherwise."""
_MORE_TIME_HELPS = (
    SearchCode.OUT_OF_TIME, SearchCode.TOO_LITTLE_TIME, TrialFailure.OUT_OF_TIME,
)  # fmt: skip
_GOALS_OF_COMPARE = ("memory", "throughput")
_OPTIMIZER_CHECKS = {"settings", "learning rates", "gradient norms"}
"""Checks that are made where an optimizer was seen to step."""


def next_command(ladder: Ladder) -> Command | None:
    """Return what to type next, and why; None where nothing follows."""
    found = ladder.optimized
    if found.is_confirmed and (check := _compare(found)):
        return Command("check it yourself", check)
    helps = remedy(ladder)
    if helps == "time" and found.longer:
        return Command("with more time", found.longer)
    if found.stopped is not None and found.stopped.code in _MORE_TIME_HELPS and found.longer:
        quiet = "on a quiet machine, " if helps == "quiet" else ""
        return Command(f"{quiet}with more time", found.longer)
    if helps == "quiet" and found.resume:
        return Command("on a quiet machine", found.resume)
    # What cannot be timed will not be the next time either.
    if found.stopped and found.resume and (found.baseline_ms or found.interrupted):
        return Command("continue", found.resume)
    words = _words(found.command)
    # torchrun takes `ridgeline run` inside.
    if found.total is None and words and words[0] != "torchrun" and not found.is_function:
        return Command("see where its time goes", f"ridgeline run {found.command}")
    return None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _compare(found: Optimized) -> str:
    """Return the command that compares the copy with the original, some steps of each: without
    --steps whole programs would run."""
    written, total = found.written, found.total
    words = _words(found.command)
    if written is None or not written.files or total is None or not words:
        return ""
    if any(check.what == MEANS for check in total.parity.checks):
        return ""  # samples are drawn otherwise, and losses with them: no tolerance is one
    script, *arguments = words
    copy = written.files[0]
    # A colon in a target is a function's name.
    if not script.endswith(".py") or ":" in script + copy:
        return ""
    typed = ["ridgeline", "compare", _as_path(script), _as_path(copy)]
    if _takes_steps(total.parity):
        typed += ["--by", "step", "--steps", str(steps_to_compare(total))]
    typed += ["--goal", found.goal] if found.goal in _GOALS_OF_COMPARE else []
    if tolerance := tolerance_of(total.parity):
        typed += ["--tolerance", f"{tolerance:g}"]
    return shlex.join([*typed, *(["--", *arguments] if arguments else [])])


def steps_to_compare(total: Total) -> int:
    """Return how many steps take the baseline about a second."""
    known = is_ratio(total.before_ms)
    wanted = round(1e3 * STEPS_S / total.before_ms) if known else MAX_STEPS
    return min(max(wanted, MIN_STEPS), MAX_STEPS)


def _as_path(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def _takes_steps(parity: Parity) -> bool:
    """Return whether steps of an optimizer were seen. What only infers, or moves its parameters by
    hand, is compared as whole runs."""
    names = {check.what for check in parity.checks}
    if "applied steps" in names:
        return bool(names & _OPTIMIZER_CHECKS)
    return bool(names - {"evaluation"})


def tolerance_of(parity: Parity) -> float | None:
    """Return what losses were allowed, rounded up to one digit; None where `compare` allows as
    much."""
    allowed = [check.allowed for check in parity.checks if check.what == "losses"]
    most = max((value for value in allowed if value and math.isfinite(value)), default=0.0)
    if most <= DEFAULT_LOSS_TOLERANCE:
        return None
    digit = 10.0 ** math.floor(math.log10(most))
    return round(math.ceil(most / digit) * digit, 12)
