"""Copies to the device in the user's source: whether what a line copies can differ in the next
step, and the same copies made a batch ahead on a stream of their own.

A name set before the loop, an attribute set in `__init__` and a constant made on the spot stay the
same. In doubt, a value may change.
"""

import ast

from ridgeline.source.file import (
    Function,
    SourceFile,
    last_name,
)
from ridgeline.source.waiting import Line

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


def copy_on_line(source: SourceFile, line: int, names: frozenset[str]) -> ast.Call | None:
    """The first call of these names on a line."""
    found = [
        node
        for node in ast.walk(source.module)
        if isinstance(node, ast.Call)
        and last_name(node) in names
        and (node.func.end_lineno or node.lineno) == line
    ]
    return found[0] if found else None


def copied_by(call: ast.Call) -> ast.expr | None:
    """What a copying call copies: x of x.to(device), the data of torch.tensor(data)."""
    if last_name(call) in ("tensor", "as_tensor"):
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def unchanged(source: SourceFile, call: ast.Call) -> bool:
    """Whether what a call copies is the same every time the line is reached."""
    what = copied_by(call)
    return what is not None and _same(source, call, what, 0)


def _same(source: SourceFile, at: ast.AST, value: ast.expr, depth: int) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        return _same_name(source, at, value.id, depth)
    if isinstance(value, ast.Attribute):
        return _same_attribute(source, at, value, depth)
    if isinstance(value, ast.Call):
        if last_name(value) not in _MAKES | _SHAPES:
            return False
        given = [
            *value.args,
            *(k.value for k in value.keywords if k.arg not in ("device", "dtype")),
        ]
        on = value.func.value if isinstance(value.func, ast.Attribute) else None
        if on is not None and last_name(value) in _SHAPES:
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


def _same_name(source: SourceFile, at: ast.AST, name: str, depth: int) -> bool:
    """In a loop: neither set nor filled in it. In a function without one: not an argument, and what
    it is set to is the same; or a name of the module."""
    loop, around = _loop(source, at), _around(source, at)
    if loop is not None:
        return not any(_sets(n, name) or _fills(n, name) for n in ast.walk(loop))
    if around is None or name in _arguments(around):
        return False  # reached once, or given by whoever calls
    given = [n for n in source.walk(around) if _sets(n, name) or _fills(n, name)]
    if not given:
        return any(_sets(node, name) for node in source.module.body)
    return all(
        isinstance(n, ast.Assign)
        and len(n.targets) == 1
        and not any(part is at for part in ast.walk(n))
        and _same(source, n, n.value, depth + 1)
        for n in given
    )


def _same_attribute(source: SourceFile, at: ast.AST, value: ast.Attribute, depth: int) -> bool:
    """self.table: set in __init__ alone. data.table: as `data` is, in a loop."""
    if not isinstance(value.value, ast.Name):
        return False
    if value.value.id != "self":
        in_loop = _loop(source, at) is not None
        return in_loop and _same_name(source, at, value.value.id, depth + 1)
    home = next((a for a in source.parents(at) if isinstance(a, ast.ClassDef)), None)
    functions = [f for f in ast.walk(home) if isinstance(f, Function)] if home else []
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
    if isinstance(on, ast.Name) and on.id == name and last_name(node).endswith("_"):
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


def _around(source: SourceFile, at: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((a for a in source.parents(at) if isinstance(a, Function)), None)


def _loop(source: SourceFile, at: ast.AST) -> ast.AST | None:
    """The innermost around it in its own function."""
    for above in source.parents(at):
        if isinstance(above, Function):
            return None
        if isinstance(above, ast.For | ast.AsyncFor | ast.While):
            return above
    return None


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return {a.arg for a in names} | {a.arg for a in (given.vararg, given.kwarg) if a is not None}


AHEAD = """\
def ahead(batches):  # each a list of tensors in pinned memory
    beside, ready = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(beside):
            following = [part.to(device, non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(beside)
        for part in following:
            part.record_stream(torch.cuda.current_stream())
        ready = following
    if ready is not None:
        yield ready
"""
_COUNTED = """\
beside = torch.cuda.Stream()

def sent({count}):
    with torch.cuda.stream(beside):
        return {call}

following = sent({first})
for {count} in {over}:
    torch.cuda.current_stream().wait_stream(beside)
    {into} = following
    {into}.record_stream(torch.cuda.current_stream())
    following = sent({count} + 1) if {count} + 1 < {end} else None
    ...  # the rest of the step"""


def sent_ahead(source: SourceFile | None, line: Line | None, call: str) -> str:
    """`call`: the copy as it should be asked for. A loop over `range` sends the next round's; one
    over batches goes over `ahead(batches)`."""
    node = line.node if line is not None else None
    if source is None or node is None:
        return f"{AHEAD}\nfor inputs, targets in ahead(loader):\n    ...  # the step"
    loop = next((a for a in source.parents(node) if isinstance(a, ast.For)), None)
    if loop is None:
        return f"{AHEAD}\nfor inputs, targets in ahead(loader):\n    ...  # the step"
    return _counted(source, node, loop, call) or _over_batches(source, node, loop)


def _counted(source: SourceFile, node: ast.AST, loop: ast.For, call: str) -> str:
    statement = source.statement_of(node)
    over = loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(statement, ast.Assign):
        return ""
    if statement.value is not node or not isinstance(statement.targets[0], ast.Name):
        return ""
    if not isinstance(over, ast.Call) or last_name(over) != "range" or len(over.args) not in (1, 2):
        return ""
    count, into = loop.target.id, statement.targets[0].id
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if count not in used or used & (_set_in(loop) - {count}):
        return ""
    first = source.written(over.args[0]) if len(over.args) == 2 else "0"
    end = source.written(over.args[-1])
    return _COUNTED.format(
        count=count, call=call, first=first, over=source.written(over), into=into, end=end
    )


def _over_batches(source: SourceFile, node: ast.AST, loop: ast.For) -> str:
    """`for images, labels in loader`, or the same in an `enumerate`."""
    wrapped = isinstance(loop.iter, ast.Call) and last_name(loop.iter) in ("enumerate", "tqdm")
    over = loop.iter.args[0] if wrapped and loop.iter.args else loop.iter  # type: ignore[attr-defined]
    inner = source.written(over)
    around = source.written(loop.iter)
    batches = around.replace(inner, f"ahead({inner})", 1) if wrapped else f"ahead({inner})"
    gone = source.written(node)
    return (
        f"{AHEAD}\nfor {source.written(loop.target)} in {batches}:\n"
        f"    ...  # the step, without {gone}"
    )


def _set_in(loop: ast.For) -> set[str]:
    return {
        n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
