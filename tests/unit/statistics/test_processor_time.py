"""Processor time decides only where a crowded machine hides the difference in wall time."""

import numpy as np
import pytest
from msgspec.structs import replace

from ridgeline.statistics.analysis import (
    Analysis,
    Floats,
    ProcessorTimes,
    RoundTable,
    analyse,
    decide_by_processor_time,
    deciding_estimates,
)
from ridgeline.statistics.simulation import simulated_crowd

THRESHOLD, ALPHA = 0.02, 0.05


def times(wall: RoundTable, processor: RoundTable) -> ProcessorTimes:
    """One thread that never sleeps."""
    none: Floats = np.zeros_like(wall.samples)
    return ProcessorTimes(wall.samples, processor.samples, processor.samples, none)


def decided(
    wall: RoundTable, processor: RoundTable, counted: ProcessorTimes | None = None
) -> Analysis:
    found = analyse(wall, alpha=ALPHA, threshold=THRESHOLD)
    given = counted or times(wall, processor)
    return decide_by_processor_time(found, given, processor, alpha=ALPHA, threshold=THRESHOLD)


def hidden(seed: int = 0) -> tuple[RoundTable, RoundTable]:
    """A gain of 1.5 × on a machine of which others have nine tenths, in few rounds."""
    return simulated_crowd(10, effects=(1, 1, 1 / 1.5), taken=0.9, seed=seed)


def test_a_gain_hidden_by_waiting_is_decided_by_processor_time() -> None:
    wall, processor = hidden()
    alone = analyse(wall, alpha=ALPHA, threshold=THRESHOLD)
    assert (alone.verdicts, alone.decided_by) == (("UNDECIDED",), ("",))
    found = decided(wall, processor)
    assert (found.verdicts, found.decided_by) == (("FASTER",), ("processor_time",))
    assert found.estimates == alone.estimates, "what the clock said stays"
    ((_, estimate),) = deciding_estimates(found)
    assert estimate.ci_low < 1.5 < estimate.ci_high
    assert estimate.level > 1 - ALPHA, "the second question has a smaller share of the error"


def several_threads(found: ProcessorTimes) -> ProcessorTimes:
    thread = found.thread.copy()
    thread[:, 2] *= 0.6
    return replace(found, thread=thread)


def sleeping(found: ProcessorTimes) -> ProcessorTimes:
    sleeps = found.sleeps.copy()
    sleeps[:, 0] = 1.0
    return replace(found, sleeps=sleeps)


def quiet(found: ProcessorTimes) -> ProcessorTimes:
    return replace(found, wall=found.process * 1.01)


def nothing_counted(found: ProcessorTimes) -> ProcessorTimes:
    none = np.zeros_like(found.process)
    return replace(found, process=none, thread=none)


@pytest.mark.parametrize("why_not", [several_threads, sleeping, quiet, nothing_counted])
def test_processor_time_is_not_used_where_it_measures_something_else(why_not: object) -> None:
    wall, processor = hidden()
    counted = why_not(times(wall, processor))  # type: ignore[operator]
    assert not counted.is_usable()
    found = decided(wall, processor, counted)
    assert (found.verdicts, found.decided_by) == (("UNDECIDED",), ("",))
    assert found.processor_estimates == ()


def test_where_both_decide_and_disagree_there_is_no_verdict() -> None:
    wall, processor = simulated_crowd(40, effects=(1, 1, 1 / 1.5), taken=0.3, seed=1)
    assert decided(wall, processor).decided_by == ("clock",)
    same = replace(processor, samples=processor.samples * np.array([1.0, 1.0, 1.5]))
    found = decided(wall, same)
    assert (found.verdicts, found.decided_by) == (("UNDECIDED",), ("",))


def test_processor_time_does_not_decide_against_the_interval_of_wall_time() -> None:
    """Wall time cannot tell 1.5 × from 1, but it can tell that it is not 100 ×."""
    wall, processor = hidden()
    other = replace(processor, samples=processor.samples * np.array([1.0, 1.0, 0.01]))
    assert decided(wall, other).verdicts == ("UNDECIDED",)


@pytest.mark.parametrize("taken", [0.1, 0.5, 0.9])
def test_identical_code_is_not_called_different_more_often(taken: float) -> None:
    """Fixed seeds. Few rounds, where wall time alone errs most, and none may be added to it."""
    alone = both = 0
    for seed in range(100):
        wall, processor = simulated_crowd(20, taken=taken, seed=seed)
        first = analyse(wall, alpha=ALPHA, threshold=THRESHOLD).verdicts[0]
        alone += first in ("FASTER", "SLOWER")
        both += decided(wall, processor).verdicts[0] in ("FASTER", "SLOWER")
    assert both <= alone
