"""Products with sparse tensors cost what they store, counted on a real run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ridgeline.cost.counting import count
from ridgeline.errors import DataDependentError

STORED = 5
WIDTH = 3


def sparse(layout: torch.layout) -> Tensor:
    """6 x 8 with an element in each row but the last."""
    values, columns = torch.ones(STORED), torch.tensor([0, 3, 3, 7, 1])
    if layout is torch.sparse_csr:
        ends = torch.tensor([0, 1, 2, 3, 4, 5, 5])
        return torch.sparse_csr_tensor(ends, columns, values, (6, 8))
    places = torch.stack([torch.arange(STORED), columns])
    return torch.sparse_coo_tensor(places, values, (6, 8), is_coalesced=True)


class Holds(nn.Module):
    """A product with a sparse matrix that the model keeps."""

    def __init__(self, layout: torch.layout, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("matrix", sparse(layout))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.matrix, x)


layouts = pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
products = pytest.mark.parametrize(
    "product",
    [
        lambda m, x: torch.sparse.mm(m, x),
        lambda m, x: m @ x,
        lambda m, x: torch.addmm(torch.zeros(6, WIDTH), m, x),
    ],
    ids=["sparse.mm", "matmul", "addmm"],
)


@layouts
@products
def test_a_sparse_matrix_counts_the_elements_it_stores(
    layout: torch.layout, product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    cost = count(Holds(layout, product), (torch.ones(8, WIDTH),)).cost
    assert cost.backend == "real"
    assert cost.phases["forward"].macs == STORED * WIDTH
    assert any(note.startswith("counted on a real run: ") for note in cost.notes)


@layouts
def test_dense_times_sparse_counts_them_too(layout: torch.layout) -> None:
    model = Holds(layout, lambda m, x: x @ m)
    assert count(model, (torch.ones(WIDTH, 6),)).cost.phases["forward"].macs == STORED * WIDTH


def test_a_dense_matrix_of_zeros_counts_in_full() -> None:
    model = Holds(torch.sparse_coo, lambda m, x: m.to_dense() @ x)
    assert count(model, (torch.ones(8, WIDTH),)).cost.phases["forward"].macs == 6 * 8 * WIDTH


@layouts
def test_memory_holds_values_and_indices(layout: torch.layout) -> None:
    """COO: two int64 an element; CSR: one, and a pointer a row and one more."""
    indices = 2 * STORED if layout is torch.sparse_coo else STORED + 6 + 1
    found = count(Holds(layout, lambda m, x: m @ x), (torch.ones(8, WIDTH),)).memory
    assert found.buffers_bytes == 4 * STORED + 8 * indices


@pytest.mark.parametrize("backend", ["fake", "meta"])
def test_without_data_there_is_nothing_to_count(backend: str) -> None:
    model = Holds(torch.sparse_csr, lambda m, x: m @ x)
    with pytest.raises(DataDependentError, match="sparse"):
        count(model, (torch.ones(8, WIDTH),), backend=backend)  # type: ignore[arg-type]


@layouts
def test_the_matrix_is_unchanged_after_counting(layout: torch.layout) -> None:
    model = Holds(layout, lambda m, x: m @ x)
    count(model, (torch.ones(8, WIDTH),))
    assert torch.equal(model.matrix.to_dense(), sparse(layout).to_dense())


@layouts
def test_a_sparse_parameter_counts_like_a_buffer(layout: torch.layout) -> None:
    model = Holds(layout, lambda m, x: torch.sparse.mm(m, x))
    model.matrix = None
    model.weight = nn.Parameter(sparse(layout), requires_grad=False)
    model.forward = lambda x: model.product(model.weight, x)  # type: ignore[method-assign]
    cost = count(model, (torch.ones(8, WIDTH),)).cost
    assert cost.phases["forward"].macs == STORED * WIDTH


def test_a_sparse_gradient_holds_the_rows_that_were_looked_up() -> None:
    """Six rows of eight floats, and an index for each."""
    table = nn.Embedding(100, 8, sparse=True)
    found = count(table, (torch.arange(6),), training=True)
    assert found.cost.backend == "real"
    assert found.memory.gradients_bytes == 6 * 8 * 4 + 6 * 8
