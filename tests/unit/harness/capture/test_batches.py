"""How many samples a batch holds."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ridgeline.harness.capture.step_counts import Amount, batch_amount

NODES, EDGES, GRAPHS = 90, 400, 6
FEATURES = torch.randn(NODES, 16)
PAIRS = torch.randint(0, NODES, (2, EDGES))
WHOSE = torch.arange(NODES) // (NODES // GRAPHS)
LABELS = torch.randint(0, 3, (GRAPHS,))


class Graphs:
    """As torch-geometric makes them: one graph of all nodes."""

    def __init__(self, **told: Any) -> None:
        self.x, self.edge_index, self.batch, self.y = FEATURES, PAIRS, WHOSE, LABELS
        self.__dict__.update(told)


class Raises:
    @property
    def num_graphs(self) -> int:
        raise RuntimeError("not batched")


@pytest.mark.parametrize(
    "batch",
    [
        Graphs(num_graphs=GRAPHS),
        Graphs(batch_size=GRAPHS),
        (Graphs(batch_size=GRAPHS), LABELS),
        (FEATURES, Graphs(num_graphs=GRAPHS)),
        {"graph": Graphs(num_graphs=GRAPHS), "label": LABELS},
    ],
    ids=["num_graphs", "batch_size", "with labels", "after its features", "in a mapping"],
)
def test_a_batch_of_graphs_says_how_many_there_are(batch: Any) -> None:
    assert batch_amount(torch, batch) == Amount(GRAPHS)


def test_the_vector_of_graph_numbers_tells_the_number_of_graphs() -> None:
    assert batch_amount(torch, (FEATURES, PAIRS, WHOSE)) == Amount(GRAPHS)


def test_nodes_of_an_unknown_number_of_graphs_are_not_counted_as_samples() -> None:
    assert batch_amount(torch, (FEATURES, PAIRS)) == Amount()


@pytest.mark.parametrize("batch", [(FEATURES, LABELS), (FEATURES, PAIRS, LABELS), FEATURES[:89]])
def test_the_loaders_batch_size_counts_where_rows_are_not_samples(batch: Any) -> None:
    assert batch_amount(torch, batch, GRAPHS) == Amount(GRAPHS)


def test_a_packed_sequence_has_as_many_samples_as_sequences() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(n, 4) for n in (9, 5, 2)])
    assert batch_amount(torch, (packed, LABELS)) == Amount(3)


@pytest.mark.parametrize(
    ("batch", "expected", "found"),
    [
        ((torch.randn(5, 3), torch.zeros(5)), 8, Amount(5)),  # the last batch
        (torch.randn(64, 3), 1, Amount(64)),  # a data set of whole batches
        (torch.randn(16, 3), 8, Amount(16)),  # two views of each sample
        (torch.zeros(2, 10, dtype=torch.int64), None, Amount(2, 20)),
        ((torch.zeros(2, 10, dtype=torch.int64),) * 2, None, Amount(2, 20)),  # and their targets
        ({"input_ids": torch.zeros(4, 7, dtype=torch.int64)}, 4, Amount(4, 28)),
        (torch.randn(30), None, Amount()),
        ((torch.randn(4, 3), SimpleNamespace(batch_size=512)), None, Amount(4)),
        ((torch.randn(4, 3), Raises()), None, Amount(4)),
    ],
)
def test_rows_of_the_first_tensor_are_samples(
    batch: Any, expected: int | None, found: Amount
) -> None:
    assert batch_amount(torch, batch, expected) == found
