"""Functions compared: in one process, or, where they would disturb each other, each in its own."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from ridgeline.comparison.contenders import (
    BASELINE,
    CONTROL,
    Contender,
    Disturbing,
    Options,
    Say,
    SkippedError,
    VariantFailed,
    stand,
)
from ridgeline.comparison.preparation import (
    NO_TIME,
    Settling,
    collect_all,
    examine_all,
    look_after,
    look_again,
    plan,
    shots_of,
    warm_all,
)
from ridgeline.comparison.remote_host import RemoteHost, remote_for
from ridgeline.comparison.verdicts import assemble
from ridgeline.errors import RidgelineError
from ridgeline.measure.clock import BudgetEnded
from ridgeline.measure.timing import Rounds, Stopped
from ridgeline.records.comparison import Comparison, Skipped, Surroundings

if TYPE_CHECKING:  # it brings torch, which the command's own process does without
    from ridgeline.comparison.host import Host

MIN_NOTED_LINES = 20
"""Printed lines from which a note says that printing is part of the time."""


def compare_functions(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare targets `file.py:name`, the first one the baseline."""
    return without_broken(targets, lambda left: _compare(left, options, say))


def without_broken(
    targets: Sequence[str], compare: Callable[[Sequence[str]], Comparison]
) -> Comparison:
    """Compare the targets, leaving out candidates that cannot be run; `broken` names those. Raise
    the error if the baseline or the only candidate cannot be run."""
    left, broken = list(targets), []
    while True:
        try:
            comparison = compare(left)
        except BudgetEnded as ended:
            raise _undecided(ended) from ended
        except VariantFailed as failed:
            if failed.variant in (BASELINE, CONTROL) or len(left) == 2:
                raise failed.error from failed
            broken.append(skipped(left.pop(int(failed.variant)), failed.error))
        else:
            return msgspec.structs.replace(comparison, broken=tuple(broken))


def _undecided(ended: BudgetEnded) -> RidgelineError:
    """Return the error for a budget that ended before the first round: there is no verdict, and no
    variant has failed."""
    what = _NOT_YET_DONE.get(ended.stage, "had been timed")
    return RidgelineError(
        f"UNDECIDED: the budget ended before {ended.about or 'the first round'} {what}",
        "allow more time with --budget",
    )


_NOT_YET_DONE = {
    "open": "was built",
    "collect": "had made its first calls",
    "first_calls": "had made its first call",
    "run": "had ended its first run",
    "warm_up": "was warm",
}
"""What a variant had not yet done when the budget ended, by the stage that was under way."""


def skipped(name: str, error: Exception) -> Skipped:
    """Return a variant or a pair that was not measured, as a row of the table."""
    if isinstance(error, SkippedError):
        return Skipped(name=name, status="SKIP", reason=str(error))
    if isinstance(error, RidgelineError):
        return Skipped(name=name, status="BROKEN", reason=error.message, hint=error.hint)
    raise error


