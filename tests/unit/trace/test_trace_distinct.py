"""Distinct rows of several columns, against sets of tuples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.trace import links as module
from ridgeline.trace.links import distinct

rows = st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 3_000_000)), max_size=30)


@given(rows)
def test_combinations_come_in_order_with_each_rows_number(found: list[tuple[int, int]]) -> None:
    one, other = (np.array([r[i] for r in found], np.int32) for i in (0, 1))
    matrix, number = distinct(one, other)
    listed = [tuple(row) for row in matrix.tolist()]
    assert listed == sorted(set(found))
    assert [listed[i] for i in number] == found


def test_a_table_and_a_sort_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0)
    columns = [noise.integers(-1, 40, 500) for _ in range(3)]
    by_table = distinct(*columns)
    monkeypatch.setattr(module, "MAX_MARKED_KEYS", -2000)
    by_sort = distinct(*columns)
    assert all(np.array_equal(a, b) for a, b in zip(by_table, by_sort, strict=True))


def test_no_rows_make_no_groups() -> None:
    matrix, number = distinct(np.empty(0, np.int32))
    assert matrix.shape == (0, 1)
    assert len(number) == 0
