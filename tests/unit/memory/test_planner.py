"""The sets of blocks to checkpoint, held against every set there is."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.memory.planner import (
    Block,
    Graph,
    Shared,
    best_checkpoints,
    checkpoints_of_chain,
    checkpoints_of_graph,
    has_solver,
    micro_batch_counts,
)

blocks = st.builds(
    Block,
    inside_bytes=st.integers(0, 60),
    time=st.integers(1, 9).map(float),
    gradient_bytes=st.integers(0, 8),
    fixed=st.booleans(),
)


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    parts = draw(st.lists(blocks, min_size=1, max_size=7))
    borders = []
    for index in range(len(parts)):
        keeps = frozenset([index]) if draw(st.booleans()) else frozenset[int]()
        borders.append(Shared(draw(st.integers(1, 20)), frozenset([index]), keeps))
    return Graph(tuple(parts), tuple(borders), fixed_bytes=10)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    parts = draw(st.lists(blocks, min_size=2, max_size=6))
    some = st.frozensets(st.integers(0, len(parts) - 1), max_size=3)
    tensors = draw(st.lists(st.builds(Shared, st.integers(1, 30), some, some), max_size=5))
    return Graph(tuple(parts), tuple(tensors), fixed_bytes=10)


def best_of_all(graph: Graph, budget: int) -> float | None:
    free = [i for i, block in enumerate(graph.blocks) if not block.fixed]
    times = [
        graph.time(frozenset(chosen))
        for size in range(len(free) + 1)
        for chosen in itertools.combinations(free, size)
        if graph.peak_bytes(frozenset(chosen)) <= budget
    ]
    return min(times, default=None)


def check(graph: Graph, chosen: frozenset[int] | None, budget: int) -> None:
    best = best_of_all(graph, budget)
    if best is None:
        assert chosen is None
        return
    assert chosen is not None
    assert graph.peak_bytes(chosen) <= budget
    assert graph.time(chosen) == pytest.approx(best)
    assert not any(graph.blocks[i].fixed for i in chosen)


@given(chains(), st.integers(0, 300))
def test_the_set_for_a_chain_is_the_fastest_that_fits(graph: Graph, budget: int) -> None:
    assert graph.is_chain
    check(graph, checkpoints_of_chain(graph, budget), budget)


@pytest.mark.skipif(not has_solver(), reason="needs scipy")
@settings(deadline=None, max_examples=60)
@given(graphs(), st.integers(0, 300))
def test_the_set_for_a_graph_is_the_fastest_that_fits(graph: Graph, budget: int) -> None:
    check(graph, checkpoints_of_graph(graph, budget), budget)


@given(graphs(), st.integers(0, 300))
def test_a_graph_taken_for_a_chain_never_exceeds_the_budget(graph: Graph, budget: int) -> None:
    chosen = checkpoints_of_chain(graph, budget)
    if chosen is not None:
        assert graph.peak_bytes(chosen) <= budget


def test_a_hundred_different_blocks_take_no_time() -> None:
    parts = tuple(Block(10**8 + 7919 * i**2, 1 + (i * 31 % 17) / 10) for i in range(100))
    borders = tuple(Shared(10**6, frozenset([i]), frozenset([i])) for i in range(100))
    graph = Graph(parts, borders, 10**9)
    budget = 10**9 + graph.held_bytes(frozenset()) // 2
    chosen = best_checkpoints(graph, budget)
    assert chosen is not None
    assert graph.peak_bytes(chosen) <= budget
    assert 40 < len(chosen) < 70


def test_micro_batches_end_at_one_sample() -> None:
    assert micro_batch_counts(12, 5) == [1, 2, 4, 8, 12]
    assert micro_batch_counts(1, 5) == [1]
    assert micro_batch_counts(1000, 4) == [1, 2, 4, 1000]
