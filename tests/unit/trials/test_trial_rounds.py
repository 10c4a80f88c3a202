"""Which steps of a program with loader workers are timed: none that lives on a full queue."""

from ridgeline.trials.rounds import emptied, made_ahead


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
    assert begins - 4 <= emptied(waits, 4) <= begins + 4


def test_workers_that_keep_up_have_nothing_to_empty() -> None:
    assert emptied(queued(100, workers=4, queue=32, step_ms=5.0, batch_ms=16.0), 4) == 0


def test_a_loader_that_never_had_a_queue_waits_from_the_first() -> None:
    assert emptied(queued(100, workers=4, queue=0, step_ms=2.0, batch_ms=16.0), 4) <= 4


def test_without_workers_nothing_is_made_ahead() -> None:
    assert emptied([0.9] * 50, 0) == 0
    assert emptied([], 4) == 0
    assert made_ahead(0, 2) == 0
