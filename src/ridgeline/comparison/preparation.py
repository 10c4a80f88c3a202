"""Prepares the rounds (first calls, results, warm-up, the plan) and does the checks after them."""

import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.comparison.contenders import BASELINE, CONTROL, Contender, Disturbing, Options, Say
from ridgeline.measure.clock import Reading
from ridgeline.measure.timing import Block, Round, Stopped
from ridgeline.records.comparison import Estimate, Goal
from ridgeline.records.facts import Verdict
from ridgeline.statistics.analysis import (
    Analysis,
    ProcessorTimes,
    RoundTable,
    analyse,
    decide_by_processor_time,
    deciding_estimates,
)
from ridgeline.statistics.significance import plan_looks

Floats = NDArray[np.float64]

MIN_EVENTS_SHARE = 0.9
"""Device events that see a smaller share of the wall time have missed work on another stream."""


class Settling:
    """The plan of one comparison, made before its first round."""

    def __init__(
        self,
        options: Options,
        *,
        round_ns: float,
        limit_ns: float,
        names: Sequence[str] = (),
        by_events: bool = True,
        items: Sequence[float] | None = None,
        sets: int = 1,
    ) -> None:
        """`items` are those that a call of each variant handles, if throughput is compared; `sets`
        is the number of process sets that share the rounds."""
        self.limit_ns = limit_ns
        self.by_events = by_events
        self._options = options
        self._items = items
        self._names = ("the baseline", "the control", *names[2:]) if names else ()
        fitting = int(limit_ns / max(round_ns, 1.0))
        self.max_rounds = max(min(fitting, options.max_rounds), 1)
        self.per_set = max(math.ceil(self.max_rounds / sets), 2)
        if sets > 1:
            # One look at the end: sets of processes are compared as wholes.
            self.max_rounds = self.per_set * sets
            self.looks = plan_looks(self.max_rounds, alpha=options.alpha, first=self.max_rounds)
        else:
            self.looks = plan_looks(self.max_rounds, alpha=options.alpha)

    def decided(self, rounds: Sequence[Round]) -> bool:
        """Return whether every candidate has its verdict, and a ratio worth printing."""
        found = self.analysis(rounds)
        return all(
            settled(verdict, estimate, self._options.threshold)
            for verdict, estimate in deciding_estimates(found)
        )

    def analysis(self, rounds: Sequence[Round], stopped: Stopped = "decided") -> Analysis:
        """Return the analysis of the rounds, at the significance level that was planned for this
        number of rounds. Processor time decides where the machine was too crowded for wall time."""
        options, table = self._options, self.table(rounds)
        alpha = self.looks.level_at(len(rounds), time_over=stopped == "budget")
        found = analyse(table, alpha=alpha, threshold=options.threshold, seed=options.seed)
        times = self._processor_times(rounds)
        if times is None:
            return found
        calls = np.array([[block.calls for block in one.blocks] for one in rounds])
        second = replace(table, samples=self._by_item(times.process / calls))
        return decide_by_processor_time(
            found, times, second, alpha=alpha, threshold=options.threshold, seed=options.seed
        )

    def _processor_times(self, rounds: Sequence[Round]) -> ProcessorTimes | None:
        """Return the processor times of the rounds. Return None if a block was timed by a device,
        or if the system does not count what is needed."""
        readings = [[block.reading for block in one.blocks] for one in rounds]
        every = [reading for row in readings for reading in row]
        if any(r.thread_ns is None or r.sleeps is None or r.issue_ns is not None for r in every):
            return None

        def column(of: Callable[[Reading], float | None]) -> Floats:
            return np.array([[of(reading) for reading in row] for row in readings], np.float64)

        return ProcessorTimes(
            wall=column(lambda r: r.wall_ns),
            process=column(lambda r: r.cpu_ns),
            thread=column(lambda r: r.thread_ns),
            sleeps=column(lambda r: r.sleeps),
        )

    def per_call(self, rounds: Sequence[Round]) -> Floats:
        """Return the nanoseconds of a call, by round and variant."""
        return np.array([[sample_ns(b, self.by_events) for b in r.blocks] for r in rounds])

    def table(self, rounds: Sequence[Round]) -> RoundTable:
        """Return what is compared: the time of a call, or of an item if throughput is the goal."""
        samples = self._by_item(self.per_call(rounds))
        processes = np.array([r.process for r in rounds])
        return RoundTable(
            samples=samples,
            positions=np.array([r.positions for r in rounds]),
            process=processes if len(set(processes.tolist())) > 1 else None,
            names=self._names,
        )

    def _by_item(self, per_call: Floats) -> Floats:
        return per_call if self._items is None else per_call / np.asarray(self._items)

    def reporter(self, say: Say) -> Callable[[int], None]:
        return lambda taken: say(f"round {taken} of at most {self.max_rounds}")


