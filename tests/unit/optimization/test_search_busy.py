"""A machine on which other programs have the processors for most of the time: trials are compared
without the time in which their steps waited for one. The waits are simulated."""

import math
import random
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.fix import find_fix
from ridgeline.harness.trials.trial_process import Outcome, sustained_times
from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.optimized import Optimized
from ridgeline.records.run import Step
from ridgeline.records.trial import Asked, Trial
from tests.unit.optimization.fake_bench import FakeBench, candidate, times

WORKERS = Candidate(fix=find_fix("loader-workers").fix, options={"workers": "2"})


class BusyBench(FakeBench):
    """Steps wait three times as long as they work, in some processes half and in some twice of
    that. Steps that workers feed wait less, and their waits are not told."""

    _load = random.Random(1)

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        found = super().trial(fixes, **given)
        if found.trial is None:
            return found
        feeds = any(one.fix == "loader-workers" for one in fixes)
        load = (0.5 if feeds else 3) * math.exp(self._load.gauss(0, 0.5))
        waits = tuple(round(load * ns) for ns in found.trial.step_ns)
        steps = tuple(ns + wait for ns, wait in zip(found.trial.step_ns, waits, strict=True))
        trial = replace(found.trial, step_ns=steps, queued_ns=() if feeds else waits)
        return replace(found, trial=trial)


def searched(seed: int, change: Candidate, gain: float) -> Optimized:
    bench = BusyBench(times(**{change.fix.id: gain}), seed=seed)
    return Ladder(bench, [change]).climb("train.py")


def test_a_gain_is_confirmed_on_a_busy_machine() -> None:
    found = [searched(seed, candidate("a"), 1.25) for seed in range(10)]
    assert sum(one.is_confirmed for one in found) >= 9
    for one in found:
        if one.total is not None:
            assert 1.15 < one.total.ratio.value < 1.35
            assert math.isclose(one.total.before_ms, 100, rel_tol=0.1)


def test_nothing_is_kept_of_a_fix_that_gains_nothing_there() -> None:
    assert sum(searched(seed, candidate("a"), 1.0).is_confirmed for seed in range(20)) <= 1


def test_workers_gain_nothing_by_getting_more_of_a_busy_machine_than_a_single_process() -> None:
    """A step that they feed waits half as long as it works, and the baseline three times as long:
    the whole step takes 2.7 times as long in the baseline, its work the same time."""
    found = [searched(seed, WORKERS, 1.0) for seed in range(10)]
    assert not any(one.is_confirmed for one in found)


def test_workers_are_confirmed_if_they_gain_though_all_their_waits_count() -> None:
    found = [searched(seed, WORKERS, 4.0) for seed in range(10)]
    assert sum(one.is_confirmed for one in found) >= 9


def step(index: int) -> Step:
    return Step(index=index, start_ns=0, dur_ns=100)


def test_waits_of_steps_are_told_if_all_are_known_and_no_workers_feed_them() -> None:
    steps = [step(index) for index in range(4)]
    trial = Trial(queued={0: 60, 1: 61, 2: 62, 3: 120})
    assert sustained_times(trial, steps, 0, False).queued_ns == (60, 61, 62, 100)
    assert sustained_times(trial, steps, 2, False).queued_ns == ()
    assert sustained_times(replace(trial, queued={0: 60}), steps, 0, False).queued_ns == ()
