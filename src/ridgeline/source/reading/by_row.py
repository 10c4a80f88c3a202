"""Whether a loop's body means the same with whole tensors in the place of rows."""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.turns import path

_ROWWISE = frozenset({
    "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "hardtanh", "exp",
    "log", "log1p", "expm1", "sin", "cos", "sqrt", "rsqrt", "square", "abs", "neg", "erf", "sign",
    "reciprocal", "mul", "add", "sub", "div", "clamp", "float", "half", "bfloat16", "to", "detach",
    "clone", "contiguous", "dropout", "append",
})  # fmt: skip
_LAYERS = frozenset({
    "Linear", "LayerNorm", "RMSNorm", "Embedding", "Identity", "Dropout", "ReLU", "GELU", "SiLU",
    "Tanh", "Sigmoid", "Softplus", "ELU", "LeakyReLU",
})  # fmt: skip
"""What they do to a row, they do to each row of a tensor with a dimension more."""


def by_row(source: Source, target: ast.expr | None, body: list[ast.AST]) -> bool:
    """Only operators and layers that treat each row alone; nothing compared, masked or decided."""
    if not isinstance(target, ast.Name):
        return False
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Compare | ast.If | ast.IfExp | ast.While | ast.For | ast.MatMult):
            return False
        if isinstance(node, ast.Call) and not _rowwise(source, node):
            return False
    return True


def picked(target: ast.expr, body: list[ast.AST]) -> dict[str, str] | None:
    """{"x[i]": "x"}, of a loop variable used as an index alone and for nothing else; else None."""
    found: dict[str, str] = {}
    uses = taken = 0
    for node in (n for part in body for n in ast.walk(part)):
        uses += _is(node, target)
        if not isinstance(node, ast.Subscript):
            continue
        index = node.slice
        many = index.elts if isinstance(index, ast.Tuple) else [index]
        if any(_is(one, target) for one in many):
            rest = [one for one in many if not _is(one, target)]
            if not all(ast.unparse(one) in (":", "...") for one in rest):
                return None
            taken += 1
            if isinstance(node.ctx, ast.Load):
                found[ast.unparse(node)] = ast.unparse(node.value)
    return found if found and uses == taken else None


def for_all_rows(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """Return the code without the loop, `res = f(x)`, for a loop over `range(n)` that only collects
    `f(x[i])`. Return "" if the loop's body does more, or does not go through whole rows."""
    rows = picked(target, body)
    single = isinstance(over, ast.Call) and path(over.func) == "range" and len(over.args) == 1
    if not rows or not isinstance(over, ast.Call) or not single or len(body) != 1:
        return ""
    into, value = "", body[0]
    if isinstance(value, ast.Expr) and isinstance(value.value, ast.Call):
        call = value.value
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
            return ""
        into, value = f"{ast.unparse(call.func.value)} = ", call.args[0]
    if not isinstance(value, ast.expr):
        return ""
    text, count = ast.unparse(value), ast.unparse(over.args[0])
    whole = {f"{length}" for all_ in rows.values()
             for length in (f"{all_}.size(0)", f"{all_}.shape[0]", f"len({all_})")}  # fmt: skip
    for row, all_ in rows.items():
        text = text.replace(row, all_ if count in whole else f"{all_}[:{count}]")
    return into + text


def lines_with(target: ast.expr, body: list[ast.AST]) -> tuple[int, ...]:
    """That name the loop's variable."""
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    nodes = [n for part in body for n in ast.walk(part)]
    return tuple(sorted({n.lineno for n in nodes if isinstance(n, ast.Name) and n.id in names}))


def _is(node: ast.AST, target: ast.expr) -> bool:
    return isinstance(node, ast.Name) and isinstance(target, ast.Name) and node.id == target.id


def _rowwise(source: Source, call: ast.Call) -> bool:
    name = path(call.func)
    if name.rpartition(".")[2] in _ROWWISE or (
        isinstance(call.func, ast.Attribute) and call.func.attr in _ROWWISE
    ):
        return True
    made = [n.value for n in ast.walk(source.tree) if isinstance(n, ast.Assign)
            and any(path(t) == name for t in n.targets)]  # fmt: skip
    return bool(made) and all(
        isinstance(one, ast.Call) and path(one.func).rpartition(".")[2] in _LAYERS for one in made
    )
