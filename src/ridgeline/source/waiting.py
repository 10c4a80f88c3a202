"""The lines of a function that may be the ones at which the host was seen waiting.

A trace names the function. Which of its lines waits is judged by what stands there: a call of the
method that was seen, an `if`, a mask in brackets. The likeliest line comes first: the line that the
trace itself names or that was seen making the call, then what stands in the innermost loop, then
what is not asked only every so many steps. A line that would have been seen running, and was not,
is left out.
"""

import ast
from collections.abc import Callable, Collection, Iterator
from textwrap import indent

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    Function,
    SourceFile,
    SourceFiles,
    assigns,
    call_line,
    calls_in,
    last_name,
)

EVERY = 100
"""Rounds of a loop after which a line that waits is run once, in the code that rules propose."""
_ON_HOST = frozenset({
    "item", "len", "float", "int", "round", "tolist", "join", "format", "time", "perf_counter",
    "range",
})  # fmt: skip
"""Calls that return what the host has already."""
_HOST_TESTS = frozenset({
    "isinstance", "len", "hasattr", "callable", "is_available", "exists", "item", "float", "int",
})  # fmt: skip
"""Calls whose result a test reads without waiting, or whose own line is named for its wait."""
_NOT_OF_TENSORS = frozenset({"item", "tolist", "time", "perf_counter", "get"})
"""Methods whose result is no tensor."""
_TENSOR_CALLS = frozenset({
    "any", "all", "isnan", "isinf", "isfinite", "equal", "allclose", "norm", "max", "min", "sum",
    "mean", "abs", "amax", "amin", "gt", "lt", "ge", "le", "eq", "ne", "argmax", "logical_and",
    "logical_or", "is_nonzero",
})  # fmt: skip
_MASKING = frozenset({
    "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "eq", "ne", "gt",
    "lt", "ge", "le", "bool", "isin",
})  # fmt: skip
"""Calls that return a boolean tensor."""
_COUNTING = ("range", "trange", "enumerate", "count")
_PLAIN = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant


class Line(Struct, frozen=True, kw_only=True):
    """A line that may be the one that waits."""

    number: int
    text: str
    """The line without its indentation and comment."""
    expression: str = ""
    """The call, test or mask on it, as written."""
    on: str = ""
    """What a call is called on, as written."""
    loops: int = 0
    node: ast.AST | None = None
    """The call, test or mask, parsed."""


def calls(sources: SourceFiles, place: Place | None, names: Collection[str]) -> tuple[Line, ...]:
    """Return the lines that call one of these names."""
    return _likely(sources, place, lambda _, n: isinstance(n, ast.Call) and last_name(n) in names)


def makes_calls(sources: SourceFiles, place: Place | None, names: Collection[str]) -> bool:
    """Return whether the function around a place contains calls of these names, made in the traced
    steps or not."""
    nodes = (node for _, node in sources.around(place))
    return any(isinstance(node, ast.Call) and last_name(node) in names for node in nodes)


