"""Datasets for sampled workers: one line that burns, one that sleeps, one that draws."""

import random
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


def transform(index: int) -> int:
    time.sleep(0.001)  # SLEEPS
    return sum(i * i for i in range(400_000 + index))  # BURNS


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return transform(index)


class SlowStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            yield transform(index)


class Drawn(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        drawn = [random.random(), float(np.random.rand()), index]
        return torch.cat([torch.tensor(drawn, dtype=torch.float64), torch.rand(2)])
