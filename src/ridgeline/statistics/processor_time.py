"""Processor time as a second witness where other programs hold the processors.

On a crowded machine most of the spread of wall times is waiting for a processor, which has nothing
to do with the code: a gain of 1.5 × gave [0.95, 3.02] by wall time. Processor time leaves the
waiting out. It may decide only where it measures what wall time measures on a quiet machine:

- All work is done in the calling thread. With several threads a variant may trade one time for the
  other, and a thread that spins while its sibling waits for a processor burns time for nothing.
- The calling thread never sleeps. Time in which it waits for a disk, a lock, a GPU or another
  process is wall time but not processor time. The kernel counts a voluntary context switch when a
  thread gives its processor away, but not when the processor is taken from it.
- Other programs did take the processors: at least `CROWDED_SHARE` of the wall time of the baseline
  and the control was not processor time. These two arms do not depend on the candidate.
- Wall time left the question open, and its interval holds the ratio by processor time.

Where wall time decides and processor time does not support the decision, the verdict is UNDECIDED:
under these conditions a gain in wall time is a gain in processor time, too. So the second witness
adds few false alarms and takes away more. It has one weakness: a thread that spins until another
process or a device is ready looks like a thread that works.

Simulated error rates and detection rates (`noise.simulated_crowd`, looks after 15, 30 and 60 rounds
unless stated otherwise):

    time taken by others     measured                           wall time   both    runs
    a tenth                  identical code called different    3.8 %       0.1 %   1,000
    a tenth                  5 % gain found                     86 %        100 %   200
    nine tenths              identical code called different    1.7 %       0 %     300
    nine tenths              5 % gain found                     3 %         100 %   100
    nine tenths              1.5 × gain found                   80 %        100 %   100
    half, one look after     identical code called different    6.0 %       1.3 %   300
    20 rounds
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.comparison import Estimate
from ridgeline.records.facts import Verdict
from ridgeline.statistics.rounds import Analysis, RoundTable, analyse

Floats = NDArray[np.float64]

OWN_THREAD_SHARE = 0.98
"""The smallest share of a process's processor time that the calling thread must have. Less means
that other threads worked, too."""
CROWDED_SHARE = 0.05
"""The smallest share of wall time in which the baseline and the control had no processor, for the
machine to count as crowded."""
LEVEL_SHARE = 0.2
"""The significance level for the verdict by processor time, as a share of the level of the look: it
is 1 % where the look has 5 %."""


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
        """The share of wall time in which the baseline and the control waited for a processor."""
        return 1 - float(self.process[:, :2].sum() / self.wall[:, :2].sum())

    def can_testify(self) -> bool:
        """Return whether processor time is what wall time would be on a quiet machine, and whether
        this machine is not quiet."""
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
    """Return the analysis by wall time, `found`, corrected by processor time. Where processor time
    can testify, it decides verdicts that wall time left open, and turns verdicts that it
    contradicts into UNDECIDED. `table` has the processor time of each call in place of its wall
    time; `alpha` is the significance level of the look."""
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
    """Return whether processor time agrees with the verdict by wall time. A variant that is faster
    by more than the threshold must take less processor time by more than the threshold."""
    if first == "FASTER":
        return estimate.ratio >= 1 + threshold
    if first == "SLOWER":
        return estimate.ratio <= 1 / (1 + threshold)
    return first == "UNDECIDED" or then in ("SAME", "UNDECIDED")


def deciding_estimates(found: Analysis) -> Sequence[tuple[Verdict, Estimate]]:
    """Return each verdict with the estimate that it rests on."""
    pairs = []
    for at, verdict in enumerate(found.verdicts):
        second = found.decided_by[at] == "processor_time"
        pairs.append((verdict, (found.processor_estimates if second else found.estimates)[at]))
    return pairs
