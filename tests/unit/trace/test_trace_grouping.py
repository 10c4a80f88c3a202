"""Rows by equal values, against np.unique."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.trace.grouping import grouped

rows = st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 3_000_000)), max_size=30)


@given(rows)
def test_combinations_come_in_order_with_each_rows_place(found: list[tuple[int, int]]) -> None:
    one, other = (np.array([r[i] for r in found], np.int32) for i in (0, 1))
    (first, second), place = grouped(one, other)
    distinct = list(zip(first.tolist(), second.tolist(), strict=True))
    assert distinct == sorted(set(found))
    assert [distinct[i] for i in place] == found


def test_no_rows_make_no_groups() -> None:
    (first,), place = grouped(np.empty(0, np.int32))
    assert len(first) == len(place) == 0
