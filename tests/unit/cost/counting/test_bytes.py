"""Bytes an operator must move at least: each input read once, each output written once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ridgeline.cost.counting import count
from tests.models.row import EVERYWHERE, Apply, Backend

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)


def moved(
    function: Callable[..., Any], *inputs: Tensor, backend: Backend = "fake"
) -> dict[str, int]:
    """Bytes by operator, those that move nothing left out."""
    cost = count(Apply(function), inputs, backend=backend).cost
    found: dict[str, int] = {}
    for op in cost.ops:
        found[op.op.removeprefix("aten::")] = found.get(op.op, 0) + op.totals.bytes
    return {name: size for name, size in found.items() if size}


@everywhere
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(4, 6),
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.unsqueeze(0).expand(100, -1, -1),
        lambda x: x.detach(),
        lambda x: torch.chunk(x, 2),
        lambda x: x.reshape(-1),
        lambda x: x.contiguous(),
    ],
)
def test_views_are_free(view: Callable[[Tensor], Any], backend: Backend) -> None:
    assert moved(view, torch.zeros(6, 4), backend=backend) == {}


@everywhere
def test_an_allocation_moves_nothing(backend: Backend) -> None:
    assert moved(lambda x: torch.empty_like(x), torch.zeros(6, 4), backend=backend) == {}


@everywhere
def test_a_sum_reads_two_and_writes_one(backend: Backend) -> None:
    x, y = torch.zeros(6, 4), torch.zeros(6, 4)
    assert moved(lambda a, b: a + b, x, y, backend=backend) == {"add": 3 * 96}


@everywhere
def test_broadcasting_reads_the_small_operand_once(backend: Backend) -> None:
    assert moved(lambda a, b: a + b, torch.zeros(6, 4), torch.zeros(4), backend=backend) == {
        "add": 96 + 16 + 96
    }


@everywhere
def test_an_expanded_operand_is_read_once(backend: Backend) -> None:
    found = moved(lambda a: a.expand(1000, 4) + 1, torch.zeros(1, 4), backend=backend)
    assert found == {"add": 16 + 16_000}


@everywhere
def test_one_tensor_given_twice_is_read_once(backend: Backend) -> None:
    assert moved(lambda a: a * a, torch.zeros(6, 4), backend=backend) == {"mul": 2 * 96}


@everywhere
def test_in_place_reads_and_writes_what_it_changes(backend: Backend) -> None:
    found = moved(lambda a, b: (a * 1).add_(b), torch.zeros(6), torch.zeros(6), backend=backend)
    assert found == {"mul": 48, "add_": 72}


@everywhere
def test_copying_over_a_tensor_does_not_read_it(backend: Backend) -> None:
    found = moved(lambda a: torch.empty_like(a).copy_(a), torch.zeros(6), backend=backend)
    assert found == {"copy_": 48}


@everywhere
def test_filling_only_writes(backend: Backend) -> None:
    assert moved(lambda a: torch.empty_like(a).fill_(1), torch.zeros(6), backend=backend) == {
        "fill_": 24
    }


@everywhere
def test_an_embedding_reads_its_rows_and_not_its_table(backend: Backend) -> None:
    cost = count(nn.Embedding(10**5, 8), (torch.tensor([[1, 2, 3]]),), backend=backend).cost
    rows = 3 * 8 * 4
    assert cost.phases["forward"].bytes == 3 * 8 + rows + rows


@everywhere
def test_gathering_reads_what_it_picks(backend: Backend) -> None:
    table, index = torch.zeros(1000, 8), torch.zeros(5, dtype=torch.int64)
    found = moved(lambda t, i: t.index_select(0, i), table, index, backend=backend)
    assert found == {"index_select": 40 + 2 * 5 * 8 * 4}


@everywhere
def test_a_matrix_product_reads_both_operands_once(backend: Backend) -> None:
    found = moved(lambda a, b: a @ b, torch.zeros(3, 4), torch.zeros(4, 5), backend=backend)
    assert found == {"mm": 4 * (12 + 20 + 15)}


@everywhere
def test_only_the_slice_of_a_tensor_is_read(backend: Backend) -> None:
    assert moved(lambda a: a[:2] + 1, torch.zeros(100, 4), backend=backend) == {"add": 32 + 32}


def test_half_precision_moves_half() -> None:
    full = moved(lambda a: F.relu(a), torch.zeros(64))
    half = moved(lambda a: F.relu(a), torch.zeros(64, dtype=torch.bfloat16))
    assert full == {"relu": 512}
    assert half == {"relu": 256}


def test_fused_attention_does_not_move_its_scores() -> None:
    q = torch.zeros(1, 2, 64, 16)
    cost = count(Apply(lambda x: F.scaled_dot_product_attention(x, x, x)), (q,)).cost
    # q, k, v are one tensor here; the output, and a log-sum a row for backward
    assert cost.phases["forward"].bytes <= 2 * q.nbytes + 2 * 64 * 4


@everywhere
def test_a_destination_is_written_and_not_read(backend: Backend) -> None:
    found = moved(
        lambda a, b: torch.mm(a, b, out=torch.empty(3, 5)),
        torch.zeros(3, 4),
        torch.zeros(4, 5),
        backend=backend,
    )
    assert found == {"mm": 4 * (12 + 20 + 15)}


@everywhere
def test_rows_put_into_a_table_do_not_move_the_table(backend: Backend) -> None:
    table, index, rows = torch.zeros(1000, 8), torch.arange(5), torch.zeros(5, 8)
    found = moved(lambda t, i, r: t.index_copy_(0, i, r), table, index, rows, backend=backend)
    assert found == {"index_copy_": 5 * 8 + 2 * rows.nbytes}
