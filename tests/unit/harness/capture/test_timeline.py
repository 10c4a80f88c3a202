"""Exclusive time by phase, on a clock that is told the time."""

from ridgeline.harness.capture.step_times import (
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    OTHER,
    QUIET,
    TRANSFER,
    Timeline,
    folded,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def passes(self, ns: int) -> None:
        self.now += ns


def spent(timeline: Timeline) -> list[int]:
    return timeline.cut()[2]


def test_a_plain_step_is_split_where_its_phases_begin_and_end() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.enter(INPUT)
    clock.passes(5)
    timeline.leave()
    clock.passes(2)  # the batch is copied to the device
    timeline.enter(FORWARD)
    clock.passes(10)
    timeline.leave()
    clock.passes(1)
    timeline.enter(BACKWARD)
    clock.passes(20)
    timeline.leave()
    timeline.enter(OPTIMIZER)
    clock.passes(3)
    timeline.leave()
    start, dur, phases = timeline.cut()
    assert (start, dur) == (0, 41)
    assert phases[INPUT] == 5
    assert phases[TRANSFER] == 2
    assert (phases[FORWARD], phases[BACKWARD], phases[OPTIMIZER]) == (10, 20, 3)
    assert phases[OTHER] == 1
    assert sum(phases) == dur


def test_what_runs_inside_the_optimizer_is_counted_once_in_the_inner_phase() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.enter(OPTIMIZER)
    clock.passes(1)
    timeline.enter(FORWARD)
    clock.passes(7)
    timeline.leave()
    timeline.enter(BACKWARD)
    clock.passes(9)
    timeline.leave()
    clock.passes(2)
    timeline.leave()
    phases = spent(timeline)
    assert (phases[OPTIMIZER], phases[FORWARD], phases[BACKWARD]) == (3, 7, 9)


def test_a_call_that_does_not_train_is_evaluation_with_the_wait_for_its_batch() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.enter(INPUT)
    clock.passes(5)
    timeline.leave()
    timeline.enter(QUIET)
    clock.passes(4)
    timeline.leave()
    kept = spent(timeline)
    assert folded(kept, trains=True) == {"evaluation": 9}
    assert folded(kept, trains=False) == {"input": 5, "forward": 4}


def test_a_batch_fetched_before_the_step_ends_stays_input() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.enter(INPUT)
    clock.passes(5)
    timeline.leave()
    assert spent(timeline)[INPUT] == 5


def test_a_step_that_raised_is_unwound() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.enter(OPTIMIZER)
    clock.passes(3)
    timeline.unwind()
    clock.passes(4)
    phases = spent(timeline)
    assert (phases[OPTIMIZER], phases[OTHER]) == (3, 4)


def test_time_of_our_own_work_belongs_to_no_step() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    clock.passes(5)
    timeline.cut()
    clock.passes(1000)
    timeline.resume()
    clock.passes(3)
    start, dur, _ = timeline.cut()
    assert (start, dur) == (1005, 3)


def test_each_phase_is_marked_on_the_device_as_it_begins() -> None:
    told: list[int] = []
    timeline = Timeline(Clock())
    timeline.mark = told.append
    timeline.enter(INPUT)
    timeline.leave()
    timeline.enter(FORWARD)
    timeline.leave()
    assert told == [INPUT, TRANSFER, FORWARD, OTHER]
