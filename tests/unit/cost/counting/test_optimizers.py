"""What optimizers keep and what their step costs, tensor by tensor."""

from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.cost.counting.parameters import NAMES, OPTIMIZERS, OptimizerAccount, check_name
from ridgeline.errors import UsageError

SHAPES = ((64, 64), (100,), (3, 5, 7))
ELEMENTS = 4096 + 100 + 105


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def state_bytes(name: str, foreach: bool = False) -> int:
    return OptimizerAccount(name, parameters(), foreach).state_bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", 0),
        ("momentum", 4 * ELEMENTS),
        ("adam", 8 * ELEMENTS + 3 * 4),
        ("adamw", 8 * ELEMENTS + 3 * 4),
        ("rmsprop", 4 * ELEMENTS + 3 * 4),
        ("adagrad", 4 * ELEMENTS + 3 * 4),
        # a step each; rows and columns of the last two dimensions; the vector whole
        ("adafactor", 4 * (3 + (64 + 64) + 100 + 3 * (5 + 7))),
        # 4096 values and a scale for each 256 of them, twice; the small ones in float32, twice
        ("adam8bit", 2 * (4096 + 16 * 4) + 2 * 4 * 205),
        ("adamw8bit", 2 * (4096 + 16 * 4) + 2 * 4 * 205),
        ("momentum8bit", (4096 + 16 * 4) + 4 * 205),
    ],
)
@pytest.mark.parametrize("foreach", [True, False])
def test_state_by_hand(name: str, expected: int, foreach: bool) -> None:
    assert state_bytes(name, foreach) == expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_what_the_real_optimizer_holds_after_a_step(name: str) -> None:
    real = parameters()
    for p in real:
        p.grad = torch.ones_like(p)
    optimizer = OPTIMIZERS[name](real)
    optimizer.step()
    values: list[Any] = [v for state in optimizer.state.values() for v in state.values()]
    held = sum(v.numel() * v.itemsize for v in values if isinstance(v, torch.Tensor))
    assert state_bytes(name) == held


def test_state_follows_the_parameters_dtype() -> None:
    half = OptimizerAccount("momentum", parameters(torch.bfloat16), False)
    assert half.state_bytes == 2 * ELEMENTS


def test_sgd_in_place_needs_no_room_and_one_multiply_add_each() -> None:
    account = OptimizerAccount("sgd", parameters(), False)
    assert account.temporary_bytes == 0
    assert account.mode is not None
    moved = sum(t.bytes for t in account.mode.tallies.values())
    assert moved == 3 * 4 * ELEMENTS  # parameter read and written, gradient read


def test_a_list_step_holds_temporaries_for_all_tensors_at_once() -> None:
    eight = [nn.Parameter(torch.zeros(1000)) for _ in range(8)]
    # one by one: a root, its quotient, and the quotient of the tensor before; in lists: all roots
    assert OptimizerAccount("adam", eight, False).temporary_bytes == 3 * 4000
    assert OptimizerAccount("adam", eight, True).temporary_bytes >= 8 * 4000


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_operator_of_a_step_has_a_formula(name: str, foreach: bool) -> None:
    mode = OptimizerAccount(name, parameters(), foreach).mode
    assert mode is not None
    assert [site.op for site in mode.tallies if not site.formulated] == []
    assert {site.phase for site in mode.tallies} == {"optimizer"}
    assert sum(t.all_flops for t in mode.tallies.values()) >= ELEMENTS


def test_a_step_is_worth_the_same_in_lists_as_one_by_one() -> None:
    def work(foreach: bool) -> int:
        mode = OptimizerAccount("momentum", parameters(), foreach).mode
        assert mode is not None
        return sum(t.all_flops for t in mode.tallies.values())

    assert work(True) == work(False)


def test_eight_bit_optimizers_say_that_they_are_estimated() -> None:
    account = OptimizerAccount("adam8bit", parameters(), False)
    assert account.estimated
    assert account.mode is None
    assert not OptimizerAccount("adam", parameters(), False).estimated


def test_nothing_to_train_is_no_error() -> None:
    assert OptimizerAccount("adam", [], False).state_bytes == 0


def test_the_users_parameters_are_left_alone() -> None:
    mine = parameters()
    OptimizerAccount("adamw", mine, False)
    assert all(p.grad is None and bool((p == 0).all()) for p in mine)


def test_names_are_checked_and_case_does_not_matter() -> None:
    assert check_name("AdamW") == "adamw"
    with pytest.raises(UsageError, match="'lion'") as caught:
        check_name("lion")
    assert all(name in caught.value.hint for name in NAMES)
