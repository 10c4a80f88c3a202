"""Every row of the matrix, on every backend it can run on, against arithmetic done by hand."""

import pytest
import torch
from torch import nn

from ridgeline.cost.counting import count
from tests.models import further, matrix, vision
from tests.models.row import Apply, Backend, Row, linear

CASES = [
    pytest.param(row, backend, id=f"{row.name}-{backend}")
    for row in matrix.ROWS + further.ROWS
    for backend in row.backends
]


@pytest.mark.parametrize(("row", "backend"), CASES)
def test_work_is_exactly_what_the_dimensions_say(row: Row, backend: Backend) -> None:
    if row.needs:
        pytest.importorskip(row.needs)
    model, args = row.build()
    cost = count(model, args, backend=backend).cost
    forward = cost.phases["forward"]
    assert cost.backend == backend
    assert (forward.macs, forward.flops) == (row.truth_macs, row.truth_flops)
    assert forward.all_flops >= forward.flops
    assert cost.unformulated == ()
    assert cost.coverage_percent == 100


def test_the_matrix_has_its_27_rows_and_no_name_twice() -> None:
    names = [row.name for row in matrix.ROWS + further.ROWS]
    assert len(matrix.ROWS) == 27
    assert len(set(names)) == len(names)


def test_hand_totals_of_resnets_are_the_published_ones() -> None:
    assert vision.resnet18_macs(1, 224) == 1_814_073_344
    assert vision.resnet50_macs(1, 224) == 4_089_184_256


def test_an_operator_without_formula_is_named_and_lowers_the_coverage() -> None:
    def halves(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x @ weight)

    model = Apply(halves, torch.randn(24, 24))
    cost = count(model, (torch.randn(24, 24),), backend="real").cost
    assert [entry.op for entry in cost.unformulated] == ["aten::_linalg_svd"]
    assert cost.unformulated[0].calls == 1
    assert cost.unformulated[0].bytes > 0
    assert 0 < cost.coverage_percent < 100
    assert cost.phases["forward"].macs == linear(24, 24, 24), "what is known still counts"


def test_an_outer_product_is_multiplies_and_no_macs() -> None:
    cost = count(Apply(torch.outer, torch.randn(30)), (torch.randn(20),), backend="real").cost
    assert cost.phases["forward"].macs == 0
    assert cost.phases["forward"].all_flops == 20 * 30


@pytest.mark.parametrize("backend", ["real", "fake", "meta"])
def test_a_linear_reads_its_operands_once_and_writes_its_result_once(backend: Backend) -> None:
    cost = count(nn.Linear(24, 40), (torch.randn(5, 24),), backend=backend).cost
    assert cost.phases["forward"].bytes == 4 * (5 * 24 + 24 * 40 + 40 + 5 * 40)


def test_the_masked_half_of_causal_attention_is_counted_and_named() -> None:
    rows = {row.name: row for row in further.ROWS}
    causal = count(*rows["SDPA, causal"].build(), backend="real").cost.phases["forward"]
    full = count(*rows["SDPA, mask"].build(), backend="real").cost.phases["forward"]
    # 2 products of 16 wide, 2 FLOPs a MAC, for each of the 20·19/2 pairs above the diagonal.
    assert causal.skipped_flops == (2 * 3) * (20 * 19 // 2) * 16 * 2 * 2
    assert full.skipped_flops == 0


def test_work_is_filed_under_the_module_that_did_it() -> None:
    rows = {row.name: row for row in further.ROWS}
    cost = count(*rows["nested Sequential"].build(), backend="real").cost
    macs = {m.path: m.phases["forward"].macs for m in cost.modules if "forward" in m.phases}
    assert macs[""] == 5 * (24 * 40 + 40 * 12 + 12 * 6)
    assert macs["0"] == 5 * (24 * 40 + 40 * 12)
    assert macs["0.0"] == 5 * 24 * 40
    assert macs["0.1.1"] == 5 * 40 * 12
    assert macs["2"] == 5 * 12 * 6


def test_a_layer_called_four_times_works_four_times_and_is_owned_once() -> None:
    rows = {row.name: row for row in matrix.ROWS}
    account = count(*rows["one Linear called 4×"].build(), backend="real")
    layer = next(m for m in account.cost.modules if m.path == "layer")
    assert layer.calls == 4
    assert layer.phases["forward"].macs == 4 * linear(5, 256, 256)
    assert layer.parameters == account.parameters.total == 256 * 256 + 256


def test_a_tied_matrix_is_one_set_of_parameters() -> None:
    rows = {row.name: row for row in matrix.ROWS}
    parameters = count(*rows["embedding + tied head"].build(), backend="real").parameters
    assert parameters.total == 997 * 256
    assert parameters.tied == 997 * 256
