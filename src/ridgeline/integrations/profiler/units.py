"""The course's units, and the values it exports. "MB" in its names is 1024 × 1024 bytes."""

from math import prod

import numpy as np

BYTES_PER_FLOAT32 = 4
KB_TO_BYTES = 1024
MB_TO_BYTES = 1024 * 1024

rng = np.random.default_rng(7)

Shape = tuple[int, ...]


def as_mb(size_bytes: float) -> float:
    return size_bytes / MB_TO_BYTES


def one_sample(shape: Shape, sample_dims: int) -> Shape:
    """The shape of one sample, its batch dimension kept as 1: dimension 0 is the batch where the
    input has more dimensions than a sample needs."""
    return (1, *shape[1:]) if len(shape) > sample_dims else shape


def batch_of(shape: Shape, sample_dims: int) -> int:
    return prod(shape[:1]) if len(shape) > sample_dims else 1
