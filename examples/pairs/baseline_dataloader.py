"""Data loading: the process that trains also decodes every image.

A call is one epoch. Workers 0, memory not pinned: DataLoader's own defaults.
"""

from _dataloader import BATCH, SAMPLES, Compressed, Epoch
from torch.utils.data import DataLoader

GOAL = "throughput"
ITEMS = SAMPLES


def workload() -> Epoch:
    return Epoch(DataLoader(Compressed(), batch_size=BATCH))
