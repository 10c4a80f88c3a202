"""Interval algebra against counting unit by unit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.trace.intervals import (
    Spans,
    clip,
    covered,
    gaps,
    innermost,
    intersect,
    merge,
    parents,
    subtract,
    union,
)

Pairs = list[tuple[int, int]]
pairs = st.lists(
    st.tuples(st.integers(-20, 40), st.integers(0, 15)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def spans(found: Pairs) -> Spans:
    return union(
        np.array([a for a, _ in found], np.int64), np.array([b for _, b in found], np.int64)
    )


def units(found: Pairs | Spans) -> set[int]:
    listed = found if isinstance(found, list) else zip(found.start, found.end, strict=True)
    return {t for a, b in listed for t in range(int(a), int(b))}


def is_proper(found: Spans) -> bool:
    return bool((found.end > found.start).all() and (found.start[1:] > found.end[:-1]).all())


@given(pairs)
def test_a_union_covers_what_any_covers_and_is_disjoint(one: Pairs) -> None:
    found = spans(one)
    assert units(found) == units(one)
    assert is_proper(found)
    assert found.total == len(units(one))


@given(pairs, pairs)
def test_sets_of_time_behave_as_sets(one: Pairs, other: Pairs) -> None:
    a, b = spans(one), spans(other)
    assert units(intersect(a, b)) == units(one) & units(other)
    assert units(subtract(a, b)) == units(one) - units(other)
    assert units(merge(a, b)) == units(one) | units(other)


@given(pairs, st.integers(-25, 30), st.integers(0, 40))
def test_gaps_are_what_a_window_has_left(one: Pairs, low: int, length: int) -> None:
    high = low + length
    assert units(gaps(spans(one), low, high)) == set(range(low, high)) - units(one)
    assert units(clip(spans(one), low, high)) == set(range(low, high)) & units(one)


@given(pairs, pairs)
def test_covered_counts_each_interval_on_its_own(one: Pairs, asked: Pairs) -> None:
    found = covered(
        spans(one),
        np.array([a for a, _ in asked], np.int64),
        np.array([b for _, b in asked], np.int64),
    )
    assert found.tolist() == [len(units(one) & set(range(a, b))) for a, b in asked]


def nested(draw: st.DrawFn, low: int, high: int, depth: int) -> Pairs:
    found: Pairs = []
    at = low
    while at < high and depth and draw(st.booleans()):
        start = draw(st.integers(at, high))
        end = draw(st.integers(start, high))
        found.append((start, end))
        if end - start > 1:
            found += nested(draw, start, end, depth - 1)
        at = end
    return found


@st.composite
def calls(draw: st.DrawFn) -> Pairs:
    found = nested(draw, 0, draw(st.integers(0, 40)), 4)
    return sorted(found, key=lambda p: (p[0], p[0] - p[1]))


def slow_parent(found: Pairs, row: int) -> int:
    start = found[row][0]
    open_ = [i for i in range(row) if found[i][0] <= start < found[i][1]]
    return max(open_, default=-1)


@given(calls())
def test_each_call_lies_in_the_last_one_still_open(found: Pairs) -> None:
    start, end = (np.array([p[i] for p in found], np.int64) for i in (0, 1))
    assert parents(start, end).tolist() == [slow_parent(found, i) for i in range(len(found))]


@given(calls(), st.lists(st.integers(-2, 45), max_size=8))
def test_the_innermost_call_around_a_moment(found: Pairs, moments: list[int]) -> None:
    start, end = (np.array([p[i] for p in found], np.int64) for i in (0, 1))
    wanted = [max((i for i, (a, b) in enumerate(found) if a <= t < b), default=-1) for t in moments]
    assert innermost(start, end, np.array(moments, np.int64)).tolist() == wanted