def _compare(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    if options.isolate:
        return isolated(targets, options, say)
    say("starting")
    with closing(remote_for(options)) as host:
        contenders = stand(targets, lambda variant, name: host)
        try:
            for contender in contenders:
                if contender.variant != CONTROL:
                    say(f"{contender.name}: building")
                    contender.open(options.seed)
            comparison = together(host, contenders, options, say)
            return _with_note(comparison, _printing_note(host))
        except Disturbing as disturbing:
            why = f"each variant ran in its own process, because one changes {disturbing}"
    say(why)
    return _with_note(isolated(targets, options, say), why)


def _printing_note(host: RemoteHost) -> str:
    lines = host.printed_lines()
    if lines < MIN_NOTED_LINES:
        return ""
    return f"the variants printed {lines:,} lines, which were held back: printing is in their time"


def _with_note(comparison: Comparison, note: str) -> Comparison:
    notes = (*comparison.notes, note) if note else comparison.notes
    return msgspec.structs.replace(comparison, notes=notes)


UNKNOWN_SURROUNDINGS = Surroundings(device="", threads=0, cores=0)
"""The surroundings if the variants' process did not answer in time."""


def together(
    host: "Host | RemoteHost", contenders: list[Contender], options: Options, say: Say
) -> Comparison:
    """Compare variants that are open on one host. Raise Disturbing if they cannot share it."""
    collect_all(contenders, options, say, shared=True)
    examine_all(contenders, options, say, shared=True)
    began = perf_counter_ns()
    warm_all(contenders, options.left_s(0.0), say, shared=True, cold=options.cold)
    settling = plan(contenders, options, options.left_s((perf_counter_ns() - began) / 1e9))
    host.ask("begin_rounds")
    rounds = Rounds(options.seed, perf_counter_ns)
    stopped = rounds.run(
        shots_of(contenders, shared=True),
        until=settling.looks.rounds,
        limit_ns=settling.limit_ns,
        decide=settling.decided,
        on_round=settling.reporter(say),
    )
    surroundings, notes = UNKNOWN_SURROUNDINGS, tuple[str, ...]()
    try:
        surroundings = host.ask("end_rounds")
        notes += look_after([s for s in contenders if s.variant != CONTROL], options, say)
        if stopped != "interrupted":
            notes += look_again(contenders, options, say)
    except KeyboardInterrupt:  # the rounds were taken, and count
        stopped = "interrupted"
    except BudgetEnded:
        notes += (f"the checks after the rounds were not finished: {NO_TIME}",)
    return assemble(
        contenders,
        rounds,
        settling,
        options,
        stopped=stopped,
        surroundings=surroundings,
        mode="one process",
        unit="call",
        spent_s=spent_s(options, began),
        notes=notes,
    )


def spent_s(options: Options, began_ns: int) -> float:
    """Return the seconds spent of the budget. They count from the beginning of the call if it has a
    deadline, else from the beginning of the warm-up."""
    if options.deadline is not None:
        return options.deadline.spent_s()
    return (perf_counter_ns() - began_ns) / 1e9


def isolated(targets: Sequence[str], options: Options, say: Say) -> Comparison:
    """Compare targets, each in processes of its own: several sets of them, one after the other. A
    set that cannot be prepared in time, or at Ctrl-C, leaves the rounds of the sets before it."""
    sets = _ProcessSets(targets, options, say)
    for number in range(options.processes):
        try:
            with ExitStack() as stack:
                stopped = sets.run(number, stack)
        except KeyboardInterrupt:
            if number == 0:
                raise  # nothing is measured yet
            stopped = sets.stopped = "interrupted"
        except BudgetEnded:
            if not sets.has_rounds:
                raise
            stopped = sets.stopped = "budget"
        if stopped == "interrupted" or options.left_s(0.0) <= 0:
            break
    return sets.assembled()


class _ProcessSets:
    """The sets of processes so far, and their rounds."""

    def __init__(self, targets: Sequence[str], options: Options, say: Say) -> None:
        self._targets, self._options, self._say = targets, options, say
        self._warming_s = 0.0
        self._rounds = Rounds(options.seed, perf_counter_ns)
        self._settling: Settling | None = None
        self._first: list[Contender] = []
        self._surroundings = UNKNOWN_SURROUNDINGS
        self.stopped: Stopped = "all rounds"
        self._notes: tuple[str, ...] = ()

    @property
    def has_rounds(self) -> bool:
        return bool(self._rounds.taken)

    def run(self, number: int, stack: ExitStack) -> Stopped:
        """Start fresh processes, build and warm the variants, and take their share of the
        rounds."""
        options, sets = self._options, self._options.processes
        set_began = perf_counter_ns()
        contenders = stand(
            self._targets, lambda variant, name: stack.enter_context(closing(remote_for(options)))
        )
        for contender in contenders:
            self._say(f"set {number + 1} of {sets}, {contender.name}: building")
            contender.open(options.seed)
        opening_s = (perf_counter_ns() - set_began) / 1e9
        checked = number == 0 and options.checked  # the results of one set are those of all
        chosen = msgspec.structs.replace(options, checked=checked)
        collect_all(contenders, chosen, self._say, shared=False)
        examine_all(contenders, chosen, self._say, shared=False)
        began = perf_counter_ns()
        sets_left = sets if options.deadline is None else sets - number
        warm_s = options.left_s(0.0) / sets_left
        warm_all(contenders, warm_s, self._say, shared=False, cold=options.cold)
        warming_s = (perf_counter_ns() - began) / 1e9
        self._warming_s += warming_s
        if self._settling is None:
            left_s = options.left_s(warming_s * sets)
            if options.deadline is not None:  # later sets will take as long to prepare as this one
                left_s -= (opening_s + warming_s) * (sets - 1)
            self._settling = plan(contenders, options, left_s, sets=sets)
            self._first = contenders
        contenders[0].ask("begin_rounds")
        stopped = self._rounds.run(
            shots_of(contenders, shared=False),
            until=(len(self._rounds.taken) + self._settling.per_set,),
            limit_ns=self._settling.limit_ns / sets,
            decide=lambda taken: False,
            process=number,
            on_round=self._settling.reporter(self._say),
        )
        if stopped != "all rounds":
            self.stopped = stopped  # one set cut short cuts the whole short
        self._surroundings = contenders[0].ask("end_rounds")
        if number == 0:
            own = [s for s in contenders if s.variant != CONTROL]
            self._notes += look_after(own, options, self._say)
        return stopped

    def assembled(self) -> Comparison:
        assert self._settling is not None
        deadline = self._options.deadline
        spent_s = self._warming_s + self._rounds.elapsed_ns / 1e9
        return assemble(
            self._first,
            self._rounds,
            self._settling,
            self._options,
            stopped=self.stopped,
            surroundings=self._surroundings,
            mode="isolated processes",
            unit="call",
            spent_s=spent_s if deadline is None else deadline.spent_s(),
            notes=self._notes,
        )
