"""What to type after trying changes: a check of the copy that ends soon, more time for what is not
confirmed, the same again."""

import math
import shlex
from typing import Literal

from ridgeline.records.optimized import Optimized, SearchCode, Total
from ridgeline.records.parity import MEANS, Parity
from ridgeline.records.trial import TrialFailure
from ridgeline.report.comparison_numbers import is_ratio
from ridgeline.report.optimized_ladder import UNPROVEN, confirmed, in_process, interrupted, lines
from ridgeline.statistics.pooled import MOST

LEAST_STEPS, MOST_STEPS = 20, 60
"""Of each of the 21 to 27 processes that `compare` runs. One takes 3 to 4 s of a core to start:
with a second of steps in each, two minutes in all."""
STEPS_S = 1.0
CHECKED_TO = 1e-3
"""Of losses: what `compare` allows where it is not told otherwise."""
Remedy = Literal["time", "quiet", "again", ""]
_TIME_CODES = (
    SearchCode.OUT_OF_TIME, SearchCode.TOO_LITTLE_TIME, TrialFailure.OUT_OF_TIME,
)  # fmt: skip
"""Reasons to stop that more time would remove."""
_GOALS = ("memory", "throughput")
_OF_OPTIMIZERS = {"settings", "learning rates", "gradient norms"}
"""Checks that are made where an optimizer was seen to step."""


def next_command(found: Optimized) -> tuple[str, str]:
    """Why, and what to type; empty where nothing follows."""
    if confirmed(found) and (typed := _compare(found)):
        return "check it yourself", typed
    helps = remedy(found)
    if helps == "time" and found.longer:
        return "with more time", found.longer
    if found.stopped is not None and found.stopped.code in _TIME_CODES and found.longer:
        quiet = "on a quiet machine, " * (helps == "quiet")
        return f"{quiet}with more time", found.longer
    if helps == "quiet" and found.replay:
        return "on a quiet machine", _going_on(found.replay)
    # What cannot be timed will not be the next time either.
    if found.stopped and found.replay and (found.baseline_ms or interrupted(found)):
        return "go on", _going_on(found.replay)
    launched = found.command.startswith("torchrun ")  # which takes `ridgeline run` inside
    if found.total is None and found.command and not (launched or in_process(found)):
        return "see where its time goes", f"ridgeline run {found.command}"
    return "", ""


def remedy(found: Optimized) -> Remedy:
    """What would confirm it: more pairs, or, where as many were run as ever are, a machine that
    hides less."""
    if not unsure(found):
        return ""
    if interrupted(found):
        return "again"
    if found.total is None:
        # More time does not help if a process of the whole failed.
        failed = found.stopped is not None and found.stopped.code == SearchCode.PROOF_FAILED
        return "" if failed else "time"
    return "time" if found.total.ratio.pairs < MOST else "quiet"


def unsure(found: Optimized) -> bool:
    """Something was kept, its results are equal, and it is not known to be better."""
    if found.total is not None:
        return not confirmed(found) and found.total.parity.equality not in UNPROVEN
    return any(line.kept and not line.apart for line in lines(found))


def _compare(found: Optimized) -> str:
    """The copy against the original, some steps of each: without --steps whole programs would
    run."""
    written, total = found.written, found.total
    if written is None or not written.files or total is None:
        return ""
    try:
        script, *arguments = shlex.split(found.command)
    except ValueError:
        return ""
    if any(check.what == MEANS for check in total.parity.checks):
        return ""  # samples are drawn otherwise, and losses with them: no tolerance is one
    copy = written.files[0]
    # A colon in a target is a function's name.
    if not script.endswith(".py") or ":" in script + copy:
        return ""
    typed = ["ridgeline", "compare", _path(script), _path(copy)]
    if _takes_steps(total.parity):
        typed += ["--by", "step", "--steps", str(steps(total))]
    typed += ["--goal", found.goal] if found.goal in _GOALS else []
    if tolerance := tolerance_of(total.parity):
        typed += ["--tolerance", f"{tolerance:g}"]
    return shlex.join([*typed, *(["--", *arguments] if arguments else [])])


def steps(total: Total) -> int:
    """A second of the unchanged program."""
    known = is_ratio(total.before_ms)
    wanted = round(1e3 * STEPS_S / total.before_ms) if known else MOST_STEPS
    return min(max(wanted, LEAST_STEPS), MOST_STEPS)


def _path(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def _takes_steps(parity: Parity) -> bool:
    """Of an optimizer: what only infers, or moves its parameters by hand, is compared as whole
    runs."""
    names = {check.what for check in parity.checks}
    if "applied steps" in names:
        return bool(names & _OF_OPTIMIZERS)
    return bool(names - {"evaluation"})


def tolerance_of(parity: Parity) -> float | None:
    """What losses were allowed here, rounded up to a digit, where `compare` allows less."""
    allowed = [check.allowed for check in parity.checks if check.what == "losses"]
    most = max((one for one in allowed if one is not None and math.isfinite(one)), default=0.0)
    if most <= CHECKED_TO:
        return None
    digit = 10.0 ** math.floor(math.log10(most))
    return round(math.ceil(most / digit) * digit, 12)


def _going_on(replay: str) -> str:
    """Without the word that has everything measured again."""
    head, word, rest = replay.partition(" --fresh ")
    return f"{head} {rest}" if word and head == "ridgeline optimize" else replay
