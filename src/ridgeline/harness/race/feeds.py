"""Which DataLoader feeds the program. A candidate with other loader settings is fed by a copy of
the program's loader, and the program does not notice: its iterator asks whichever feed is active.

Only the workers of the active feed run. The others are stopped by a signal, so that they neither
take processor time from the candidate that is timed nor fill their queues meanwhile: a queue that
was filled while nobody took from it makes the next steps faster than any that follow.
"""

import contextlib
import importlib
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.harness.trials.loader_queue import made_ahead

LoaderLike = Callable[[Any], Any]
"""Returns the loader that a candidate is fed by, given the program's."""


class Feeds:
    """The feeds of all loaders of the program. `active` makes the candidate's loader; None means
    that the program is fed by its own."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.active: LoaderLike | None = None
        self._iterators: weakref.WeakSet[FedIterator] = weakref.WeakSet()
        self._last: FedIterator | None = None
        self._training: set[int] = set()
        """Ids of the data sets that feed the training."""

    def install(self) -> None:
        loader = importlib.import_module("torch.utils.data").DataLoader
        theirs, feeds = loader.__iter__, self

        def __iter__(self_: Any) -> Any:
            own = theirs(self_)
            return own if feeds.is_copy(self_) else FedIterator(feeds, self_, own)

        loader.__iter__ = __iter__

    def is_copy(self, loader: Any) -> bool:
        return getattr(loader, "_ridgeline_copy", False) is True

    def handed_out(self, iterator: "FedIterator") -> None:
        self._iterators.add(iterator)
        self._last = iterator

    def trained(self) -> None:
        """Note that the last batch was trained on."""
        if self._last is not None:
            self._training.add(id(self._last.loader.dataset))

    def feeds_training(self, iterator: "FedIterator") -> bool:
        return id(iterator.loader.dataset) in self._training

    def use(self, active: LoaderLike | None) -> None:
        """Feed the program by another loader from the next batch on."""
        if active is self.active:
            return
        for iterator in list(self._iterators):
            iterator.stop_workers()
        self.active = active
        for iterator in list(self._iterators):
            iterator.wake_workers()

    def steps_ahead(self) -> int:
        """Return how many steps the active feed may live on what its workers made ahead."""
        if self._last is None:
            return 0
        loader = self._last.current_loader()
        return made_ahead(loader.num_workers, loader.prefetch_factor)

    def close(self) -> None:
        """Let all workers run, so that they can end."""
        for iterator in list(self._iterators):
            iterator.wake_all()


class FedIterator:
    """What the program iterates over instead of its loader's own iterator. An epoch has as many
    batches as the program's loader gives, whichever feed they come from."""

    def __init__(self, feeds: Feeds, loader: Any, own: Any) -> None:
        self.loader = loader
        self._feeds = feeds
        self._own = own
        self._copies: dict[LoaderLike, tuple[Any, Any]] = {}
        """For each candidate's loader: the loader and its iterator."""
        self._given = 0
        self._length = _length(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._length is not None and self._given >= self._length:
            self._end()
            raise StopIteration
        copied = self._copied()
        batch = next(self._own) if copied is None else self._next_of(copied)
        self._given += 1
        self._feeds.handed_out(self)
        return batch

    def __len__(self) -> int:
        return len(self._own)

    def __getattr__(self, name: str) -> Any:
        if name in ("_own", "loader"):
            raise AttributeError(name)
        return getattr(self._own, name)

    def _copied(self) -> LoaderLike | None:
        active = self._feeds.active
        if active is None or not self._feeds.feeds_training(self):
            return None
        if active not in self._copies:
            made = active(self.loader)
            made.__dict__["_ridgeline_copy"] = True
            self._copies[active] = made, iter(made)
        return active

    def _next_of(self, active: LoaderLike) -> Any:
        loader, iterator = self._copies[active]
        try:
            return next(iterator)
        except StopIteration:  # the copy has given less than an epoch to others
            iterator = iter(loader)
            self._copies[active] = loader, iterator
            return next(iterator)

    def current_loader(self) -> Any:
        copied = self._copied()
        return self.loader if copied is None else self._copies[copied][0]

    def stop_workers(self) -> None:
        self._signal(self._current(), signal.SIGSTOP)

    def wake_workers(self) -> None:
        self._signal(self._current(), signal.SIGCONT)

    def wake_all(self) -> None:
        for iterator in (self._own, *(iterator for _, iterator in self._copies.values())):
            self._signal(iterator, signal.SIGCONT)

    def _current(self) -> Any:
        active = self._feeds.active
        if active is None or not self._feeds.feeds_training(self):
            return self._own
        return self._copies.get(active, (None, None))[1]

    def _signal(self, iterator: Any, number: int) -> None:
        for worker in getattr(iterator, "_workers", ()):
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(worker.pid, number)

    def _end(self) -> None:
        """End the epoch: workers that still make batches of it are of no use."""
        self.wake_all()
        for iterator in (self._own, *(iterator for _, iterator in self._copies.values())):
            if not getattr(iterator, "_persistent_workers", False):
                end = getattr(iterator, "_shutdown_workers", None)
                if end is not None:
                    end()
        self._copies.clear()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.wake_all()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None
