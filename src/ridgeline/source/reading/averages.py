"""Updates of one tensor after the other, written as one call for all: with the program's names."""

import ast

from msgspec import Struct

from ridgeline.source.reading.turns import path

_SAME = ("data", "detach", "float")


class _Update(Struct, frozen=True):
    slow: ast.expr
    """What is updated."""
    fast: ast.expr
    """What it is updated with."""
    keeps: str = ""
    """Of its own value: 0.99; "" for all of it."""
    takes: str = ""
    """Of the other: 0.01; "" for all of it."""
    copies: bool = False
    """Nothing of its own is left."""


def all_at_once(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """ "" where the body is not such an update alone."""
    statements = [s for s in body if not isinstance(s, ast.Pass)]
    update = _update(statements[0], _names(target)) if len(statements) == 1 else None
    if update is None:
        return ""
    slow = _every(update.slow, over, target)
    fast = _every(update.fast, over, target)
    if update.copies:
        return f"torch._foreach_copy_({slow}, {fast})"
    if not update.keeps:
        alpha = f", alpha={update.takes}" if update.takes else ""
        return f"torch._foreach_add_({slow}, {fast}{alpha})"
    if _adds_up(update.keeps, update.takes):
        # counts of batches are among a state's tensors, which lerp does not take
        whole = "  # integer buffers left out" if "state_dict()" in fast else ""
        return f"torch._foreach_lerp_({slow}, {fast}, {update.takes}){whole}"
    alpha = f", alpha={update.takes}" if update.takes else ""
    return (
        f"slow = {slow}\ntorch._foreach_mul_(slow, {update.keeps})\n"
        f"torch._foreach_add_(slow, {fast}{alpha})"
    )


def _update(statement: ast.AST, own: set[str]) -> _Update | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _in_place(statement.value, own)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        into = statement.targets[0]
        return _sum(into, statement.value, own) if isinstance(into, ast.Subscript) else None
    return None


def _in_place(call: ast.Call, own: set[str]) -> _Update | None:
    """slow.mul_(a).add_(fast, alpha=b), slow.lerp_(fast, b), slow.copy_(a * slow + b * fast)."""
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    slow, name, first = call.func.value, call.func.attr, call.args[0]
    if name == "lerp_":
        weight = [*call.args[1:], *(k.value for k in call.keywords)]
        if len(weight) != 1 or _names(weight[0]) & own:
            return None
        takes = ast.unparse(weight[0])
        return _Update(slow, first, keeps=f"1 - {takes}", takes=takes)
    if name == "copy_" and isinstance(first, ast.BinOp):
        return _sum(slow, first, own)
    if name == "copy_":
        return _Update(slow, first, copies=True)
    if name != "add_":
        return None
    alpha = next((k.value for k in call.keywords if k.arg == "alpha"), None)
    factor, fast = (alpha, first) if alpha is not None else _scaled(first, own)
    keeps = ""
    if isinstance(slow, ast.Call) and isinstance(slow.func, ast.Attribute):
        if slow.func.attr != "mul_" or len(slow.args) != 1 or _names(slow.args[0]) & own:
            return None
        keeps, slow = ast.unparse(slow.args[0]), slow.func.value
    return _Update(slow, fast, keeps=keeps, takes=ast.unparse(factor) if factor else "")


def _sum(into: ast.expr, value: ast.expr, own: set[str]) -> _Update | None:
    """into = a * into + b * fast."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    parts = [_scaled(side, own) for side in (value.left, value.right)]
    same = [_bare(part) == _bare(into) for _, part in parts]
    if same.count(True) != 1:
        return None
    (keeps, _), (takes, fast) = parts if same[0] else parts[::-1]
    return _Update(
        into,
        fast,
        keeps=ast.unparse(keeps) if keeps is not None else "",
        takes=ast.unparse(takes) if takes is not None else "",
    )


def _scaled(node: ast.expr, own: set[str]) -> tuple[ast.expr | None, ast.expr]:
    """The factor, which is the same in each turn, and the tensor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor, tensor in ((node.left, node.right), (node.right, node.left)):
            if not _names(factor) & own:
                return factor, tensor
    return None, node


def _bare(node: ast.expr) -> str:
    """Without .data and .detach(), which are the same numbers."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            inner: ast.expr = node.func
        else:
            inner = node
        if not isinstance(inner, ast.Attribute) or inner.attr not in _SAME:
            return ast.unparse(node)
        node = inner.value


def _adds_up(keeps: str, takes: str) -> bool:
    try:
        return abs(float(keeps) + float(takes) - 1) < 1e-9
    except ValueError:
        plain = {text.strip("()").replace(" ", "") for text in (keeps, takes)}
        return any(f"1-{one}" in plain or f"1.0-{one}" in plain for one in plain)


def _every(each: ast.expr, over: ast.expr, target: ast.expr) -> str:
    """The list of all: what a zip goes through, a dictionary's values, else a comprehension."""
    names = [path(t) for t in target.elts] if isinstance(target, ast.Tuple) else [path(target)]
    name = _bare(each)
    called = path(over.func).rpartition(".")[2] if isinstance(over, ast.Call) else ""
    if isinstance(over, ast.Call) and called == "zip" and name in names:
        given = ast.unparse(over.args[names.index(name)])
        return f"list({given})" if not isinstance(over.args[names.index(name)], ast.Name) else given
    head = ast.unparse(over)
    if names[1:] == [name] and head.endswith(".items()"):
        return f"list({head.removesuffix('items()')}values())"
    if names[1:] == [name] and head.endswith("named_parameters()"):
        return f"list({head.removesuffix('named_parameters()')}parameters())"
    used = ast.unparse(each)
    first = isinstance(target, ast.Tuple) and head.endswith(".items()") and name not in names
    if first and names[1] not in _names(each):
        return f"[{used} for {names[0]} in {head.removesuffix('.items()')}]"
    return f"[{used} for {ast.unparse(target).strip('()')} in {head}]"


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
