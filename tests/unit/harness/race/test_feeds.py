"""What feeds the program of a race: how long an epoch of training lasts, and one of evaluation."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ridgeline.harness.race.feeds import Feeds

BATCHES = 5


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(2 * BATCHES))


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Feeds:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)  # put back in the end
    installed = Feeds(torch)
    installed.install()
    installed.endless = True
    return installed


def batches(loader: DataLoader[int], feeds: Feeds, *, trains: bool, most: int) -> list[list[int]]:
    """Return the batches of an epoch, `most` at most."""
    found: list[list[int]] = []
    for batch in loader:
        found.append(batch.tolist())
        if trains:
            feeds.trained()
        if len(found) == most:
            break
    return found


DATA: Sequence[Dataset[int]] = (Numbers(), Stream())


@pytest.mark.parametrize("data", DATA)
def test_an_epoch_of_training_begins_again_where_it_would_end(
    feeds: Feeds, data: Dataset[int]
) -> None:
    found = batches(DataLoader(data, batch_size=2), feeds, trains=True, most=3 * BATCHES)
    assert found == 3 * [[2 * n, 2 * n + 1] for n in range(BATCHES)]


@pytest.mark.parametrize("data", DATA)
def test_an_evaluation_ends_of_the_data_that_are_trained_on_too(
    feeds: Feeds, data: Dataset[int]
) -> None:
    loader = DataLoader(data, batch_size=2)
    batches(loader, feeds, trains=True, most=2 * BATCHES)
    assert len(batches(loader, feeds, trains=False, most=3 * BATCHES)) == BATCHES


def test_an_epoch_fed_for_a_candidate_begins_again_too(feeds: Feeds) -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    batches(loader, feeds, trains=True, most=1)  # from here on it is known to feed the training
    feeds.use(lambda theirs: DataLoader(theirs.dataset, batch_size=2))
    assert len(batches(loader, feeds, trains=True, most=3 * BATCHES)) == 3 * BATCHES


def test_each_epoch_that_begins_again_starts_the_workers_again(feeds: Feeds) -> None:
    """What this costs is part of the program's time, and what `persistent_workers` saves."""
    before = feeds.restarts
    batches(DataLoader(Numbers(), batch_size=2), feeds, trains=True, most=3 * BATCHES)
    assert feeds.restarts - before == 3


def test_without_a_race_an_epoch_ends(feeds: Feeds) -> None:
    feeds.endless = False
    loader = DataLoader(Numbers(), batch_size=2)
    assert len(batches(loader, feeds, trains=True, most=3 * BATCHES)) == BATCHES