def sample_ns(block: Block, by_events: bool) -> float:
    """Return the nanoseconds of a call; by the wall clock if events miss work on another stream."""
    return (block.reading.total_ns if by_events else block.reading.wall_ns) / block.calls


def settled(verdict: Verdict, estimate: Estimate, threshold: float) -> bool:
    """Return whether a verdict is decided, and its ratio known to within the threshold or a tenth
    of the effect."""
    if verdict == "UNDECIDED":
        return False
    half = math.log(estimate.ci_high / estimate.ci_low) / 2
    return half <= max(threshold, abs(math.log(estimate.ratio)) / 10)


def events_agree(shares: Sequence[float]) -> bool:
    return all(share >= MIN_EVENTS_SHARE for share in shares)


def kept(rounds: Sequence[Round]) -> tuple[list[Round], int, str]:
    """Return the rounds in which the device was not throttled, how many others there were, and a
    note. If more than half were throttled, that is how this device runs, and all are kept."""
    hot = [r for r in rounds if r.throttled]
    if not hot:
        return list(rounds), 0, ""
    cause = hot[0].throttled
    if 2 * len(hot) > len(rounds):
        return list(rounds), 0, f"{cause} in {len(hot)} of {len(rounds)} rounds: all were kept"
    return [r for r in rounds if not r.throttled], len(hot), cause


BLOCK_NS = 10e6
"""Length of a sample. 10 ms is 1000 times the uncertainty of the clock, a context switch and the
loop itself, and a stall of a scheduler's slice (3 to 4 ms) does not rule it."""
MAX_ALIKE_FACTOR = 3.0
"""Variants whose calls differ by a smaller factor have blocks of as many calls."""
MAX_BLOCK_CALLS = 1 << 20


def even_calls(call_ns: Sequence[float]) -> list[int]:
    """Return the calls of a block for each variant, from its steady time of a call; variants that
    take about as long have blocks of as many calls."""
    fitting = [min(max(math.ceil(BLOCK_NS / max(ns, 1.0)), 1), MAX_BLOCK_CALLS) for ns in call_ns]
    return [
        max(calls for calls, other in zip(fitting, call_ns, strict=True) if _alike(ns, other))
        for ns in call_ns
    ]


def _alike(one: float, other: float) -> bool:
    return max(one, other) < MAX_ALIKE_FACTOR * max(min(one, other), 1e-9) or one == other


NO_TIME = "too little of the budget was left"
WARMUP_SHARE = 0.25
"""Share of the budget for the warm-up of all variants. Compilation is over by then."""
MIN_ROUNDS_SHARE = 0.25
"""Share of a budget without a deadline that the rounds get, however long the warm-up took."""
EVIDENCE_SHARE = 0.3
"""Share of the rest of a budget that checking the variants' results may take. The remainder is for
timing them."""
LATE_S = 1.0
"""Time limit for checking one variant's results again after the rounds, if there is a deadline."""
CLOSING_S = 1.0
"""Time reserved for ending the processes and writing the answer."""
AFTERWARDS_SHARE = 0.4
"""The largest share of the time left when the rounds begin that is reserved for what follows them:
a verdict is worth more than the memory peak."""
FLOOR_S = 4.0
"""Time that measuring a ceiling again may take."""
CALLS_FOR_MEMORY, CALLS_AGAIN = 4, 4
"""The cost of measuring a variant's memory, and of checking its results again, in usual calls. Both
run the variant under observation, which makes a call several times as long."""


