"""Processor time as a second witness where other programs hold the processors.

On a crowded machine most of the spread of wall times is waiting for a processor, which has nothing
to do with the code: a gain of 1.5 × gave [0.95, 3.02] by wall time. Processor time leaves the
waiting out. It may decide only where it measures what wall time measures on a quiet machine:

- All work is done in the calling thread. With several threads a variant may trade one time for the
  other, and a thread that spins while its sibling waits for a processor burns time for nothing.
- The calling thread never sleeps. Time in which it waits for a disk, a lock, a GPU or another
  process is wall time and no processor time. A thread that gives its processor away of its own
  accord counts a voluntary context switch, one whose processor is taken does not.
- Others did take the processors: of the wall time of the baseline and the control, which know
  nothing of the candidate, at least `CROWDED_SHARE` was no processor time.
- Wall time left the question open, and its interval holds the ratio by processor time.

Where wall time decides and processor time does not support it, there is no verdict: under these
conditions a gain in wall time is a gain in processor time, too. So the second witness adds few
false alarms and takes away more. A thread that spins until another process or a device is ready
looks like work here, too.

Simulated (`noise.simulated_crowd`, looks after 15, 30 and 60 rounds): where others take a tenth of
the processors' time, identical code was called different in 3.8 % by wall time alone and in 0.1 %
with the second witness (1,000 runs), and 5 % gains were found in 86 and 100 % (200 runs). Where
they take nine tenths: 1.7 and 0 % (300 runs), 5 % gains 3 and 100 %, 1.5 × gains 80 and 100 % (100
runs). At one look after 20 rounds, half of the time taken: 6.0 and 1.3 % (300 runs).
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.comparison import Estimate, Verdict
from ridgeline.statistics.rounds import Analysis, RoundTable, analyse

Floats = NDArray[np.float64]

OWN_THREAD_SHARE = 0.98
"""Of a process's processor time, in the calling thread: less means that others worked, too."""
CROWDED_SHARE = 0.05
"""Of wall time in which the baseline and the control had no processor."""
LEVEL_SHARE = 0.2
"""Of the level of a look, for the verdict by processor time: 1 % where it is 5 %."""


class ProcessorTimes(Struct, frozen=True):
    """What the operating system counted in the same rounds, by round and arm."""

    wall: Floats
    """Nanoseconds of the block."""
    process: Floats
    """Processor time of all threads."""
    thread: Floats
    """Processor time of the calling thread."""
    sleeps: Floats
    """Voluntary context switches of the calling thread."""

    @property
    def taken_share(self) -> float:
        """Of wall time in which the baseline and the control waited for a processor."""
        return 1 - float(self.process[:, :2].sum() / self.wall[:, :2].sum())

    def can_testify(self) -> bool:
        """Whether processor time is what a quiet machine's wall time would be, and this is none."""
        if not (self.process > 0).all():
            return False
        in_own_thread = self.thread.sum(axis=0) >= OWN_THREAD_SHARE * self.process.sum(axis=0)
        awake = np.median(self.sleeps, axis=0) == 0
        return bool(in_own_thread.all() and awake.all() and self.taken_share >= CROWDED_SHARE)


def decide_by_processor_time(
    found: Analysis,
    times: ProcessorTimes,
    table: RoundTable,
    *,
    alpha: float,
    threshold: float,
    seed: int = 0,
) -> Analysis:
    """`found` by the clock, with the verdicts it left open decided by processor time where that
    can testify, and without those that it contradicts. `table` has processor time a call in place
    of wall time; `alpha` is the level of the look."""
    if not times.can_testify():
        return found
    second = analyse(table, alpha=LEVEL_SHARE * alpha, threshold=threshold, seed=seed)
    taken = f"other programs had the processors {100 * times.taken_share:.0f} % of the time"
    verdicts, whys, deciders = list(found.verdicts), list(found.whys), list(found.decided_by)
    for at, (first, then) in enumerate(zip(found.verdicts, second.verdicts, strict=True)):
        if first == "UNDECIDED" and then != "UNDECIDED":
            if not _holds(found.estimates[at], second.estimates[at]):
                continue
            verdicts[at], deciders[at] = then, "processor_time"
            whys[at] = f"by processor time, because {taken}: {second.whys[at]}"
        elif not _supports(first, then, second.estimates[at], threshold):
            verdicts[at], deciders[at] = "UNDECIDED", ""
            ratio = f"{second.estimates[at].ratio:.3g} ×"
            whys[at] = f"{first} by wall time, but {ratio} by processor time; {taken}"
    return replace(
        found,
        verdicts=tuple(verdicts),
        whys=tuple(whys),
        decided_by=tuple(deciders),
        processor_estimates=second.estimates,
    )


def _holds(wall: Estimate, processor: Estimate) -> bool:
    return wall.ci_low <= processor.ratio <= wall.ci_high


def _supports(first: Verdict, then: Verdict, estimate: Estimate, threshold: float) -> bool:
    """Whether processor time does not contradict the clock's verdict: what is faster by more than
    matters takes less processor time by more than matters."""
    if first == "FASTER":
        return estimate.ratio >= 1 + threshold
    if first == "SLOWER":
        return estimate.ratio <= 1 / (1 + threshold)
    return first == "UNDECIDED" or then in ("SAME", "UNDECIDED")


def deciding_estimates(found: Analysis) -> Sequence[tuple[Verdict, Estimate]]:
    """Each verdict with the estimate that it rests on."""
    pairs = []
    for at, verdict in enumerate(found.verdicts):
        second = found.decided_by[at] == "processor_time"
        pairs.append((verdict, (found.processor_estimates if second else found.estimates)[at]))
    return pairs
