"""All arms in one process, interleaved: the closest rounds there are."""

from time import perf_counter_ns
from typing import TYPE_CHECKING

from ridgeline.comparison.arms import CONTROL, Standing
from ridgeline.comparison.assemble import Trial, assemble
from ridgeline.comparison.hosting.remote import RemoteHost
from ridgeline.comparison.options import Options, Say
from ridgeline.comparison.prepare import (
    NO_TIME,
    collect_all,
    examine_all,
    look_after,
    look_again,
    plan,
    shots_of,
    warm_all,
)
from ridgeline.measure.deadline import BudgetEnded
from ridgeline.measure.rounds import Rounds
from ridgeline.records.comparison import Comparison, Surroundings

if TYPE_CHECKING:  # it brings torch, which the command's own process does without
    from ridgeline.comparison.hosting.host import Host


UNKNOWN_SURROUNDINGS = Surroundings(device="", threads=0, cores=0)
"""The surroundings if the variants' process did not answer in time."""


def together(
    host: "Host | RemoteHost", standings: list[Standing], options: Options, say: Say
) -> Comparison:
    """The arms are open on `host`. Raises Disturbing where they cannot share it."""
    collect_all(standings, options, say, shared=True)
    examine_all(standings, options, say, shared=True)
    began = perf_counter_ns()
    warm_all(standings, options.left_s(0.0), say, shared=True, cold=options.cold)
    settling = plan(standings, options, options.left_s((perf_counter_ns() - began) / 1e9))
    host.begin_rounds()
    rounds = Rounds(options.seed, perf_counter_ns)
    stopped = rounds.run(
        shots_of(standings, shared=True),
        until=settling.looks.rounds,
        limit_ns=settling.limit_ns,
        decide=settling.decided,
        on_round=settling.reporter(say),
    )
    surroundings, notes = UNKNOWN_SURROUNDINGS, tuple[str, ...]()
    try:
        surroundings = host.end_rounds()
        notes += look_after([s for s in standings if s.arm != CONTROL], options, say)
        if stopped != "interrupted":
            notes += look_again(standings, options, say)
    except KeyboardInterrupt:  # the rounds are taken: what they say stays
        stopped = "interrupted"
    except BudgetEnded:
        notes += (f"the checks after the rounds were not finished: {NO_TIME}",)
    return assemble(
        Trial(
            standings=standings,
            rounds=rounds.taken,
            rounds_s=rounds.elapsed_ns / 1e9,
            settling=settling,
            stopped=stopped,
            surroundings=surroundings,
            mode="one process",
            unit="call",
            options=options,
            spent_s=spent_s(options, began),
            notes=notes,
        )
    )


def spent_s(options: Options, began_ns: int) -> float:
    """Return the seconds spent of the budget. They count from the beginning of the call if it has a
    deadline, else from the beginning of the warm-up."""
    if options.deadline is not None:
        return options.deadline.spent_s()
    return (perf_counter_ns() - began_ns) / 1e9