def read_numbers(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """Return the lines with `.item()`, or with float(), int() or round() of what is no literal."""

    def reads(source: SourceFile, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if last_name(node) in ("item", "__index__", "__float__", "__int__"):
            return isinstance(node.func, ast.Attribute)
        plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "round")
        return plain and bool(node.args) and not isinstance(node.args[0], ast.Constant)

    return _likely(sources, place, reads)


def branches(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """Return the lines with `if`, `while`, `assert` and the like on what looks like a tensor."""

    def on_tensor(source: SourceFile, node: ast.AST) -> bool:
        if not isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
            return False
        return _is_tensor_test(source, node, node.test)

    return _likely(sources, place, on_tensor)


def masks(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """Return the lines with a mask in brackets: x[x > 0], x[valid]."""
    return _likely(
        sources, place, lambda file, n: isinstance(n, ast.Subscript) and _is_mask(file, n, n.slice)
    )


def printed(sources: SourceFiles, place: Place | None, name: str = "") -> tuple[Line, ...]:
    """Return the calls of a function (print, info) that may show a tensor; without a name, the
    f-strings and calls of `format` that may."""

    def shows(source: SourceFile, node: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr):
            return not name and _may_show_tensor(source, node, node)
        if not isinstance(node, ast.Call) or last_name(node) != (name or "format"):
            return False
        given = [*node.args, *(k.value for k in node.keywords)]
        return any(_may_show_tensor(source, node, one) for one in given)

    return _likely(sources, place, shows)


def tensor_part(source: SourceFile, node: ast.AST, test: ast.expr) -> ast.expr | None:
    """Return the first part of a test (`and`, `or`) that looks like a tensor's."""
    if isinstance(test, ast.BoolOp):
        parts = (tensor_part(source, node, part) for part in test.values)
        return next((part for part in parts if part is not None), None)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return None  # the part alone would be its opposite
    return test if _is_tensor_test(source, node, test) else None


def operand(source: SourceFile, node: ast.expr) -> str:
    """Return an expression as written, in brackets if it needs them before a method call."""
    text = source.written(node).strip()
    return text if isinstance(node, _PLAIN) else f"({text})"


def counter(source: SourceFile, node: ast.AST) -> str:
    """Return the name that counts the outermost loop around a node; "" if there is none."""
    return ([""] + [name for loop, name in _counted_loops(source, node) if loop])[-1]


def now_and_then(source: SourceFile | None, node: ast.AST | None, text: str) -> str:
    """Put statements under an `if` that holds once in `EVERY` rounds; a counter is made if the loop
    has none."""
    name = counter(source, node) if source is not None and node is not None else ""
    if name:
        return f"if {name} % {EVERY} == 0:\n{indent(text, '    ')}"
    return (
        "asked = itertools.count()  # once, at the top of the file; import itertools\n"
        f"if next(asked) % {EVERY} == 0:\n{indent(text, '    ')}"
    )


def _likely(
    sources: SourceFiles, place: Place | None, wanted: Callable[[SourceFile, ast.AST], bool]
) -> tuple[Line, ...]:
    """Return the lines of the nodes that `wanted` accepts, the likeliest to wait first."""
    found = []
    for order, (source, node) in enumerate(sources.around(place)):
        ran = source.ran(node) if wanted(source, node) else False
        if ran is False or place is None:
            continue
        number = call_line(node) if isinstance(node, ast.Call) else getattr(node, "lineno", 0)
        loops = source.loops(node)
        elsewhere = number != place.line or bool(source.called)
        rank = (not ran, elsewhere, -loops, _is_now_and_then(source, node), number, order)
        func = node.func if isinstance(node, ast.Call) else None
        line = Line(
            number=number,
            text=source.line(number).split("  #")[0].rstrip(),
            expression=source.segment(getattr(node, "test", node)),
            on=ast.unparse(func.value) if isinstance(func, ast.Attribute) else "",
            loops=loops,
            node=node,
        )
        found.append((rank, line))
    return tuple(line for _, line in sorted(found, key=lambda pair: pair[0]))


def _is_now_and_then(source: SourceFile, node: ast.AST) -> bool:
    """Return whether a node stands under an `if step % 100 == 0`."""
    return any(
        isinstance(above, ast.If)
        and node not in ast.walk(above.test)
        and any(isinstance(part, ast.Mod) for part in ast.walk(above.test))
        for above in source.parents(node)
    )


def _is_tensor_test(source: SourceFile, node: ast.AST, test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp):
        return any(_is_tensor_test(source, node, part) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_tensor_test(source, node, test.operand)
    if isinstance(test, ast.Constant):
        return False
    if not isinstance(test, ast.Compare):
        return _is_tensor_like(source, node, test)
    if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in test.ops):
        return False
    sides = [test.left, *test.comparators]
    if any(isinstance(s, ast.Constant) and isinstance(s.value, str | None) for s in sides):
        return False
    return any(_is_tensor_like(source, node, side) for side in sides)


def _is_tensor_like(source: SourceFile, node: ast.AST, value: ast.expr) -> bool:
    """Return whether a value is made by a tensor's method, or is a name that was."""
    parts = list(calls_in(value))
    names = {last_name(part) for part in parts}
    if names & _HOST_TESTS or any(isinstance(part, ast.Mod) for part in ast.walk(value)):
        return False
    if names & _TENSOR_CALLS or not isinstance(value, ast.Name):
        return bool(parts)
    return any(
        isinstance(call.func, ast.Attribute) and last_name(call) not in _NOT_OF_TENSORS
        for given in _assigned_values(source, node, value.id)
        for call in calls_in(given)
    )


def _is_mask(source: SourceFile, node: ast.AST, index: ast.expr) -> bool:
    match index:
        case ast.Tuple():
            return any(_is_mask(source, node, part) for part in index.elts)
        case (
            ast.Compare() | ast.UnaryOp(op=ast.Invert()) | ast.BinOp(op=ast.BitAnd() | ast.BitOr())
        ):
            return True
        case ast.Call():
            return last_name(index) in _MASKING
        case ast.Name() | ast.Attribute():
            if any(word in last_name(index).lower() for word in ("mask", "valid", "keep")):
                return True
            given = _assigned_values(source, node, index.id) if isinstance(index, ast.Name) else ()
            return any(_is_mask(source, node, one) for one in given)
    return False


def _assigned_values(source: SourceFile, node: ast.AST, name: str) -> list[ast.expr]:
    """Return what is assigned to a name in the function around a node."""
    around = source.function_of(node) or source.module
    return [
        part.value
        for part in source.walk(around)
        if isinstance(part, ast.Assign) and assigns(part, name)
    ]


def _may_show_tensor(source: SourceFile, node: ast.AST, value: ast.expr) -> bool:
    """Return whether a shown value may be a tensor: it is no literal, text or count, and no number
    that was read before."""
    match value:
        case ast.JoinedStr():
            parts = [v.value for v in value.values if isinstance(v, ast.FormattedValue)]
            return any(_may_show_tensor(source, node, part) for part in parts)
        case ast.Call():
            return last_name(value) not in _ON_HOST
        case ast.Name():
            return value.id not in [name for _, name in _counted_loops(source, node)]
        case ast.BinOp():
            return any(_may_show_tensor(source, node, s) for s in (value.left, value.right))
    return isinstance(value, ast.Attribute | ast.Subscript | ast.Dict | ast.List | ast.Tuple)


def _counted_loops(source: SourceFile, node: ast.AST) -> Iterator[tuple[bool, str]]:
    """Yield the counters of the loops around a node, the innermost first, as in `for name in
    range(…)` and `for name, x in enumerate(…)`: whether the loop is in the node's own function, and
    the name."""
    own = True
    for above in source.parents(node):
        own = own and not isinstance(above, Function)
        if isinstance(above, ast.For) and isinstance(above.iter, ast.Call):
            first = above.target.elts[0] if isinstance(above.target, ast.Tuple) else above.target
            if last_name(above.iter) in _COUNTING and isinstance(first, ast.Name):
                yield own, first.id
