"""When enough is known: how many rounds there may be, when they are looked at, what they say."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.comparison.options import Options, Say
from ridgeline.measure.clock import Reading
from ridgeline.measure.rounds import Block, Round, Stopped
from ridgeline.records.comparison import Estimate
from ridgeline.records.facts import Verdict
from ridgeline.statistics.looks import plan_looks
from ridgeline.statistics.processor_time import (
    ProcessorTimes,
    decide_by_processor_time,
    deciding_estimates,
)
from ridgeline.statistics.rounds import Analysis, RoundTable, analyse

Floats = NDArray[np.float64]

_EVENTS_AGREE = 0.9
"""Events that see less than this of the wall time have missed work on another stream."""


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
        """`items` a call of each arm handles, where throughput is compared; `sets` of processes
        that share the rounds."""
        self.limit_ns = limit_ns
        self.by_events = by_events
        self._options = options
        self._items = items
        self._names = ("the baseline", "the control", *names[2:]) if names else ()
        fitting = int(limit_ns / max(round_ns, 1.0))
        self.most = max(min(fitting, options.most_rounds), 1)
        self.per_set = max(math.ceil(self.most / sets), 2)
        if sets > 1:
            # One look at the end: sets of processes are compared as wholes.
            self.most = self.per_set * sets
            self.looks = plan_looks(self.most, alpha=options.alpha, first=self.most)
        else:
            self.looks = plan_looks(self.most, alpha=options.alpha)

    def decided(self, rounds: Sequence[Round]) -> bool:
        """Whether every candidate has its verdict, and a ratio worth printing."""
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
        """Nanoseconds a call, by round and arm."""
        return np.array([[self._sample(b) for b in r.blocks] for r in rounds], dtype=np.float64)

    def table(self, rounds: Sequence[Round]) -> RoundTable:
        """What is compared: time a call, or an item where throughput is the goal."""
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
        return lambda taken: say(f"round {taken} of at most {self.most}")

    def _sample(self, block: Block) -> float:
        reading = block.reading
        return (reading.total_ns if self.by_events else reading.wall_ns) / block.calls


def settled(verdict: Verdict, estimate: Estimate, threshold: float) -> bool:
    """Decided, and known to within the threshold or a tenth of the effect."""
    if verdict == "UNDECIDED":
        return False
    half = math.log(estimate.ci_high / estimate.ci_low) / 2
    return half <= max(threshold, abs(math.log(estimate.ratio)) / 10)


def events_agree(shares: Sequence[float]) -> bool:
    return all(share >= _EVENTS_AGREE for share in shares)


def kept(rounds: Sequence[Round]) -> tuple[list[Round], int, str]:
    """The rounds without those in which the device was throttled, how many those were, and why. If
    they are more than half, throttled is how this device runs, and all stay."""
    hot = [r for r in rounds if r.throttled]
    if not hot:
        return list(rounds), 0, ""
    cause = hot[0].throttled
    if 2 * len(hot) > len(rounds):
        return list(rounds), 0, f"{cause} in {len(hot)} of {len(rounds)} rounds: all were kept"
    return [r for r in rounds if not r.throttled], len(hot), cause
