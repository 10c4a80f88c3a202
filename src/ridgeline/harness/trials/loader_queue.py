"""How many batches a loader's workers have made that the program has not taken yet, step by step:
where fewer lie ready at the end of some steps than did at their beginning, these were fed faster
than batches are made, and no longer run of the program would be."""

import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ridgeline.records.trial import Queued


class Ahead:
    """One for the trial."""

    def __init__(self) -> None:
        self._noted: dict[int, Queued] = {}
        self._iterator: Callable[[], Any] = lambda: None
        """Weakly: its workers end with it."""
        self._received = 0
        self._epoch = 0

    @property
    def noted(self) -> tuple[Queued, ...]:
        return tuple(self._noted.values())

    def took(self, iterator: Any, step: int) -> None:
        """The batch of that step has been handed out."""
        received = getattr(iterator, "_rcvd_idx", None)
        if received is None:  # no workers
            return
        if iterator is not self._iterator() or received < self._received:
            self._iterator = weakref.ref(iterator)
            self._epoch += 1
        self._received = received
        ready = made(iterator)
        if ready is not None:
            self._noted[step] = Queued(step=step, epoch=self._epoch, ready=ready)


def made(iterator: Any) -> int | None:
    """None: it cannot be told, or the epoch ends, and with it what workers are asked to make."""
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
    return ready + sum(len(one) == 2 for one in asked_for.values())  # before their turn


MOST_AHEAD = 128
WAITS = 0.05
"""Of a step, for its batch: less is no sign that the queue is empty."""

ENOUGH = 12
"""Steps, to be timed by."""
LITTLE = 1.0
"""Batches: as many lie more or fewer in a queue by chance."""
STALLS = 1.5
"""Times what a step takes that waits for all the workers, which is as many steps as they are."""
ODD = 4.0
"""Times the middle round: one that takes longer did something else, an evaluation as a rule."""


def made_ahead(workers: int, prefetch_factor: int | None) -> int:
    """Steps after the watched ones that are not timed: workers had time to fill their queue, and
    steps that empty it are faster than any that follow (prefetching looked like 3.56 ×). Twice its
    length, because it is filled while it is emptied."""
    return min(2 * workers * (prefetch_factor or 0), MOST_AHEAD)


def emptied(waits: Sequence[float], workers: int) -> int:
    """The first step that finds the queue as the last ones do: where those wait for their batches
    and earlier ones did not, it was still being emptied. A queue of 32 that is filled half as fast
    as it is emptied lasts for 64 steps, and prefetching looked like 1.26 × where it brings
    nothing. `waits`: of each step, the share it waited."""
    size = max(workers, 1)
    rounds = [sum(waits[at : at + size]) / size for at in range(len(waits) - size + 1)]
    last = rounds[2 * len(rounds) // 3 :]
    usual = sum(last) / len(last) if last else 0.0
    if not workers or usual < WAITS:
        return 0
    return next((at for at, wait in enumerate(rounds) if wait >= usual / 2), 0)


def still_made(steps: Sequence[int], queue: Sequence[Queued]) -> int:
    """How many of these steps there are until the workers of an only epoch have no batch left to
    make: on two cores the steps after that are faster by 15 %, and the more is made ahead, the more
    steps that is. All of them where another epoch follows, or few would be left."""
    known = [one for one in queue if one.step >= steps[0]] if steps else []
    if not known or len({one.epoch for one in known}) > 1:
        return len(steps)
    last = max(one.step for one in known)
    found = sum(step <= last for step in steps)
    return found if found >= ENOUGH else len(steps)


def sustained(step_ns: Sequence[int], queue: Sequence[Queued | None], workers: int) -> float:
    """Of a step, in nanoseconds, if none lived on batches that were made before. Of 46 steps of
    8 ms in which a queue became shorter by 9 batches, only 37 were fed by what was made meanwhile:
    a batch takes 10 ms to make. 0: the queue became no shorter. `queue`: as each step found it."""
    size = max(workers, 1)
    steps, shorter = 0, 0.0
    for one in _epochs(queue):
        ends = min(size, len(one) // 2)
        if ends:
            shorter += (sum(one[:ends]) - sum(one[-ends:])) / ends
            steps += len(one) - ends
    if shorter <= LITTLE or not step_ns:
        return 0.0
    return _mean(_within(step_ns, queue), workers) * steps / max(steps - shorter, 1.0)


def _within(step_ns: Sequence[int], queue: Sequence[Queued | None]) -> list[int]:
    """Steps whose batch and the one before are of the same epoch: between two epochs there may be
    an evaluation, and workers that start (1.4 s beside steps of 16 ms)."""
    before = (None, *queue)
    return [
        ns
        for ns, one, last in zip(step_ns, queue, before, strict=False)
        if one is not None and last is not None and one.epoch == last.epoch
    ]


def _mean(step_ns: Sequence[int], workers: int) -> float:
    rounds = in_rounds(step_ns, workers)
    most = ODD * median(rounds) if rounds else 0.0
    usual = [one for one in rounds if one <= most]
    return sum(usual) / len(usual) if usual else 0.0


def _epochs(queue: Sequence[Queued | None]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for one in queue:
        if one is not None:
            found.setdefault(one.epoch, []).append(one.ready)
    return list(found.values())


def as_sustained(
    step_ns: Sequence[int], queue: Sequence[Queued | None], workers: int
) -> tuple[int, ...]:
    """In rounds of the workers, and as long as a step takes that feeds itself."""
    stall = _stall(step_ns, workers)
    if stall is not None:
        step_ns, queue = ([*these[:stall], *these[stall + 1 :]] for these in (step_ns, queue))
    rounds = in_rounds(step_ns, workers)
    steady_ns = sustained(step_ns, queue, workers)
    usual_ns = median(rounds) if rounds else 0.0
    if steady_ns <= usual_ns or not usual_ns:
        return rounds
    return tuple(round(one * steady_ns / usual_ns) for one in rounds)


def _stall(step_ns: Sequence[int], workers: int) -> int | None:
    """Which step, where one alone takes longer than any that waits for all the workers. A single
    one counts for nothing where there are no workers; in rounds it would stand in as many as there
    are workers, and did: 46 ms a step instead of 17."""
    rounds = in_rounds(step_ns, workers)
    if workers < 2 or not rounds:
        return None
    most = STALLS * workers * median(rounds)
    found = [at for at, ns in enumerate(step_ns) if ns > most]
    return found[0] if len(found) == 1 else None


def in_rounds(step_ns: Sequence[int], workers: int) -> tuple[int, ...]:
    """Each step as the mean of a round of the workers: they finish their batches together, so that
    of two steps one waits and one does not (8 and 25 ms, in turn, were measured), and the middle
    one of such steps is either: 6.43 × were seen where 2 are possible."""
    size = max(min(workers, len(step_ns) // 2), 1)
    return tuple(
        round(sum(step_ns[at : at + size]) / size) for at in range(len(step_ns) - size + 1)
    )
