"""The queue of a loader with workers: how many batches lie ready at each step, and how long a step
takes in the long run, when no batch was made before the steps that were timed."""

import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ridgeline.records.trial import Queued

MAX_AHEAD_STEPS = 128
MIN_WAIT_SHARE = 0.05
"""A step that waits for a smaller share of itself is no sign that the queue is empty."""
MIN_TIMED_STEPS = 12
MIN_SHRINKAGE_BATCHES = 1.0
"""A queue that became shorter by fewer batches than this may have done so by chance."""
MAX_STALL_FACTOR = 1.5
"""A step that takes longer than this multiple of a round (one step per worker) is a stall."""
MAX_ROUND_FACTOR = 4.0
"""A round longer than this multiple of the median round did something else, such as an evaluation.
"""


class QueueWatch:
    """Notes at every step how many batches the workers have made that the program has not taken.
    Where the queue shrinks during some steps, those were fed faster than batches are made, and a
    longer run of the program would not be."""

    def __init__(self) -> None:
        self._noted: dict[int, Queued] = {}
        self._iterator: Callable[[], Any] = lambda: None
        """A weak reference: the workers end with their iterator."""
        self._received = 0
        self._epoch = 0

    @property
    def noted(self) -> tuple[Queued, ...]:
        return tuple(self._noted.values())

    def batch_taken(self, iterator: Any, step: int) -> None:
        received = getattr(iterator, "_rcvd_idx", None)
        if received is None:  # no workers
            return
        if iterator is not self._iterator() or received < self._received:
            self._iterator = weakref.ref(iterator)
            self._epoch += 1
        self._received = received
        ready = ready_batches(iterator)
        if ready is not None:
            self._noted[step] = Queued(step=step, epoch=self._epoch, ready=ready)


def ready_batches(iterator: Any) -> int | None:
    """Return how many batches lie ready; None if that is not known, or if the epoch ends and the
    workers are asked for fewer batches."""
    try:
        asked_for = iterator._task_info
        if len(asked_for) < iterator._prefetch_factor * iterator._num_workers:
            return None
        ready = int(iterator._worker_result_queue.qsize())
        pinned = iterator._data_queue
        if pinned is not iterator._worker_result_queue:
            ready += int(pinned.qsize())
    except (NotImplementedError, AttributeError):  # macOS; an iterator of another library
        return None
    return ready + sum(len(one) == 2 for one in asked_for.values())  # received before their turn


def made_ahead(workers: int, prefetch_factor: int | None) -> int:
    """Return how many steps after the watched ones are not timed. Workers had time to fill their
    queue, and steps that empty it are faster than any that follow (prefetching looked like 3.56 ×).
    This is twice the length of the queue, because it is filled while it is emptied."""
    return min(2 * workers * (prefetch_factor or 0), MAX_AHEAD_STEPS)


