"""Assignments that nothing reads any more once an expression is gone: a mask, a scale."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.source.file import last_name

_PURE = {
    *("ones", "zeros", "full", "arange", "ones_like", "zeros_like", "full_like", "tril", "triu"),
    *("size", "dim", "view", "reshape", "expand", "unsqueeze", "to", "bool", "type", "float"),
    *("sqrt", "int", "tensor", "float", "logical_not", "masked_fill"),
}
"""Calls whose result is all they do."""


def dead(
    function: ast.AST,
    gone: ast.AST,
    instead: str,
    steps: Sequence[ast.stmt],
    block: Sequence[ast.stmt],
) -> list[ast.stmt]:
    """Of `block`, those that only `gone` and `steps` read. `instead`: the code in their place."""
    found: list[ast.stmt] = []
    kept = _reads(ast.parse(instead, mode="eval"))
    while True:
        away = {id(node) for one in (gone, *steps, *found) for node in ast.walk(one)}
        left = {n for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in away}
        read = {n.id for n in left if isinstance(n.ctx, ast.Load)} | kept
        lost = {name for one in (gone, *steps, *found) for name in _reads(one)}
        more = [
            one
            for one in block
            if one not in steps
            and one not in found
            and (name := _name(one)) in lost - read
            and sum(n.id == name for n in left) == 1
            and _pure(one)
            and not any(other is not one and _shares(one, other) for other in block)
        ]
        if not more:
            return found
        found += more


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _pure(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
        if isinstance(node, ast.Call) and last_name(node) not in _PURE:
            return False
    return True


def _reads(node: ast.AST) -> set[str]:
    return {n.id for n in _names(node) if isinstance(n.ctx, ast.Load)}


def _names(node: ast.AST) -> Iterator[ast.Name]:
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Name))


def _shares(one: ast.stmt, other: ast.stmt) -> bool:
    """A line."""
    first, last = one.lineno, one.end_lineno or one.lineno
    return first <= (other.end_lineno or other.lineno) and other.lineno <= last
