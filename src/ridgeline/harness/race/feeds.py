"""Chooses which DataLoader feeds the program. A candidate with other loader settings is fed by a
copy of the program's loader, and the program does not notice: its iterator asks whichever feed is
active.

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
        self.endless = False
        """Whether an epoch of training begins again where it would end: the program then takes
        steps for as long as the race lasts, and none of its time goes into an evaluation or, at its
        end, into starting it again."""
        self.restarts = 0
        """How often an iterator was made, and its workers started."""
        self._theirs: Callable[[Any], Any] = iter
        """Makes the iterator of a loader as the program would without us."""
        self._iterators: weakref.WeakSet[FedIterator] = weakref.WeakSet()
        self._copies: weakref.WeakKeyDictionary[Any, Copies] = weakref.WeakKeyDictionary()
        """The copies of each loader of the program. They outlive its epochs: a candidate has as
        many batches of the program's epoch as it had blocks in it, and would start its workers for
        them each time."""
        self._last: FedIterator | None = None
        self._training: set[int] = set()
        """Ids of the data sets that feed the training."""

    def install(self) -> None:
        loader = importlib.import_module("torch.utils.data").DataLoader
        theirs, feeds = loader.__iter__, self

        def __iter__(self_: Any) -> Any:
            if feeds.is_copy(self_):
                return theirs(self_)
            return FedIterator(feeds, self_)

        self._theirs = theirs
        loader.__iter__ = __iter__

    def is_copy(self, loader: Any) -> bool:
        return getattr(loader, "_ridgeline_copy", False) is True

    def begun(self, loader: Any) -> Any:
        """Return a new iterator of a loader."""
        self.restarts += 1
        return self._theirs(loader)

    def copies_of(self, loader: Any) -> "Copies":
        if loader not in self._copies:
            self._copies[loader] = Copies(self)
        return self._copies[loader]

    def handed_out(self, iterator: "FedIterator") -> None:
        self._iterators.add(iterator)
        self._last = iterator

    def trained(self) -> None:
        """Note that the last batch was trained on."""
        if self._last is not None:
            self._last.is_trained_on = True
            self._training.add(id(self._last.loader.dataset))

    def feeds_training(self, iterator: "FedIterator") -> bool:
        return id(iterator.loader.dataset) in self._training

    def use(self, active: LoaderLike | None) -> None:
        """Feed the program by another loader from the next batch on."""
        if active is self.active:
            return
        for iterator in list(self._iterators):
            signal_workers(iterator.current(), signal.SIGSTOP)
        self.active = active
        for iterator in list(self._iterators):
            signal_workers(iterator.current(), signal.SIGCONT)

    def steps_ahead(self) -> int:
        """Return how many steps the active feed may live on what its workers made ahead."""
        if self._last is None:
            return 0
        loader = self._last.current_loader()
        return made_ahead(loader.num_workers, loader.prefetch_factor)

    def workers(self) -> int:
        """Return how many workers the active feed has."""
        return self._last.current_loader().num_workers if self._last is not None else 0

    def close(self) -> None:
        """Let all workers run, so that they can end."""
        for iterator in list(self._iterators):
            signal_workers(iterator.own, signal.SIGCONT)
        for copies in list(self._copies.values()):
            copies.wake()

    def end_copies(self) -> None:
        """End the workers of all loaders that fed candidates."""
        for copies in list(self._copies.values()):
            copies.end()


class Copies:
    """The loaders that feed candidates in place of one of the program's loaders."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._made: dict[LoaderLike, tuple[Any, Any]] = {}
        """The loader and its iterator."""

    def add(self, active: LoaderLike, loader: Any) -> None:
        if active not in self._made:
            made = active(loader)
            made.__dict__["_ridgeline_copy"] = True
            self._made[active] = made, self._feeds.begun(made)

    def loader(self, active: LoaderLike) -> Any:
        return self._made[active][0]

    def iterator(self, active: LoaderLike) -> Any:
        return self._made.get(active, (None, None))[1]

    def next_batch(self, active: LoaderLike) -> Any:
        loader, iterator = self._made[active]
        try:
            return next(iterator)
        except StopIteration:
            iterator = self._feeds.begun(loader)
            self._made[active] = loader, iterator
            return next(iterator)

    def wake(self) -> None:
        for _, iterator in self._made.values():
            signal_workers(iterator, signal.SIGCONT)

    def end(self) -> None:
        for _, iterator in self._made.values():
            end_workers(iterator)
        self._made.clear()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.wake()  # the iterators end their workers, and wait for them


class FedIterator:
    """The program iterates over this, not over its loader's own iterator. An epoch has as many
    batches as the program's loader gives, whichever feed they come from."""

    def __init__(self, feeds: Feeds, loader: Any) -> None:
        self.loader = loader
        self.own: Any = None
        """The loader's own iterator, made when it is first needed: its workers would take time
        from a candidate that does not use them."""
        self.is_trained_on = False
        """Whether the last batch was trained on. An evaluation ends, of the same data too."""
        self._feeds = feeds
        self._given = 0
        self._length = _length(loader)
        if feeds.active is None or not feeds.feeds_training(self):
            self._begin()

    def _begin(self) -> Any:
        if self.own is None:
            self.own = self._feeds.begun(self.loader)
        return self.own

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        begins_again = self._feeds.endless and self.is_trained_on
        self.is_trained_on = False
        if self._length is not None and self._given >= self._length:
            self._end()
            if not begins_again:
                raise StopIteration
            self.own, self._given = None, 0
        batch = self._next_batch(begins_again)
        self._given += 1
        self._feeds.handed_out(self)
        return batch

    def _next_batch(self, begins_again: bool) -> Any:
        active = self._active()
        if active is not None:
            copies = self._feeds.copies_of(self.loader)
            copies.add(active, self.loader)
            return copies.next_batch(active)
        try:
            return next(self._begin())
        except StopIteration:  # the program's own loader gave fewer batches, or is a stream
            if not begins_again:
                raise
            self.own, self._given = None, 0
            return next(self._begin())

    def __len__(self) -> int:
        return len(self._begin())

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "loader"):
            raise AttributeError(name)
        return getattr(self._begin(), name)

    def _active(self) -> LoaderLike | None:
        """Return the feed that this loader's batches come from; None for its own."""
        return self._feeds.active if self._feeds.feeds_training(self) else None

    def current(self) -> Any:
        """Return the iterator that gives the next batch; None if it is not made yet."""
        active = self._active()
        return self.own if active is None else self._feeds.copies_of(self.loader).iterator(active)

    def current_loader(self) -> Any:
        active = self._active()
        if active is None or self._feeds.copies_of(self.loader).iterator(active) is None:
            return self.loader
        return self._feeds.copies_of(self.loader).loader(active)

    def _end(self) -> None:
        """End the epoch: workers that still make batches of it are of no use."""
        signal_workers(self.own, signal.SIGCONT)
        if not getattr(self.own, "_persistent_workers", False):
            end_workers(self.own)

    def _shutdown_workers(self) -> None:
        end_workers(self.own)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            signal_workers(self.own, signal.SIGCONT)


def signal_workers(iterator: Any, number: int) -> None:
    """Send a signal to the workers of a loader's iterator, if it has any."""
    for worker in getattr(iterator, "_workers", ()):
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(worker.pid, number)


def end_workers(iterator: Any) -> None:
    """End the workers of a loader's iterator, if it has any, and wait for them."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None
