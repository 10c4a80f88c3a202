"""Where formulas are kept: added by name, shared with in-place and list twins, never guessed."""

from collections.abc import Iterator

import pytest

from ridgeline.cost.formulas import (
    Call,
    Tensor,
    Work,
    call,
    find,
    formula,
    known_operators,
    work_of,
)

X = Tensor((4, 5))


@pytest.fixture
def _own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(call, "_FORMULAS", dict(call._FORMULAS))
    return


@pytest.mark.usefixtures("_own")
def test_a_decorated_function_is_the_cost_of_its_operators() -> None:
    @formula("mylib::fused", "mylib::fused_too")
    def fused(call: Call) -> Work:
        return Work(macs=call.tensor(0).numel)

    assert find("mylib::fused") is fused
    assert work_of(Call("mylib::fused_too", (X,))) == Work(macs=20)
    assert "mylib::fused" in known_operators()


@pytest.mark.usefixtures("_own")
def test_a_later_formula_replaces_an_earlier_one() -> None:
    formula("aten::mm")(lambda call: Work(macs=1))
    assert work_of(Call("aten::mm", (X, X))) == Work(macs=1)


@pytest.mark.parametrize("name", ["mm", "aten.mm", "aten::mm.default", ""])
def test_a_name_that_is_not_an_operator_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="namespace::name"):
        formula(name)(lambda call: Work())


def test_an_unknown_operator_is_never_guessed() -> None:
    assert find("mylib::nobody_knows") is None
    assert work_of(Call("mylib::nobody_knows", (X,))) is None
    assert find("aten::_foreach_nobody_knows") is None
    assert find("aten::nobody_knows_") is None


def test_an_in_place_twin_costs_the_same() -> None:
    assert find("aten::mul_") is find("aten::mul")
    assert find("aten::__ilshift__") is not None  # a name that only looks in-place


def test_a_list_operator_is_the_sum_over_its_list() -> None:
    lists = [Tensor((3,)), Tensor((5,))], [Tensor((3,)), Tensor((5,))]
    assert work_of(Call("aten::_foreach_add", lists)) == Work(other_flops=8)
    assert work_of(Call("aten::_foreach_addcdiv_", (*lists, lists[0], [1.0, 2.0]))) == Work(
        other_flops=3 * 8
    )
    assert work_of(Call("aten::_foreach_add_", ([], []))) == Work()


def test_a_list_operator_with_a_scalar() -> None:
    assert work_of(Call("aten::_foreach_mul_", ([Tensor((3,)), Tensor((5,))], 0.9))) == Work(
        other_flops=8
    )


def test_known_operators_are_sorted_and_many() -> None:
    known = known_operators()
    assert list(known) == sorted(known)
    assert len(known) > 500
