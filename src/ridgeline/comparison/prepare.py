"""Everything around the rounds: first calls, results, warm-up and the plan; memory afterwards."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ridgeline.comparison.arms import BASELINE, CONTROL, Disturbing, Standing
from ridgeline.comparison.blocks import even_calls
from ridgeline.comparison.options import Options, Say
from ridgeline.comparison.settle import Settling, events_agree
from ridgeline.measure.rounds import Block
from ridgeline.records.comparison import Goal

WARMUP_SHARE = 0.25
"""Of the budget, over all arms: a compiler's time is not in it, only what follows it."""
_LEAST_SHARE = 0.25
"""Of the budget, kept for rounds however long warming up took."""


def collect_all(standings: Sequence[Standing], options: Options, say: Say, shared: bool) -> None:
    """First calls and evidence, the baseline first. `shared`: all arms live in one process, where
    an arm that changes its settings changes them for all."""
    for standing in standings:
        if standing.arm == CONTROL and shared:
            continue  # the same workload as the baseline
        say(f"{standing.name}: first calls")
        if options.checked and standing.arm != CONTROL:
            standing.collected = standing.ask(
                "collect", arm=standing.arm, seed=options.seed, as_baseline=standing.arm == BASELINE
            )
        else:
            standing.collected = standing.ask("first_calls", arm=standing.arm)
        if shared and standing.collected is not None and standing.collected.changed:
            raise Disturbing(standing.collected.changed)


def examine_all(standings: Sequence[Standing], options: Options, say: Say, shared: bool) -> None:
    """Each candidate's evidence against the baseline's."""
    if not options.checked:
        return
    baseline = standings[0]
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        path = str(Path(folder) / "baseline.pt")
        if not shared:
            baseline.ask("save", arm=BASELINE, path=path)
        for standing in standings[2:]:
            say(f"{standing.name}: comparing results")
            if not shared:
                standing.ask("load", arm=BASELINE, path=path)
            both = [s for s in (standing, baseline) if s.opened is not None]
            declared = [s.opened.rtol for s in both if s.opened and s.opened.rtol]
            checks = [s.name for s in both if s.opened and s.opened.has_check]
            standing.examined = standing.ask(
                "examine",
                candidate=standing.arm,
                rtol=options.rtol or (declared[0] if declared else None),
                check_in=checks[0] if checks else "",
            )


def warm_all(
    standings: Sequence[Standing], budget_s: float, say: Say, shared: bool, cold: bool
) -> None:
    each_s = budget_s * WARMUP_SHARE / len(standings)
    for standing in standings:
        if standing.arm == CONTROL and shared:
            standing.warmed = standings[0].warmed
            continue
        say(f"{standing.name}: warming up")
        standing.warmed = standing.ask("warm_up", arm=standing.arm, limit_s=each_s)
    if not cold:  # a flush before each call: there blocks are as short as the clock allows
        _even_blocks(standings, shared)


def _even_blocks(standings: Sequence[Standing], shared: bool) -> None:
    warmed = [standing.warmed for standing in standings if standing.warmed is not None]
    counts = even_calls([w.steady_ns for w in warmed])
    for standing, found, calls in zip(standings, warmed, counts, strict=True):
        if not (standing.arm == CONTROL and shared):
            standing.ask("resize", arm=standing.arm, calls=calls)
        longer = calls / found.block_calls
        standing.warmed = msgspec.structs.replace(
            found, block_calls=calls, block_ns=found.block_ns * longer
        )


def plan(standings: Sequence[Standing], options: Options, left_s: float, sets: int = 1) -> Settling:
    """How many rounds the time left allows, now that it is known what one takes."""
    warmed = [s.warmed for s in standings if s.warmed is not None]
    items = [s.opened.items for s in _opened(standings) if s.opened and s.opened.items]
    by_item = goal_of(standings, options) == "throughput" and len(items) == len(standings)
    round_ns = sum(w.block_ns for w in warmed)
    return Settling(
        options,
        names=[standing.name for standing in standings],
        round_ns=round_ns,
        limit_ns=options.limit_ns(max(left_s, _LEAST_SHARE * options.budget), round_ns),
        by_events=events_agree([w.events_share for w in warmed]),
        items=items if by_item else None,
        sets=sets,
    )


def goal_of(standings: Sequence[Standing], options: Options) -> Goal:
    """What was asked for, else what a candidate's file or the baseline's says."""
    said = [s.opened.goal for s in (*standings[2:], standings[0]) if s.opened and s.opened.goal]
    return options.goal or (said[0] if said else "speed")


def shots_of(standings: Sequence[Standing], shared: bool) -> list[Callable[[], Block]]:
    """One sample of each arm; in one process the control is the baseline once more."""

    def shot(standing: Standing) -> Callable[[], Block]:
        arm = BASELINE if shared and standing.arm == CONTROL else standing.arm
        return lambda: standing.ask("block", arm=arm)

    return [shot(standing) for standing in standings]


def look_after(standings: Sequence[Standing], options: Options, say: Say) -> None:
    """Recompilations, and peak memory: after the rounds, because that looking glass is slow and
    leaves traces."""
    for standing in standings:
        standing.recompiles = standing.ask("recompiles", arm=standing.arm)
        say(f"{standing.name}: memory")
        standing.peak = standing.ask("peak", arm=standing.arm)
        if options.checked and standing.warmed is not None:
            standing.floor = standing.ask(
                "floor", arm=standing.arm, measured_ns=standing.warmed.steady_ns
            )


def look_again(standings: Sequence[Standing], options: Options, say: Say) -> None:
    """Cached replay, looked for once more after the rounds. In one process only: the evidence of
    all arms is at hand there."""
    if not options.checked:
        return
    for standing in standings:
        if standing.arm != CONTROL:
            say(f"{standing.name}: looking again")
            standing.ask("look_again", arm=standing.arm, seed=options.seed)
    for standing in standings[2:]:
        guard = standing.ask("replays", candidate=standing.arm)
        if guard.outcome == "failed" and standing.examined is not None:
            others = [g for g in standing.examined.guards if g.name != guard.name]
            late = msgspec.structs.replace(guard, detail=f"after the rounds, {guard.detail}")
            standing.examined = msgspec.structs.replace(standing.examined, guards=(late, *others))


def _opened(standings: Sequence[Standing]) -> list[Standing]:
    """Arms whose file was read; the control's is the baseline's."""
    return [standings[0] if s.arm == CONTROL and s.opened is None else s for s in standings]
