"""What follows from a comparison, as an option to run it again with."""

import math
import re
import shlex
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.comparison import Comparison
from ridgeline.report.comparison_numbers import is_ratio

_AS_MANY = re.compile(r"about (\d+) × as many rounds")
_HOPELESS = "no number of rounds"
_FEWEST = 6
"""Under so many rounds there is no verdict; twice as many leave room for one."""
_TWICE_AS_SHARP = 4
"""Half the interval takes four times the rounds."""


class Step(Struct, frozen=True):
    why: str
    option: str
    value: str = ""

    @property
    def text(self) -> str:
        return f"{self.option} {self.value}".rstrip()


def next_step(c: Comparison) -> Step | None:
    verdicts = {k.verdict for k in c.candidates}
    if "INVALID" not in verdicts and (c.order.significant or c.control.differs):
        # The same again would meet the same disturbance; processes of their own may not.
        apart = Step("in processes of their own", "--isolate")
        return apart if c.mode == "one process" else None
    if "INVALID" in verdicts:
        return None
    if "UNDECIDED" in verdicts and is_ratio(c.budget_s):
        factor = _rounds_missing(c)
        # A quarter of a budget goes into warming up; a round's real time counts, not its plan's.
        budget = f"{math.ceil(factor * (4 / 3 * c.rounds_s or c.budget_s))}s"
        return Step(f"with {factor} × the rounds", "--budget", budget) if factor else None
    if "FASTER" in verdicts and verdicts <= {"FASTER", "SAME"}:
        return Step("to keep it so", "--fail-if", "slower")
    return None


def _rounds_missing(c: Comparison) -> int:
    """How many times the rounds, as the verdict's own sentence says; 0 where none would do."""
    if c.rounds < _FEWEST:
        return math.ceil(2 * _FEWEST / max(c.rounds, 1))
    whys = [k.why for k in c.candidates if k.verdict == "UNDECIDED"]
    if any(_HOPELESS in why for why in whys):
        return 0
    found = [int(match[1]) for why in whys for match in _AS_MANY.finditer(why)]
    return max(found, default=_TWICE_AS_SHARP)


def command(c: Comparison, step: Step, typed: Sequence[str] = ()) -> str:
    """The step as a command line: what was typed with the option in it, or one made of the names
    where they are targets; else the option alone."""
    if typed:
        return shlex.join(["ridgeline", *_with(typed, step)])
    names = [c.baseline.name, *(k.arm.name for k in c.candidates)]
    if not all(name.partition(":")[0].endswith(".py") for name in names):
        return _from_python(step)
    return f"ridgeline compare {shlex.join(names)} {step.text}"


def _from_python(step: Step) -> str:
    """Functions compared by name from Python have one option of these."""
    return f"budget={step.value.removesuffix('s')}" if step.option == "--budget" else ""


def _with(typed: Sequence[str], step: Step) -> list[str]:
    """An earlier value of the option goes; what follows -- belongs to the scripts."""
    cut = list(typed).index("--") if "--" in typed else len(typed)
    before, own = [], iter(typed[:cut])
    for word in own:
        if word == step.option and step.value:
            next(own, None)
        elif not (word == step.option or word.startswith(f"{step.option}=")):
            before.append(word)
    return [*before, *shlex.split(step.text), *typed[cut:]]