def collect_all(contenders: Sequence[Contender], options: Options, say: Say, shared: bool) -> None:
    """Make the first calls and collect evidence, the baseline first. `shared`: all variants live in
    one process, where one that changes its settings changes them for all."""
    for contender in contenders:
        if contender.variant == CONTROL and shared:
            continue  # the same workload as the baseline
        say(f"{contender.name}: first calls")
        if options.checked and contender.variant != CONTROL:
            contender.collected = contender.ask(
                "collect",
                variant=contender.variant,
                seed=options.seed,
                as_baseline=contender.variant == BASELINE,
                budget_s=_evidence_s(len(contenders) - 1, options),
            )
        else:
            contender.collected = contender.ask("first_calls", variant=contender.variant)
        if shared and contender.collected is not None and contender.collected.changed:
            raise Disturbing(contender.collected.changed)


def _evidence_s(variants: int, options: Options) -> float | None:
    if options.deadline is None:
        return None
    return EVIDENCE_SHARE * max(options.deadline.left_s(), 0.0) / variants


def examine_all(contenders: Sequence[Contender], options: Options, say: Say, shared: bool) -> None:
    """Compare the evidence of each candidate with the baseline's."""
    if not options.checked:
        return
    baseline = contenders[0]
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        path = str(Path(folder) / "baseline.pt")
        if not shared:
            baseline.ask("save", variant=BASELINE, path=path)
        for contender in contenders[2:]:
            say(f"{contender.name}: comparing results")
            if not shared:
                contender.ask("load", variant=BASELINE, path=path)
            both = [s for s in (contender, baseline) if s.opened is not None]
            declared = [s.opened.rtol for s in both if s.opened and s.opened.rtol]
            checks = [s.name for s in both if s.opened and s.opened.has_check]
            contender.examined = contender.ask(
                "examine",
                candidate=contender.variant,
                rtol=options.rtol or (declared[0] if declared else None),
                check_in=checks[0] if checks else "",
            )


def warm_all(
    contenders: Sequence[Contender], budget_s: float, say: Say, shared: bool, cold: bool
) -> None:
    each_s = budget_s * WARMUP_SHARE / len(contenders)
    for contender in contenders:
        if contender.variant == CONTROL and shared:
            contender.warmed = contenders[0].warmed
            continue
        say(f"{contender.name}: warming up")
        contender.warmed = contender.ask("warm_up", variant=contender.variant, limit_s=each_s)
    if not cold:  # with a flush before each call, blocks are as short as the clock allows
        _even_blocks(contenders, shared)


def _even_blocks(contenders: Sequence[Contender], shared: bool) -> None:
    warmed = [contender.warmed for contender in contenders if contender.warmed is not None]
    counts = even_calls([w.steady_ns for w in warmed])
    for contender, found, calls in zip(contenders, warmed, counts, strict=True):
        if not (contender.variant == CONTROL and shared):
            contender.ask("resize", variant=contender.variant, calls=calls)
        longer = calls / found.block_calls
        contender.warmed = msgspec.structs.replace(
            found, block_calls=calls, block_ns=found.block_ns * longer
        )


def plan(
    contenders: Sequence[Contender], options: Options, left_s: float, sets: int = 1
) -> Settling:
    """Plan the rounds that fit into the time left, now that the length of one is known."""
    if options.deadline is None:
        left_s = max(left_s, MIN_ROUNDS_SHARE * options.budget)
    else:
        left_s -= min(afterwards_s(contenders, options), AFTERWARDS_SHARE * max(left_s, 0.0))
    warmed = [s.warmed for s in contenders if s.warmed is not None]
    items = [s.opened.items for s in _opened(contenders) if s.opened and s.opened.items]
    by_item = goal_of(contenders, options) == "throughput" and len(items) == len(contenders)
    round_ns = sum(w.block_ns for w in warmed)
    return Settling(
        options,
        names=[contender.name for contender in contenders],
        round_ns=round_ns,
        limit_ns=options.limit_ns(left_s, round_ns),
        by_events=events_agree([w.events_share for w in warmed]),
        items=items if by_item else None,
        sets=sets,
    )


