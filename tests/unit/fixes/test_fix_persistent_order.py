"""The order of a loader whose workers stay, against one whose workers do not: real workers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as module

from ridgeline.fixes.catalog import persistent_workers
from ridgeline.fixes.catalog.persistent_workers import Stays


class Tuned(TensorDataset):
    strength = 0


@pytest.fixture
def made_up() -> Iterator[None]:
    kind = module._MultiProcessingDataLoaderIter
    theirs = kind._reset
    persistent_workers.make_up_draws(torch)
    yield
    kind._reset = theirs  # type: ignore[method-assign]


def three_epochs(stays: Any, workers: int, own: bool = False, changing: bool = False) -> list[Any]:
    """Samples in order, and a draw of dropout's from the same generator after each batch."""
    torch.manual_seed(7)
    data = Tuned(torch.arange(12.0))
    generator = torch.Generator().manual_seed(3) if own else None
    loader = DataLoader(
        data, 4, shuffle=True, num_workers=workers, persistent_workers=stays, generator=generator
    )
    seen: list[Any] = []
    for epoch in range(3):
        if changing:
            data.strength = epoch
        for (batch,) in loader:
            seen.append((batch.tolist(), torch.nn.functional.dropout(torch.ones(4)).tolist()))
    return seen


@pytest.mark.parametrize("own", [False, True])
def test_three_epochs_with_shuffle_and_dropout_are_those_of_the_plain_loader(
    made_up: None, own: bool
) -> None:
    plain = three_epochs(False, 0, own)
    assert three_epochs(False, 1, own) == plain
    assert three_epochs(Stays(1), 1, own) == plain
    theirs = three_epochs(True, 1, own)  # the program's own: left as it is
    assert theirs[:3] == plain[:3]
    assert theirs[3:] != plain[3:]


def test_a_dataset_changed_between_epochs_ends_the_trial(made_up: None) -> None:
    with pytest.raises(RuntimeError, match=r"dataset's strength is changed between epochs"):
        three_epochs(Stays(1), 1, changing=True)
