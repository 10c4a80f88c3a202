"""Whether what a line copies can be another thing in the next step: a name set before the loop, an
attribute set in `__init__`, a constant made on the spot cannot. In doubt it can."""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.waiting_lines import called

_MAKES = frozenset({
    "tensor", "as_tensor", "arange", "ones", "zeros", "full", "eye", "tril", "triu", "linspace",
    "logspace", "from_numpy", "meshgrid", "ones_like", "zeros_like",
})  # fmt: skip
"""Functions that make the same of the same."""
_SHAPES = frozenset({
    "float", "double", "half", "bfloat16", "long", "int", "bool", "view", "reshape", "unsqueeze",
    "squeeze", "expand", "clone", "repeat", "contiguous", "type", "to", "t", "transpose", "permute",
    "flatten", "detach", "sin", "cos", "exp", "log", "sqrt",
})  # fmt: skip
_DEEPEST = 4
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def copy_on_line(source: Source, line: int, names: frozenset[str]) -> ast.Call | None:
    """The first call of these names on a line."""
    found = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and called(node) in names
        and (node.func.end_lineno or node.lineno) == line
    ]
    return found[0] if found else None


def copied_by(call: ast.Call) -> ast.expr | None:
    """What a copying call copies: x of x.to(device), the data of torch.tensor(data)."""
    if called(call) in ("tensor", "as_tensor"):
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def unchanged(source: Source, call: ast.Call) -> bool:
    """Whether what a call copies is the same every time the line is reached."""
    what = copied_by(call)
    return what is not None and _same(source, call, what, 0)


def _same(source: Source, at: ast.AST, value: ast.expr, depth: int) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        return _same_name(source, at, value.id, depth)
    if isinstance(value, ast.Attribute):
        return _same_attribute(source, at, value, depth)
    if isinstance(value, ast.Call):
        if called(value) not in _MAKES | _SHAPES:
            return False
        given = [
            *value.args,
            *(k.value for k in value.keywords if k.arg not in ("device", "dtype")),
        ]
        on = value.func.value if isinstance(value.func, ast.Attribute) else None
        if on is not None and called(value) in _SHAPES:
            given = [on]
        return all(_same(source, at, one, depth + 1) for one in given)
    if isinstance(value, ast.List | ast.Tuple):
        return all(_same(source, at, one, depth + 1) for one in value.elts)
    if isinstance(value, ast.BinOp):
        return all(_same(source, at, one, depth + 1) for one in (value.left, value.right))
    if isinstance(value, ast.UnaryOp):
        return _same(source, at, value.operand, depth + 1)
    return isinstance(value, ast.Subscript) and all(
        _same(source, at, one, depth + 1) for one in (value.value, value.slice)
    )


def _same_name(source: Source, at: ast.AST, name: str, depth: int) -> bool:
    """In a loop: neither set nor filled in it. In a function without one: not an argument, and what
    it is set to is the same; or a name of the module."""
    loop, around = _loop(source, at), _around(source, at)
    if loop is not None:
        return not any(_sets(n, name) or _fills(n, name) for n in ast.walk(loop))
    if around is None or name in _arguments(around):
        return False  # reached once, or given by whoever calls
    given = [n for n in source.walk(around) if _sets(n, name) or _fills(n, name)]
    if not given:
        return any(_sets(node, name) for node in source.tree.body)
    return all(
        isinstance(n, ast.Assign)
        and len(n.targets) == 1
        and not any(part is at for part in ast.walk(n))
        and _same(source, n, n.value, depth + 1)
        for n in given
    )


def _same_attribute(source: Source, at: ast.AST, value: ast.Attribute, depth: int) -> bool:
    """self.table: set in __init__ alone. data.table: as `data` is, in a loop."""
    if not isinstance(value.value, ast.Name):
        return False
    if value.value.id != "self":
        in_loop = _loop(source, at) is not None
        return in_loop and _same_name(source, at, value.value.id, depth + 1)
    home = next((a for a in source.parents(at) if isinstance(a, ast.ClassDef)), None)
    functions = [f for f in ast.walk(home) if isinstance(f, _Function)] if home else []
    setting = {f.name for f in functions if any(_sets_own(n, value.attr) for n in ast.walk(f))}
    return bool(setting) and setting <= {"__init__", "__post_init__", "setup"}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor | ast.NamedExpr
                  | ast.comprehension):  # fmt: skip
        return [node.target]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [node.optional_vars]
    return []


def _sets(node: ast.AST, name: str) -> bool:
    """Whether it binds a name, or a part of what the name holds."""
    parts = [part for target in _targets(node) for part in ast.walk(target)]
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)


def _fills(node: ast.AST, name: str) -> bool:
    """name.copy_(…), f(out=name), or f(name) as a statement of its own."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return any(isinstance(a, ast.Name) and a.id == name for a in node.value.args)
    if not isinstance(node, ast.Call):
        return False
    on = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(on, ast.Name) and on.id == name and called(node).endswith("_"):
        return True
    outs = [k.value for k in node.keywords if k.arg == "out"]
    return any(isinstance(out, ast.Name) and out.id == name for out in outs)


def _sets_own(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == name
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
        for target in _targets(node)
        for part in ast.walk(target)
    )


def _around(source: Source, at: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((a for a in source.parents(at) if isinstance(a, _Function)), None)


def _loop(source: Source, at: ast.AST) -> ast.AST | None:
    """The innermost around it in its own function."""
    for above in source.parents(at):
        if isinstance(above, _Function):
            return None
        if isinstance(above, ast.For | ast.AsyncFor | ast.While):
            return above
    return None


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return {a.arg for a in names} | {a.arg for a in (given.vararg, given.kwarg) if a is not None}