def goal_of(contenders: Sequence[Contender], options: Options) -> Goal:
    """Return the goal that was asked for, else the one that a candidate or the baseline
    declares."""
    everyone = (*contenders[2:], contenders[0])
    declared = [c.opened.goal for c in everyone if c.opened and c.opened.goal]
    return options.goal or (declared[0] if declared else "speed")


def shots_of(contenders: Sequence[Contender], shared: bool) -> list[Callable[[], Block]]:
    """Return for each variant a function that takes one sample. In one process the control is the
    baseline once more."""

    shots: list[Callable[[], Block]] = []
    for contender in contenders:
        is_baseline = shared and contender.variant == CONTROL
        variant = BASELINE if is_baseline else contender.variant
        shots.append(partial(contender.ask, "block", variant=variant))
    return shots


def afterwards_s(contenders: Sequence[Contender], options: Options) -> float:
    """Return the seconds to reserve for what follows the rounds, estimated from the length of the
    variants' calls."""
    own = [s for s in contenders if s.variant != CONTROL]
    again_s = sum(_again_s(contender) for contender in own) if options.checked else 0.0
    return sum(_memory_s(contender) for contender in own) + again_s + CLOSING_S


def _memory_s(contender: Contender) -> float:
    return CALLS_FOR_MEMORY * _call_s(contender)


def _again_s(contender: Contender) -> float:
    return LATE_S + CALLS_AGAIN * _call_s(contender)


def _call_s(contender: Contender) -> float:
    return contender.warmed.steady_ns / 1e9 if contender.warmed is not None else 0.0


def look_after(contenders: Sequence[Contender], options: Options, say: Say) -> tuple[str, ...]:
    """Count recompilations, check the roofline floor and measure peak memory. This comes after the
    rounds, because measuring memory is slow and leaves traces. Return notes on what there was no
    time for."""
    left: list[str] = []
    for contender in contenders:
        contender.recompiles = contender.ask("recompiles", variant=contender.variant)
        if options.checked and contender.warmed is not None:
            contender.floor = contender.ask(
                "floor",
                variant=contender.variant,
                measured_ns=contender.warmed.steady_ns,
                may_measure=_has_time(options, FLOOR_S),
            )
        if not _has_time(options, _memory_s(contender) + CLOSING_S):
            left.append(f"the memory of {contender.name} was not measured: {NO_TIME}")
            continue
        say(f"{contender.name}: memory")
        contender.peak = contender.ask("peak", variant=contender.variant)
    return tuple(left)


def _has_time(options: Options, needed_s: float) -> bool:
    return options.deadline is None or options.deadline.left_s() >= needed_s


def look_again(contenders: Sequence[Contender], options: Options, say: Say) -> tuple[str, ...]:
    """Look for cached replay once more after the rounds, in one process only: the evidence of all
    variants is there. Return notes on what there was no time for."""
    if not options.checked:
        return ()
    own = [contender for contender in contenders if contender.variant != CONTROL]
    needed_s = sum(_again_s(contender) for contender in own) + CLOSING_S
    if not _has_time(options, needed_s):
        return (f"results were not checked again after the rounds: {NO_TIME}",)
    for contender in own:
        say(f"{contender.name}: checking results again")
        contender.ask(
            "look_again",
            variant=contender.variant,
            seed=options.seed,
            budget_s=None if options.deadline is None else LATE_S,
        )
    for contender in contenders[2:]:
        guard = contender.ask("replays", candidate=contender.variant)
        if guard.outcome == "failed" and contender.examined is not None:
            others = [g for g in contender.examined.guards if g.name != guard.name]
            late = msgspec.structs.replace(guard, detail=f"after the rounds, {guard.detail}")
            contender.examined = msgspec.structs.replace(contender.examined, guards=(late, *others))
    return ()


def _opened(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the variants, with the baseline in place of a control that was not opened itself."""
    return [contenders[0] if s.variant == CONTROL and s.opened is None else s for s in contenders]
