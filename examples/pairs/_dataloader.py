"""The images, the transform and the consumer that both sides of the data loading pair share."""

import zlib

import numpy as np
import torch
from _device import DEVICE
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

# On a GPU the epoch has to outlast the start of an iteration over workers (some milliseconds).
SAMPLES, BATCH, SIDE = (512, 32, 128) if DEVICE == "cuda" else (48, 8, 64)


class Compressed(Dataset[Tensor]):
    """Images kept as compressed bytes; a sample is decoded, cropped and normalised when asked for.

    No augmentation is drawn at random: which numbers a worker draws depends on how many workers
    there are, and then the two sides could not be held to the same answer.
    """

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.files = [zlib.compress(self._image(random)) for _ in range(SAMPLES)]

    @staticmethod
    def _image(random: np.random.Generator) -> bytes:
        """Coarse noise made larger, so that there is something to compress."""
        coarse = random.integers(0, 256, (SIDE // 2, SIDE // 2, 3), dtype=np.uint8)
        return coarse.repeat(4, axis=0).repeat(4, axis=1).tobytes()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        side = 2 * SIDE
        image = np.frombuffer(zlib.decompress(self.files[index]), np.uint8).reshape(side, side, 3)
        # Half the size by averaging, then mean 0 and deviation 1 a channel, as a transform would.
        small = image.reshape(SIDE, 2, SIDE, 2, 3).astype(np.float32).mean(axis=(1, 3))
        small = (small - small.mean(axis=(0, 1))) / small.std(axis=(0, 1))
        return torch.from_numpy(np.ascontiguousarray(small.transpose(2, 0, 1)))


class Epoch:
    """One pass over the data: each batch goes to the device and through a convolution.

    Holds the only reference to its loader: with the last reference to this, the loader's workers
    are told to end.
    """

    def __init__(self, loader: DataLoader[Tensor]) -> None:
        self.loader = loader
        self.filters = torch.randn(8, 3, 7, 7, generator=torch.Generator().manual_seed(0))
        self.filters = self.filters.to(DEVICE)

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Every image as it reached the device, and what the consumer made of it."""
        images, features = [], []
        with torch.no_grad():
            for batch in self.loader:
                arrived = batch.to(DEVICE, non_blocking=True)
                images.append(arrived)
                features.append(torch.nn.functional.conv2d(arrived, self.filters, stride=4))
            return torch.cat(images), torch.cat(features)
