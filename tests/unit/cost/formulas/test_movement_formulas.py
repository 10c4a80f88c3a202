"""Moving data costs no arithmetic; picking reads what it picks, not the table."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of

T = Tensor
TABLE, INDEX = T((10_000, 8)), T((5,), "int64")
ROWS = T((5, 8))


@pytest.mark.parametrize(
    "op", ["clone", "copy_", "cat", "view", "zeros", "_to_copy", "detach", "fill_", "expand"]
)
def test_moving_is_no_work(op: str) -> None:
    assert work_of(Call(f"aten::{op}", (T((4, 5)),))) == Work()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("embedding", (TABLE, INDEX)),
        ("index_select", (TABLE, 0, INDEX)),
        ("index", (TABLE, [INDEX])),
    ],
)
def test_a_gather_reads_its_rows_and_not_the_table(op: str, args: tuple[object, ...]) -> None:
    work = work_of(Call(f"aten::{op}", args, (), (ROWS,)))
    assert work == Work(read_bytes=5 * 8 + 5 * 8 * 4)


def test_a_scatter_reads_what_it_writes() -> None:
    work = work_of(Call("aten::index_copy_", (TABLE, 0, INDEX, ROWS), (), (TABLE,)))
    assert work is not None
    assert work.read_bytes == INDEX.nbytes + ROWS.nbytes
    assert work.written_bytes == ROWS.nbytes
    whole = work_of(Call("aten::index_copy", (TABLE, 0, INDEX, ROWS), (), (TABLE,)))
    assert whole is not None
    assert whole.written_bytes is None  # a new table: all of it


def test_adding_rows_is_an_addition_for_each_element_added() -> None:
    work = work_of(Call("aten::index_add_", (TABLE, 0, INDEX, ROWS)))
    assert work is not None
    assert work.other_flops == 40
    assert work.read_bytes == INDEX.nbytes + 2 * ROWS.nbytes
    backward = Call("aten::embedding_dense_backward", (ROWS, INDEX, 10_000, -1, False))
    assert work_of(backward) == Work(other_flops=40)


def test_a_bag_sums_a_row_for_each_index() -> None:
    work = work_of(Call("aten::_embedding_bag", (TABLE, INDEX, T((2,), "int64"))))
    assert work == Work(other_flops=40, read_bytes=5 * 8 * 4 + 40)


def test_a_fused_optimizer_passes_over_its_parameters() -> None:
    parameters = [T((10,)), T((3, 4))]
    assert work_of(Call("aten::_fused_adamw_", (parameters,))) == Work(other_flops=22 * 12)
    assert work_of(Call("aten::_fused_sgd_", (parameters,))) == Work(other_flops=22 * 4)


@pytest.mark.parametrize(
    "op", ["_c10d_functional::all_reduce", "_c10d_functional::wait_tensor", "c10d::allreduce_"]
)
def test_collectives_compute_nothing_here(op: str) -> None:
    assert find(op) is not None
    assert work_of(Call(op, (T((4,)),))) == Work()
