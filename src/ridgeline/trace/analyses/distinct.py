"""Distinct rows of several columns of codes. numpy's own (axis=1) compares rows as bytes: shares by
category of 555,000 device operations took 1.73 s with it and 0.09 s with codes packed in a number."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def distinct(*columns: NDArray[np.integer]) -> tuple[Rows, Rows]:
    """The distinct rows (one a row of the matrix), in order, and each row's number among them."""
    key = np.zeros(len(columns[0]), np.int64)
    width = 1
    for column in columns:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        if width * span >= 2**62:  # numbers the rows so far: there are no more than rows
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            width = len(key) + 1
        key = key * span + (column.astype(np.int64) - low)
        width *= span
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([c[first].astype(np.int64) for c in columns], axis=1), number
