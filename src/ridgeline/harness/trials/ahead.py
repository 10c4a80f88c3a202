"""How many batches a loader's workers have made that the program has not taken yet, step by step:
where fewer lie ready at the end of some steps than did at their beginning, these were fed faster
than batches are made, and no longer run of the program would be."""

import weakref
from collections.abc import Callable
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
