"""Copies to the device in the user's source: whether what a line copies can differ in the next
step, and the same copies made a batch ahead on a stream of their own.

A name set before the loop, an attribute set in `__init__` and a constant made on the spot stay the
same. In doubt, a value may change.
"""

import ast

from ridgeline.source.file import (
    Function,
    SourceFile,
    call_line,
    keyword_value,
    last_name,
    names_in,
    parameters,
)
from ridgeline.source.waiting import Line

_MAKES = frozenset({
    "tensor", "as_tensor", "arange", "ones", "zeros", "full", "eye", "tril", "triu", "linspace",
    "logspace", "from_numpy", "meshgrid", "ones_like", "zeros_like",
})  # fmt: skip
"""Functions that make the same tensor of the same arguments."""
_SHAPES = frozenset({
    "float", "double", "half", "bfloat16", "long", "int", "bool", "view", "reshape", "unsqueeze",
    "squeeze", "expand", "clone", "repeat", "contiguous", "type", "to", "t", "transpose", "permute",
    "flatten", "detach", "sin", "cos", "exp", "log", "sqrt",
})  # fmt: skip
"""Methods that make the same tensor of the same tensor."""
_MAX_FOLLOWED_NAMES = 4
"""Assignments and calls that a value is followed back through."""
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


def copy_on_line(source: SourceFile, line: int, names: frozenset[str]) -> ast.Call | None:
    """Return the first call of these names on a line."""
    calls = (c for c in source.calls if last_name(c) in names and call_line(c) == line)
    return next(calls, None)


def unchanged(source: SourceFile, call: ast.Call) -> bool:
    """Return whether what a call copies is the same every time the line is reached: x of
    x.to(device), the data of torch.tensor(data)."""
    copied = call.func.value if isinstance(call.func, ast.Attribute) else None
    if last_name(call) in ("tensor", "as_tensor"):
        copied = call.args[0] if call.args else None
    return copied is not None and _is_same(source, call, copied, 0)


def _is_same(source: SourceFile, at: ast.AST, value: ast.expr, depth: int) -> bool:
    if depth > _MAX_FOLLOWED_NAMES:
        return False
    parts: list[ast.expr]
    match value:
        case ast.Constant():
            return True
        case ast.Name():
            return _is_same_name(source, at, value.id, depth)
        case ast.Attribute():
            return _is_same_attribute(source, at, value, depth)
        case ast.Call(func=ast.Attribute(value=on)) if last_name(value) in _SHAPES:
            parts = [on]
        case ast.Call() if last_name(value) in _MAKES | _SHAPES:
            placing = ("device", "dtype")
            parts = [*value.args, *(k.value for k in value.keywords if k.arg not in placing)]
        case ast.List() | ast.Tuple():
            parts = value.elts
        case ast.BinOp():
            parts = [value.left, value.right]
        case ast.UnaryOp():
            parts = [value.operand]
        case ast.Subscript():
            parts = [value.value, value.slice]
        case _:
            return False
    return all(_is_same(source, at, part, depth + 1) for part in parts)


def _is_same_name(source: SourceFile, at: ast.AST, name: str, depth: int) -> bool:
    """In a loop, a name that is neither set nor filled there stays the same. In a function without
    a loop, a name of the module does, and a name that is set to what stays the same; a parameter
    may not."""
    loop, around = source.loop_of(at), source.function_of(at)
    if loop is not None:
        return not any(_sets(n, name) or _fills(n, name) for n in ast.walk(loop))
    if around is None or name in _all_parameters(around):
        return False  # reached once, or given by whoever calls
    given = [n for n in source.walk(around) if _sets(n, name) or _fills(n, name)]
    if not given:
        return any(_sets(node, name) for node in source.module.body)
    return all(
        isinstance(n, ast.Assign)
        and len(n.targets) == 1
        and not any(part is at for part in ast.walk(n))
        and _is_same(source, n, n.value, depth + 1)
        for n in given
    )


