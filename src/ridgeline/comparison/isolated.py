"""Every arm in a process of its own, in several sets of processes.

For variants that would disturb each other in one process; and what a process has by luck (where its
memory lies, what its hash seed is) shows as spread between the sets, which the interval then holds.
The processes of a set are alive together and take turns, so the rounds stay as close as in one.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter_ns

import msgspec

from ridgeline.comparison.arms import CONTROL, Standing, stand
from ridgeline.comparison.assemble import Trial, assemble
from ridgeline.comparison.hosting.remote import remote_for
from ridgeline.comparison.options import Options, Say
from ridgeline.comparison.prepare import (
    collect_all,
    examine_all,
    look_after,
    plan,
    shots_of,
    warm_all,
)
from ridgeline.comparison.settle import Settling
from ridgeline.comparison.together import UNKNOWN_SURROUNDINGS
from ridgeline.measure.deadline import BudgetEnded
from ridgeline.measure.rounds import Rounds, Stopped
from ridgeline.records.comparison import Comparison, Surroundings


def isolated(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare targets `file.py:name`, the first one the baseline."""
    run = _Run(targets, options, say)
    for number in range(options.processes):
        try:
            with ExitStack() as stack:
                stopped = run.one_set(number, stack)
        except KeyboardInterrupt:
            if number == 0:
                raise  # nothing is measured yet
            stopped = run.cut_short("interrupted")
        except BudgetEnded:
            if not run.has_rounds:
                raise
            stopped = run.cut_short("budget")
        if stopped == "interrupted" or options.left_s(0.0) <= 0:
            break
    return run.assembled()


class _Run:
    """The sets so far."""

    def __init__(self, targets: Sequence[str], options: Options, say: Say) -> None:
        self._targets, self._options, self._say = targets, options, say
        self._warming_s = 0.0
        self._rounds = Rounds(options.seed, perf_counter_ns)
        self._settling: Settling | None = None
        self._first: list[Standing] = []
        self._surroundings: Surroundings | None = None
        self._stopped: Stopped = "all rounds"
        self._notes: tuple[str, ...] = ()

    @property
    def has_rounds(self) -> bool:
        return bool(self._rounds.taken)

    def one_set(self, number: int, stack: ExitStack) -> Stopped:
        """Fresh processes, built and warmed, and their share of the rounds."""
        options, sets = self._options, self._options.processes
        set_began = perf_counter_ns()
        standings = stand(self._targets, lambda arm, name: stack.enter_context(remote_for(options)))
        for standing in standings:
            self._say(f"set {number + 1} of {sets}, {standing.name}: building")
            standing.open(options.seed)
        opening_s = (perf_counter_ns() - set_began) / 1e9
        checked = number == 0 and options.checked  # the results of one set are those of all
        chosen = msgspec.structs.replace(options, checked=checked)
        collect_all(standings, chosen, self._say, shared=False)
        examine_all(standings, chosen, self._say, shared=False)
        began = perf_counter_ns()
        sets_left = sets if options.deadline is None else sets - number
        warm_s = options.left_s(0.0) / sets_left
        warm_all(standings, warm_s, self._say, shared=False, cold=options.cold)
        warming_s = (perf_counter_ns() - began) / 1e9
        self._warming_s += warming_s
        if self._settling is None:
            left_s = options.left_s(warming_s * sets)
            if options.deadline is not None:  # later sets will take as long to prepare as this one
                left_s -= (opening_s + warming_s) * (sets - 1)
            self._settling = plan(standings, options, left_s, sets=sets)
            self._first = standings
        standings[0].ask("begin_rounds")
        stopped = self._rounds.run(
            shots_of(standings, shared=False),
            until=(len(self._rounds.taken) + self._settling.per_set,),
            limit_ns=self._settling.limit_ns / sets,
            decide=lambda taken: False,
            process=number,
            on_round=self._settling.reporter(self._say),
        )
        if stopped != "all rounds":
            self._stopped = stopped  # one set cut short cuts the whole short
        self._surroundings = standings[0].ask("end_rounds")
        if number == 0:
            own = [s for s in standings if s.arm != CONTROL]
            self._notes += look_after(own, options, self._say)
        return stopped

    def cut_short(self, why: Stopped) -> Stopped:
        """Note that a later set could not be prepared, and return why. The rounds of earlier sets
        stay."""
        self._stopped = why
        return self._stopped

    def _spent_s(self) -> float:
        if self._options.deadline is not None:
            return self._options.deadline.spent_s()
        return self._warming_s + self._rounds.elapsed_ns / 1e9

    def assembled(self) -> Comparison:
        assert self._settling is not None
        surroundings = self._surroundings or UNKNOWN_SURROUNDINGS
        return assemble(
            Trial(
                standings=self._first,
                rounds=self._rounds.taken,
                rounds_s=self._rounds.elapsed_ns / 1e9,
                settling=self._settling,
                stopped=self._stopped,
                surroundings=surroundings,
                mode="isolated processes",
                unit="call",
                options=self._options,
                spent_s=self._spent_s(),
                notes=self._notes,
            )
        )
