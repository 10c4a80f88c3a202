"""A loader whose samples need a buffer of so many MB, in so many workers: whoever makes them holds
one. The program itself has 200 MB that forked workers share. Run by test_trials_family.py.
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

workers, megabytes = int(sys.argv[1]), int(sys.argv[2])
shared = torch.ones(200 * 2**18)
buffers: list[Tensor] = []


class Samples(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, at: int) -> Tensor:
        if not buffers:
            buffers.append(torch.ones(megabytes * 2**18))
        return torch.full((16,), float(shared[at]))


model = nn.Linear(16, 16).eval()
with torch.no_grad():
    for x in DataLoader(Samples(), batch_size=4, num_workers=workers):
        model(x)
