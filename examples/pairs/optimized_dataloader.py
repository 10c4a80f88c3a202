"""Worker processes decode ahead; they stay alive, and batches are pinned where there is a GPU.

The four settings belong together: prefetching and persistence need workers, and pinned memory lets
the copy overlap. Starting the workers costs the first call some tenths of a second. On two cores
the workers take turns with the consumer, and passing batches between processes is not free: SAME
or SLOWER is a fair result there.
"""

import os

from _dataloader import BATCH, SAMPLES, Compressed, Epoch
from _device import DEVICE
from torch.utils.data import DataLoader

GOAL = "throughput"
ITEMS = SAMPLES


def workload() -> Epoch:
    loader = DataLoader(
        Compressed(),
        batch_size=BATCH,
        num_workers=min(4, os.cpu_count() or 1),  # the source's 4, where there are 4 cores
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=DEVICE == "cuda",
    )
    return Epoch(loader)
