"""Where formulas are kept: operator name to a function from Call to Work.

    @formula("mylib::fused_mlp")
    def fused_mlp(call: Call) -> Work:
        x, weight = call.tensor(0), call.tensor(1)
        return Work(macs=x.numel * weight.shape[0])

An in-place twin (`add_`) shares its operator's formula, a `_foreach_` list operator sums its
operator's formula over the list. An operator without a formula is never guessed: `work_of`
returns None, and whoever sums must say so.
"""

from collections.abc import Callable
from typing import Any

from ridgeline.cost.formulas.call import Call, Tensor, Work

Formula = Callable[[Call], Work]

_FORMULAS: dict[str, Formula] = {}


def formula(*operators: str) -> Callable[[Formula], Formula]:
    """Register a function as the cost of these operators ("namespace::name", no overload)."""

    def register(function: Formula) -> Formula:
        for operator in operators:
            if "::" not in operator or "." in operator:
                raise ValueError(
                    f"{operator!r}: write an operator as namespace::name, without its overload"
                )
            _FORMULAS[operator] = function
        return function

    return register


def find(operator: str) -> Formula | None:
    """The formula of an operator, of the one it is the in-place twin of, or of its elements."""
    if operator in _FORMULAS:
        return _FORMULAS[operator]
    if operator.endswith("_") and not operator.endswith("__"):
        return find(operator[:-1])
    namespace, _, name = operator.partition("::")
    if name.startswith("_foreach_"):
        element = find(f"{namespace}::{name.removeprefix('_foreach_')}")
        return None if element is None else _over_lists(element)
    return None


def work_of(call: Call) -> Work | None:
    """What a call computes, or None where no formula knows."""
    function = find(call.op)
    return None if function is None else function(call)


def known_operators() -> tuple[str, ...]:
    return tuple(sorted(_FORMULAS))


def _over_lists(element: Formula) -> Formula:
    def each(call: Call) -> Work:
        lists = [a for a in call.args if isinstance(a, list | tuple) and _holds_tensors(a)]
        length = len(lists[0]) if lists else 0
        total = 0
        for i in range(length):
            args: tuple[Any, ...] = tuple(
                a[i] if isinstance(a, list | tuple) and len(a) == length else a for a in call.args
            )
            first = next(a for a in args if isinstance(a, Tensor))
            total += element(
                Call(op=call.op, args=args, names=call.names, outputs=(first,))
            ).other_flops
        return Work(other_flops=total)

    return each


def _holds_tensors(values: list[Any] | tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], Tensor)
