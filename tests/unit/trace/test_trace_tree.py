"""Sums and inherited numbers in a tree agree with climbing row by row, however deep it is."""

import numpy as np
import pytest

from ridgeline.trace.links import beneath, inherited


def trees() -> list[np.ndarray]:
    chance = np.random.default_rng(5)
    bushy = np.array([chance.integers(-1, max(row, 1)) if row else -1 for row in range(200)])
    chain = np.arange(300) - 1
    return [np.empty(0, np.int64), np.array([-1]), bushy, chain]


def above(parent: np.ndarray, row: int) -> list[int]:
    found = [row]
    while parent[found[-1]] >= 0:
        found.append(int(parent[found[-1]]))
    return found


@pytest.mark.parametrize("parent", trees(), ids=["empty", "one", "bushy", "chain"])
def test_sums_beneath_a_row_and_numbers_from_above_are_exact(parent: np.ndarray) -> None:
    own = np.arange(len(parent)) + 1
    expected = np.zeros(len(parent), np.int64)
    for row in range(len(parent)):
        expected[above(parent, row)] += own[row]
    assert np.array_equal(beneath(parent, own), expected)
    number = np.where(own % 7 == 3, own, -1)
    nearest = [
        next((int(number[r]) for r in above(parent, row) if number[r] >= 0), -1)
        for row in range(len(parent))
    ]
    assert inherited(number, parent).tolist() == nearest
