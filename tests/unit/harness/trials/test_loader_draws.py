import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch

from ridgeline.harness.trials.random_draws import MAX_CHECKED_BATCHES, LoaderDraws
from ridgeline.harness.trials.watched_steps import Watch


class Draws(TensorDataset):
    def __init__(self, draw: Any, after: int = 0) -> None:
        super().__init__(torch.arange(40.0))
        self._draw = draw
        self._after = after

    def __getitem__(self, at: int) -> Any:
        if at >= self._after and self._draw is not None:
            self._draw()
        return super().__getitem__(at)


@pytest.fixture
def drawing() -> Iterator[LoaderDraws]:
    kinds = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    theirs = [kind.fetch for kind in kinds]
    made = LoaderDraws(torch)
    made.install()
    yield made
    for kind, function in zip(kinds, theirs, strict=True):
        kind.fetch = function


def read(data: Any, workers: int = 0) -> None:
    for _ in DataLoader(data, 4, shuffle=True, num_workers=workers):
        torch.rand(1)  # the program's own


def uniform() -> float:
    import numpy

    return float(numpy.random.uniform())


@pytest.mark.parametrize("draw", [random.random, lambda: torch.rand(1), uniform])
def test_a_forked_worker_that_draws_says_so(drawing: LoaderDraws, draw: Any) -> None:
    read(Draws(draw), workers=1)
    assert drawing.in_workers


def test_fixed_samples_are_not_taken_for_drawn_ones(drawing: LoaderDraws) -> None:
    read(Draws(None), workers=1)
    read(Draws(random.random))  # in the program's own process
    assert not drawing.in_workers


def test_only_the_first_batches_are_looked_at(drawing: LoaderDraws) -> None:
    data = Draws(random.random, after=4 * MAX_CHECKED_BATCHES)
    for _ in DataLoader(data, 4, num_workers=1):  # in order
        pass
    assert not drawing.in_workers


@pytest.mark.parametrize("drops", [False, True])
def test_a_model_with_dropout_is_seen_to_draw_random_numbers(drops: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5 if drops else 0.0))
    watch = Watch(torch, 2)
    for _ in range(2):
        x = torch.randn(4, 3)  # which is the program's own, and not the model's
        watch.call(net, (x,), {})
        watch.changed(net)
        loss = net(x).sum()
        watch.backward(loss)
        watch.step_ended()
    assert watch.draws is drops


def test_without_a_backward_nothing_is_known_of_what_a_model_draws() -> None:
    watch, net = Watch(torch, 1), nn.Linear(3, 3)
    watch.call(net, (torch.randn(4, 3),), {})
    watch.step_ended()
    assert watch.draws is None
