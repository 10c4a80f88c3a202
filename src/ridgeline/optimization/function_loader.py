"""Batches for a trial: a copy of the user's loader, perhaps with other settings, begun again when
it is used up. The user's own loader is never iterated, so its workers and its place are its own."""

import copy
from collections.abc import Iterator
from typing import Any

from ridgeline.errors import UsageError

SETTINGS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "worker_init_fn",
    "collate_fn", "timeout", "drop_last", "generator",
)  # fmt: skip
"""Arguments of a DataLoader that it keeps under their own names."""
_AHEAD = 2
"""Batches a worker makes ahead where nothing is said: set by the constructor, not by a copy."""


def arguments(torch: Any, loader: Any) -> dict[str, Any]:
    """What it was made with, as far as that decides anything."""
    found = {name: getattr(loader, name, None) for name in SETTINGS}
    found["multiprocessing_context"] = getattr(loader, "multiprocessing_context", None)
    found["dataset"], found["batch_size"] = loader.dataset, loader.batch_size
    data = torch.utils.data
    if type(loader.sampler) not in (data.RandomSampler, data.SequentialSampler):
        found["sampler"] = loader.sampler
    if loader.batch_size is None:
        found["batch_sampler"] = loader.batch_sampler
    return found


def with_settings(loader: Any, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """A copy with those settings that are not as they were."""
    other = copy.copy(loader)
    held = other.__dict__  # the attributes themselves refuse to be set
    held["_iterator"] = None
    for name, value in after.items():
        if value is not before.get(name):
            if name not in (*SETTINGS, "batch_size"):
                raise ValueError(f"{name} of a loader that is made already")
            held[name] = value
    if after.get("batch_size") != before.get("batch_size"):
        batches = type(loader.batch_sampler)
        held["batch_sampler"] = batches(loader.sampler, after["batch_size"], loader.drop_last)
    if not held["num_workers"]:
        held["prefetch_factor"], held["persistent_workers"] = None, False
    elif held["prefetch_factor"] is None:
        held["prefetch_factor"] = _AHEAD
    return other


class Batches:
    """Without end. `close` ends the workers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise UsageError("the loader has no batches", "give one with at least one batch")

    def close(self) -> None:
        for one in (self._iterator, getattr(self._loader, "_iterator", None)):
            end = getattr(one, "_shutdown_workers", None)
            if end is not None:
                end()
        self._iterator = None
