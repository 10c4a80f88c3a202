"""Two sets of changes against each other, in alternating processes, until one is known to be faster
or the pairs are used up."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal, Protocol

from msgspec import Struct

from ridgeline.records.optimized import Ratio
from ridgeline.records.trial import Asked, Trial
from ridgeline.statistics.pooled import LOOKS, MOST, Pool
from ridgeline.statistics.steady import settled
from ridgeline.trials.arm import Outcome

Says = Literal["FASTER", "SLOWER", "SAME", "UNDECIDED", "FAILED", "REFUSED"]
MATTERS = math.log(1.02)
HOPELESS = math.log(1.25)
"""A first pair this much slower is not tried again."""
FEWEST_STEPS = 5
LEVEL = 0.05


class Bench(Protocol):
    """Runs one trial; real ones start the user's program."""

    def trial(
        self, changes: tuple[Asked, ...], *, jitter: float = 0.0, same_random: bool = False
    ) -> Outcome: ...

    def by_itself(self, script: str) -> Outcome:
        """Another script, with nothing put on."""

    def time_for(self, trials: int) -> bool:
        """Whether the budget allows so many more."""


class Contest(Struct, frozen=True, kw_only=True):
    says: Says
    why: str
    ratio: Ratio | None = None
    before: tuple[Trial, ...] = ()
    after: tuple[Trial, ...] = ()

    @property
    def step_ms(self) -> tuple[float, float]:
        return typical_ms(self.before), typical_ms(self.after)


def contest(
    bench: Bench,
    pool: Pool,
    before: tuple[Asked, ...],
    after: tuple[Asked, ...],
    *,
    most: int = MOST,
    refuse: Callable[[Trial], str] = lambda trial: "",
    on_pair: Callable[[int, float], None] = lambda number, ratio: None,
) -> Contest:
    """How many times as fast `after` is. The order turns around from pair to pair. `refuse`: why
    the first trial of `after` is reason enough to end it: nothing was changed, other results."""
    old: list[Trial] = []
    new: list[Trial] = []
    differences: list[float] = []
    while len(differences) < most:
        number = len(differences)
        order = (before, after) if number % 2 == 0 else (after, before)
        for changes in order:
            found = bench.trial(changes)
            if found.trial is None or not timed(found.trial):
                return _failed(found, changes is after, old, new)
            (new if changes is after else old).append(found.trial)
            if changes is after and len(new) == 1 and (why := refuse(found.trial)):
                return Contest(says="REFUSED", why=why, before=tuple(old), after=tuple(new))
        differences.append(math.log(step_ns(old[-1]) / step_ns(new[-1])))
        on_pair(len(differences), math.exp(sum(differences) / len(differences)))
        if differences[0] < -HOPELESS and len(differences) == 1:
            break
        if len(differences) in LOOKS and _says(pool, differences, LOOKS[len(differences)]):
            break
        if not bench.time_for(2):
            break
    return _judged(pool, differences, old, new)


def _says(pool: Pool, differences: Sequence[float], level: float) -> Says | None:
    mean, low, high = pool.interval(differences, level)
    if low > 0 and mean >= MATTERS:
        return "FASTER"
    if high < 0 and mean <= -MATTERS:
        return "SLOWER"
    return "SAME" if low >= -MATTERS and high <= MATTERS else None


def _judged(
    pool: Pool, differences: list[float], old: Sequence[Trial], new: Sequence[Trial]
) -> Contest:
    mean, low, high = pool.interval(differences, LEVEL)
    level = LOOKS.get(len(differences), LEVEL / 2)
    says = _says(pool, differences, level) or "UNDECIDED"
    if len(differences) == 1 and differences[0] < -HOPELESS:
        says = "SLOWER"
    pool.others(differences)
    ratio = Ratio(
        value=math.exp(mean), ci_low=math.exp(low), ci_high=_exp(high), pairs=len(differences)
    )
    return Contest(
        says=says, why=_worded(says, ratio), ratio=ratio, before=tuple(old), after=tuple(new)
    )


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _worded(says: Says, ratio: Ratio) -> str:
    known = f"{ratio.value:.2f} × [{ratio.ci_low:.2f}, {ratio.ci_high:.2f}]"
    pairs = f"{ratio.pairs} pair{'s' * (ratio.pairs != 1)} of processes"
    return {
        "FASTER": known,
        "SLOWER": f"slower: {known}",
        "SAME": f"no difference that matters: {known}",
        "UNDECIDED": f"not known to be faster: {known} after {pairs}",
        "FAILED": "",
        "REFUSED": "",
    }[says]


def _failed(found: Outcome, mine: bool, old: list[Trial], new: list[Trial]) -> Contest:
    why = found.failed or "it took too few steps to be timed"
    whose = "" if mine else "the program without it: "
    return Contest(says="FAILED", why=f"{whose}{why}", before=tuple(old), after=tuple(new))


def timed(trial: Trial) -> bool:
    return len(trial.step_ns) >= FEWEST_STEPS


def step_ns(trial: Trial) -> float:
    """Of the steady steps, the middle one."""
    return float(median(trial.step_ns[settled(trial.step_ns) :]))


def typical_ms(trials: Sequence[Trial]) -> float:
    return median(step_ns(trial) for trial in trials) / 1e6 if trials else 0.0
