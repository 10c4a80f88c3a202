"""Which steps of a program with loader workers are timed: none that lives on a full queue."""

import pytest

from ridgeline.harness.trials.loader_queue import (
    as_sustained,
    first_steady_step,
    made_ahead,
    steps_before_last_batch,
    sustained_ns,
)
from ridgeline.records.trial import Queued
from ridgeline.statistics.samples import pace


def queued(steps: int, workers: int, queue: int, step_ms: float, batch_ms: float) -> list[float]:
    """The share that each step waits: `queue` batches are ready, and each of the workers makes
    one more in `batch_ms`."""
    now, waits = 0.0, []
    ready = [0.0] * queue + [batch_ms * (1 + number // workers) for number in range(steps)]
    for step in range(steps):
        waited = max(ready[step] - now, 0.0)
        now += waited + step_ms
        waits.append(waited / (waited + step_ms))
    return waits


def test_a_queue_that_is_refilled_while_it_is_emptied_lasts_longer_than_its_length() -> None:
    waits = queued(200, workers=4, queue=32, step_ms=2.0, batch_ms=16.0)
    begins = next(at for at, wait in enumerate(waits) if wait > 0.05)
    assert begins > 1.5 * 32
    assert begins - 4 <= first_steady_step(waits, 4) <= begins + 4


def test_workers_that_keep_up_have_nothing_to_empty() -> None:
    assert first_steady_step(queued(100, workers=4, queue=32, step_ms=5.0, batch_ms=16.0), 4) == 0


def test_a_loader_that_never_had_a_queue_waits_from_the_first() -> None:
    assert first_steady_step(queued(100, workers=4, queue=0, step_ms=2.0, batch_ms=16.0), 4) <= 4


def test_without_workers_nothing_is_made_ahead() -> None:
    assert first_steady_step([0.9] * 50, 0) == 0
    assert first_steady_step([], 4) == 0
    assert made_ahead(0, 2) == 0


def emptying(steps: int, step_ms: float, batch_ms: float, queue: int) -> list[Queued | None]:
    """As each step finds it: a batch is made in `batch_ms`, whoever makes it."""
    made = [queue + (step + 1) * step_ms / batch_ms - step - 1 for step in range(steps)]
    return [Queued(step=at, epoch=1, ready=max(round(n), 0)) for at, n in enumerate(made)]


@pytest.mark.parametrize("steps", [30, 46, 120])
def test_steps_that_live_on_what_was_made_before_are_as_long_as_making_a_batch_takes(
    steps: int,
) -> None:
    """A queue of 32 that lasts for 160 steps, in a program that has no more than 100."""
    queue = emptying(steps, step_ms=8.0, batch_ms=10.0, queue=32)
    found = as_sustained([8_000_000] * steps, queue, workers=4)
    assert sorted(found)[len(found) // 2] == pytest.approx(10e6, rel=0.05)


def test_a_queue_that_is_as_long_as_before_leaves_steps_as_they_are() -> None:
    full = [Queued(step=at, epoch=1, ready=28 + at % 2) for at in range(40)]
    waits = [Queued(step=at, epoch=1, ready=at % 4) for at in range(40)]
    for queue in (full, waits, list(reversed(emptying(40, 8.0, 10.0, 32))), [None] * 40):
        assert as_sustained([5_000_000] * 40, queue, workers=4) == (5_000_000,) * 37


def test_an_epoch_that_begins_with_an_empty_queue_is_no_queue_that_was_emptied() -> None:
    one = emptying(20, 8.0, 10.0, 20)
    fills = [Queued(step=20 + at, epoch=2, ready=min(at, 8)) for at in range(20)]
    assert sustained_ns([8_000_000] * 40, [*one, *fills], workers=2) == 0.0


def test_a_queue_that_lasted_for_half_of_the_steps_is_not_counted_twice() -> None:
    """The middle step waits already."""
    queue = [Queued(step=at, epoch=1, ready=max(6 - at // 4, 0)) for at in range(60)]
    steps = [8_000_000] * 24 + [10_666_667] * 36
    found = as_sustained(steps, queue, workers=4)
    assert sorted(found)[len(found) // 2] == pytest.approx(10_666_667, rel=0.03)


@pytest.mark.parametrize("odd", [20, 33])
def test_what_is_done_between_epochs_or_once_in_a_while_is_no_step(odd: int) -> None:
    """An evaluation of 1.4 s between steps of 16 ms made 46 of them, and of workers a loss."""
    queue = [*emptying(20, 16.0, 17.0, 8)]
    queue += [Queued(step=20 + at, epoch=3, ready=8 - at // 6) for at in range(20)]
    steps = [16_000_000] * 40
    steps[odd] = 1_400_000_000
    found = as_sustained(steps, queue, workers=4)
    assert 16e6 <= pace(found) < 19e6


def test_a_single_stall_counts_for_nothing_and_several_do() -> None:
    burst = [56_000_000, 4_000_000, 4_000_000, 4_000_000] * 10
    nothing = [None] * 40
    once, often = ([*burst] for _ in range(2))
    once[22] = 1_400_000_000
    often[7:39:8] = [200_000_000] * 4
    assert pace(as_sustained(burst, nothing, workers=4)) == pytest.approx(17e6, rel=0.02)
    assert pace(as_sustained(once, nothing, workers=4)) == pytest.approx(17e6, rel=0.05)
    assert pace(as_sustained(often, nothing, workers=4)) > 32e6


def test_steps_after_the_last_batch_was_made_are_not_timed() -> None:
    """100 steps, of which 32 are made ahead: after the 68th nothing is left to make."""
    queue = [Queued(step=at, epoch=1, ready=28) for at in range(69)]
    assert steps_before_last_batch(range(9, 100), queue) == 60
    assert steps_before_last_batch(range(60, 100), queue) == 40  # too few would be left
    again = [Queued(step=at, epoch=2, ready=4) for at in range(120, 150)]
    assert steps_before_last_batch(range(9, 150), [*queue, *again]) == 141  # another epoch begins
    assert steps_before_last_batch(range(9, 100), []) == 91
    assert steps_before_last_batch([], queue) == 0