def first_steady_step(wait_shares: Sequence[float], workers: int) -> int:
    """Return the first step that finds the queue as the last steps do. If those wait for their
    batches and earlier ones did not, the queue was still being emptied. A queue of 32 batches that
    is filled half as fast as it is emptied lasts for 64 steps, and prefetching looked like 1.26 ×
    where it brings nothing. `wait_shares` has the share of each step that was spent waiting."""
    size = max(workers, 1)
    rounds = [sum(wait_shares[at : at + size]) / size for at in range(len(wait_shares) - size + 1)]
    last = rounds[2 * len(rounds) // 3 :]
    usual = sum(last) / len(last) if last else 0.0
    if not workers or usual < MIN_WAIT_SHARE:
        return 0
    return next((at for at, wait in enumerate(rounds) if wait >= usual / 2), 0)


def steps_before_last_batch(steps: Sequence[int], queue: Sequence[Queued]) -> int:
    """Return how many of these steps come before the workers of an only epoch have made their last
    batch. On two cores the steps after that are 15 % faster, and the more is made ahead, the more
    such steps there are. Return all if another epoch follows, or if few would be left."""
    known = [one for one in queue if one.step >= steps[0]] if steps else []
    if not known or len({one.epoch for one in known}) > 1:
        return len(steps)
    last = max(one.step for one in known)
    before = sum(step <= last for step in steps)
    return before if before >= MIN_TIMED_STEPS else len(steps)


def sustained_ns(step_ns: Sequence[int], queue: Sequence[Queued | None], workers: int) -> float:
    """Return the time of a step if none lived on batches that were made before; 0 if the queue
    became no shorter. Of 46 steps of 8 ms in which a queue shrank by 9 batches, only 37 were fed by
    what was made meanwhile, so that a batch takes 10 ms to make. `queue` has the state that each
    step found."""
    size = max(workers, 1)
    ready: dict[int, list[int]] = {}
    for one in queue:
        if one is not None:
            ready.setdefault(one.epoch, []).append(one.ready)
    steps, shrinkage = 0, 0.0
    for lengths in ready.values():
        ends = min(size, len(lengths) // 2)
        if ends:
            shrinkage += (sum(lengths[:ends]) - sum(lengths[-ends:])) / ends
            steps += len(lengths) - ends
    if shrinkage <= MIN_SHRINKAGE_BATCHES or not step_ns:
        return 0.0
    rounds = in_rounds(_within_epochs(step_ns, queue), workers)
    limit = MAX_ROUND_FACTOR * median(rounds) if rounds else 0.0
    usual = [one for one in rounds if one <= limit]
    mean = sum(usual) / len(usual) if usual else 0.0
    return mean * steps / max(steps - shrinkage, 1.0)


def _within_epochs(step_ns: Sequence[int], queue: Sequence[Queued | None]) -> list[int]:
    """Return the steps whose batch is of the same epoch as the one before. Between two epochs there
    may be an evaluation, and workers that start (1.4 s beside steps of 16 ms)."""
    return [
        ns
        for ns, now, before in zip(step_ns, queue, (None, *queue), strict=False)
        if now is not None and before is not None and now.epoch == before.epoch
    ]


def as_sustained(
    step_ns: Sequence[int], queue: Sequence[Queued | None], workers: int
) -> tuple[int, ...]:
    """Return the times of the steps in rounds of the workers, as long as a step takes that lives on
    no batch made before."""
    stall = _single_stall(step_ns, workers)
    if stall is not None:
        step_ns, queue = ([*these[:stall], *these[stall + 1 :]] for these in (step_ns, queue))
    rounds = in_rounds(step_ns, workers)
    steady_ns = sustained_ns(step_ns, queue, workers)
    usual_ns = median(rounds) if rounds else 0.0
    if steady_ns <= usual_ns or not usual_ns:
        return rounds
    return tuple(round(one * steady_ns / usual_ns) for one in rounds)


def _single_stall(step_ns: Sequence[int], workers: int) -> int | None:
    """Return the step that takes longer than any step that waits for all the workers, if it is the
    only one. Without workers a single step counts for nothing; in rounds it would stand in as many
    as there are workers, and did: 46 ms a step instead of 17."""
    rounds = in_rounds(step_ns, workers)
    if workers < 2 or not rounds:
        return None
    limit = MAX_STALL_FACTOR * workers * median(rounds)
    stalls = [at for at, ns in enumerate(step_ns) if ns > limit]
    return stalls[0] if len(stalls) == 1 else None


def in_rounds(step_ns: Sequence[int], workers: int) -> tuple[int, ...]:
    """Return each step as the mean of a round of the workers. They finish their batches together,
    so that of two steps one waits and one does not (8 and 25 ms in turn were measured), and the
    median of such steps is either: 6.43 × were seen where 2 are possible."""
    size = max(min(workers, len(step_ns) // 2), 1)
    return tuple(
        round(sum(step_ns[at : at + size]) / size) for at in range(len(step_ns) - size + 1)
    )
