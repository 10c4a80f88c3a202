"""Gradients that a program clips by itself: which parameters, and to what norm."""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.turns import path

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)
_ORDER = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def parameters_of(source: Source, line: int) -> str:
    """What a function at a line goes through for its gradients, as written: `params`, of for p in
    params: p.grad; "" where it does not say."""
    for node in source.walk(source.scope(line)):
        if isinstance(node, ast.For):
            target, over, body = node.target, node.iter, list[ast.AST](node.body)
        elif isinstance(node, _COMPREHENSIONS):
            first = node.generators[0]
            target, over, body = first.target, first.iter, [node.elt, *first.ifs]
        else:
            continue
        names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        read = {path(n) for part in body for n in ast.walk(part)}
        if any(f"{name}.grad" in read for name in names):
            return _plain(over)
    return ""


def _plain(over: ast.expr) -> str:
    """Without what hands out a number or a name with each parameter."""
    if (
        isinstance(over, ast.Call)
        and path(over.func) in ("enumerate", "list", "tqdm")
        and over.args
    ):
        return _plain(over.args[0])
    return ast.unparse(over).replace("named_parameters()", "parameters()")


def limit_of(source: Source, line: int, norming: ast.AST | None) -> str:
    """The number or name the norm is compared with, or is divided into: limit, of limit / norm."""
    scope = source.scope(line)
    norms = _made_from(source, scope, norming)
    found: list[tuple[int, int, str]] = []
    for node in source.walk(scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            pairs, weight = [(node.left, node.right)], 0
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDER):
            sides = (node.left, node.comparators[0])
            pairs, weight = [sides, sides[::-1]], 1
        else:
            continue
        for limit, norm in pairs:
            if _is_plain(limit) and not _names(limit) & norms and _names(norm) & norms:
                found.append((weight, node.lineno, ast.unparse(limit)))
    return min(found)[2] if found else ""


def clamped_to(body: list[ast.AST]) -> str:
    """5.0, of gradient.clamp_(-5.0, 5.0)."""
    for call in (n for part in body for n in ast.walk(part) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("clamp_", "clip_", "clamp"):
            most = [k.value for k in call.keywords if k.arg == "max"] or call.args[-1:]
            return ast.unparse(most[0]) if most else ""
    return ""


def _made_from(source: Source, scope: ast.AST, norming: ast.AST | None) -> set[str]:
    """Names the loop over gradients leaves, and those made from them."""
    names: set[str] = set()
    for node in ast.walk(norming) if norming is not None else ():
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {path(target) for target in targets}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names |= {path(node.func.value)} if node.func.attr == "append" else set()
    names -= {""}
    for node in source.walk(scope):
        if isinstance(node, ast.Assign):
            inside = norming is not None and any(n is norming for n in ast.walk(node.value))
            if inside or _names(node.value) & names:
                names |= {path(target) for target in node.targets} - {""}
    return names


def _names(node: ast.AST) -> set[str]:
    return {path(n) for n in ast.walk(node)} - {""}


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value > 0
    return bool(path(node))