def _is_same_attribute(source: SourceFile, at: ast.AST, value: ast.Attribute, depth: int) -> bool:
    """self.table stays the same if only __init__ sets it; data.table as `data` does, in a loop."""
    if not isinstance(value.value, ast.Name):
        return False
    if value.value.id != "self":
        in_loop = source.loop_of(at) is not None
        return in_loop and _is_same_name(source, at, value.value.id, depth + 1)
    home = source.class_of(at)
    functions = [f for f in ast.walk(home) if isinstance(f, Function)] if home else []
    setting = {f.name for f in functions if any(_sets_own(n, value.attr) for n in ast.walk(f))}
    return bool(setting) and setting <= {"__init__", "__post_init__", "setup"}


def _all_parameters(function: Function) -> set[str]:
    starred = (function.args.vararg, function.args.kwarg)
    return {*parameters(function), *(one.arg for one in starred if one is not None)}


def _bound(node: ast.AST) -> list[ast.AST]:
    """Return every node of what a statement, loop or `with` binds."""
    targets: list[ast.expr | None] = []
    if isinstance(node, ast.Assign):
        targets = [*node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor | ast.NamedExpr
                    | ast.comprehension):  # fmt: skip
        targets = [node.target]
    elif isinstance(node, ast.withitem):
        targets = [node.optional_vars]
    return [part for target in targets if target is not None for part in ast.walk(target)]


def _sets(node: ast.AST, name: str) -> bool:
    """Return whether a node binds a name, or a part of what the name holds."""
    return any(isinstance(part, ast.Name) and part.id == name for part in _bound(node))


def _sets_own(node: ast.AST, name: str) -> bool:
    """Return whether a node binds an attribute of `self`."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == name
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
        for part in _bound(node)
    )


def _fills(node: ast.AST, name: str) -> bool:
    """Return whether a node may fill a tensor: name.copy_(…), f(out=name), or f(name) as a
    statement of its own."""
    filled: list[ast.expr | None] = []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        filled = [*node.value.args]
    elif isinstance(node, ast.Call):
        in_place = isinstance(node.func, ast.Attribute) and last_name(node).endswith("_")
        filled = [keyword_value(node, "out")]
        filled += [node.func.value] if in_place else []  # type: ignore[attr-defined]
    return any(isinstance(one, ast.Name) and one.id == name for one in filled)


def sent_ahead(source: SourceFile | None, line: Line | None, call: str) -> str:
    """Return a loop that sends the next batch while this one is worked on. `call` is the copy as it
    should be written. A loop over `range` sends the data of the next round; a loop over batches
    goes over `ahead(batches)`."""
    node = line.node if line is not None else None
    parents = source.parents(node) if source is not None and node is not None else ()
    loop = next((parent for parent in parents if isinstance(parent, ast.For)), None)
    if source is None or node is None or loop is None:
        return f"{AHEAD}\nfor inputs, targets in ahead(loader):\n    ...  # the step"
    counted = _counted(source, node, loop, call)
    if counted:
        return counted
    over = source.written(loop.iter)
    batches = f"ahead({over})"
    if isinstance(loop.iter, ast.Call) and last_name(loop.iter) in ("enumerate", "tqdm"):
        inner = source.written(loop.iter.args[0] if loop.iter.args else loop.iter)
        batches = over.replace(inner, f"ahead({inner})", 1)
    return (
        f"{AHEAD}\nfor {source.written(loop.target)} in {batches}:\n"
        f"    ...  # the step, without {source.written(node)}"
    )


def _counted(source: SourceFile, node: ast.AST, loop: ast.For, call: str) -> str:
    statement, over = source.statement_of(node), loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(statement, ast.Assign):
        return ""
    if statement.value is not node or not isinstance(statement.targets[0], ast.Name):
        return ""
    if not isinstance(over, ast.Call) or last_name(over) != "range" or len(over.args) not in (1, 2):
        return ""
    count, into, used = loop.target.id, statement.targets[0].id, names_in(node)
    stored = {n.id for n in ast.walk(loop)
              if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    if count not in used or used & (stored - {count}):
        return ""
    first = source.written(over.args[0]) if len(over.args) == 2 else "0"
    return _COUNTED.format(
        count=count, call=call, first=first, over=source.written(over), into=into,
        end=source.written(over.args[-1]),
    )  # fmt: skip
