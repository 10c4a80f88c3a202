"""Batches that real workers have made and nobody has taken."""

import gc
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ridgeline.harness.trials.loader_queue import QueueWatch, ready_batches


def loader(batches: int = 20, **given: Any) -> Any:
    told = {"num_workers": 2, "prefetch_factor": 3, **given}
    return DataLoader(TensorDataset(torch.arange(4.0 * batches)), batch_size=4, **told)


def settled(iterator: Any, wanted: int) -> int | None:
    ends = time.monotonic() + 20
    while ready_batches(iterator) != wanted and time.monotonic() < ends:
        time.sleep(0.02)
    return ready_batches(iterator)


@pytest.mark.parametrize("in_order", [True, False])
def test_as_many_lie_ready_as_the_workers_were_asked_for(in_order: bool) -> None:
    iterator = iter(loader(in_order=in_order))
    next(iterator)
    assert settled(iterator, 6) == 6
    next(iterator)
    assert settled(iterator, 6) == 6


def test_no_queue_length_is_noted_at_the_end_of_an_epoch() -> None:
    iterator = iter(loader(batches=8))
    told = []
    for _ in range(8):
        next(iterator)
        told.append(ready_batches(iterator) is not None)
    assert told == [True, True] + [False] * 6


def test_each_epoch_stands_by_itself() -> None:
    ahead, one = QueueWatch(), loader(persistent_workers=True)
    step = 0
    for _ in range(2):
        iterator = iter(one)
        for _ in iterator:
            ahead.batch_taken(iterator, step)
            step += 1
    assert {noted.epoch for noted in ahead.noted} == {1, 2}
    assert len(ahead.noted) == 2 * (20 - 6)


def test_a_loader_without_workers_has_no_queue() -> None:
    ahead = QueueWatch()
    iterator = iter(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2))
    next(iterator)
    ahead.batch_taken(iterator, 0)
    assert ahead.noted == ()


def test_workers_end_with_their_iterator() -> None:
    ahead, iterator = QueueWatch(), iter(loader())
    next(iterator)
    ahead.batch_taken(iterator, 0)
    workers = iterator._workers
    del iterator
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)
