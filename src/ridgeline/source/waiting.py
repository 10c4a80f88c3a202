"""The lines of a function that may be the ones at which the host was seen waiting.

A trace names the function. Which of its lines waits is judged by what stands there: a call of the
method that was seen, an `if`, a mask in brackets. The likeliest line comes first: the line that the
trace itself names or that was seen making the call, then what stands in the innermost loop, then
what is not asked only every so many steps. A line that would have been seen running, and was not,
is left out.
"""

import ast
from collections.abc import Callable, Collection
from textwrap import indent

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    last_name,
)

_NUMBERS = frozenset({
    "item", "len", "float", "int", "round", "tolist", "join", "format", "time", "perf_counter",
    "range",
})  # fmt: skip
"""Calls that return what the host has already."""
_HOST_TESTS = frozenset({"isinstance", "len", "hasattr", "callable", "is_available", "exists"})
_TENSOR_CALLS = frozenset({
    "any", "all", "isnan", "isinf", "isfinite", "equal", "allclose", "norm", "max", "min", "sum",
    "mean", "abs", "amax", "amin", "gt", "lt", "ge", "le", "eq", "ne", "argmax", "logical_and",
    "logical_or", "is_nonzero",
})  # fmt: skip
_MASKING = frozenset({
    "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "eq", "ne", "gt",
    "lt", "ge", "le", "bool", "isin",
})  # fmt: skip


class Line(Struct, frozen=True, kw_only=True):
    number: int
    text: str
    """Of the line, without indentation or comment."""
    expression: str = ""
    """What on it was looked for, as written."""
    on: str = ""
    """Of a call: what it is called on."""
    loops: int = 0
    node: ast.AST | None = None
    """What was looked for, parsed."""


def calls(sources: SourceFiles, place: Place | None, names: Collection[str]) -> tuple[Line, ...]:
    """Calls of these names."""
    return _likely(
        sources, place, lambda source, node: isinstance(node, ast.Call) and last_name(node) in names
    )


def makes_calls(sources: SourceFiles, place: Place | None, names: Collection[str]) -> bool:
    """Return whether the function around a place contains calls of these names, made in the traced
    steps or not."""
    source = sources.get(place.file) if place is not None else None
    nodes = source.walk(source.scope(place.line)) if source is not None and place else ()
    return any(isinstance(node, ast.Call) and last_name(node) in names for node in nodes)


def read_numbers(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """`.item()`, and float(), int(), bool(), round() of something that is not a literal."""

    def reads(source: SourceFile, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if last_name(node) in ("item", "__index__", "__float__", "__int__"):
            return isinstance(node.func, ast.Attribute)
        plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "round")
        return plain and bool(node.args) and not isinstance(node.args[0], ast.Constant)

    return _likely(sources, place, reads)


def branches(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """`if`, `while`, `assert` and the like, on what looks like a tensor."""

    def judged(source: SourceFile, node: ast.AST) -> bool:
        test = getattr(node, "test", None)
        held = isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp)
        return held and test is not None and _tensor_test(source, node, test)

    return _likely(sources, place, judged)


def masks(sources: SourceFiles, place: Place | None) -> tuple[Line, ...]:
    """Brackets that hold a mask: x[x > 0], x[valid]."""

    def masked(source: SourceFile, node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and _is_mask(source, node, node.slice)

    return _likely(sources, place, masked)


def printed(sources: SourceFiles, place: Place | None, name: str = "") -> tuple[Line, ...]:
    """Calls of a function (print, info) that may show a tensor; without a name, f-strings and
    `format` that may."""

    def shows(source: SourceFile, node: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr):
            parts = [v.value for v in node.values if isinstance(v, ast.FormattedValue)]
            return not name and any(_shown(source, node, part) for part in parts)
        if not isinstance(node, ast.Call) or last_name(node) != (name or "format"):
            return False
        given = [*node.args, *(k.value for k in node.keywords)]
        return any(_shown(source, node, one) for one in given)

    return _likely(sources, place, shows)


def tensor_part(source: SourceFile, node: ast.AST, test: ast.expr) -> ast.expr | None:
    """Of a test in several parts (and, or, not) the first that looks like a tensor's."""
    if isinstance(test, ast.BoolOp):
        found = [tensor_part(source, node, part) for part in test.values]
        return next((part for part in found if part is not None), None)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return None  # the part alone would be its opposite
    return test if _tensor_test(source, node, test) else None


def _likely(
    sources: SourceFiles, place: Place | None, wanted: Callable[[SourceFile, ast.AST], bool]
) -> tuple[Line, ...]:
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return ()
    nodes = [n for n in source.walk(source.scope(place.line)) if wanted(source, n)]
    found = []
    for order, node in enumerate(nodes):
        ran = source.ran(node)
        if ran is False:
            continue
        number = _line_of(node)
        loops = source.loops(node)
        near = number != place.line or bool(source.called)
        rank = (not ran, near, -loops, _now_and_then(source, node), number, order)
        found.append((rank, _told(source, node, number, loops)))
    return tuple(line for _, line in sorted(found, key=lambda pair: pair[0]))


def _told(source: SourceFile, node: ast.AST, number: int, loops: int) -> Line:
    of = getattr(node, "test", node)
    on = ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        on = ast.unparse(node.func.value)
    return Line(
        number=number,
        text=source.line(number).split("  #")[0].rstrip(),
        expression=ast.get_source_segment(source.text, of) or ast.unparse(of),
        on=on,
        loops=loops,
        node=node,
    )


def _line_of(node: ast.AST) -> int:
    """Of `.item` in a chain over several lines its own; of a branch its test's."""
    if isinstance(node, ast.Call):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 0))


def _now_and_then(source: SourceFile, node: ast.AST) -> bool:
    """Under an `if step % 100 == 0`."""
    return any(
        isinstance(above, ast.If)
        and node not in ast.walk(above.test)
        and any(isinstance(part, ast.Mod) for part in ast.walk(above.test))
        for above in source.parents(node)
    )


def _tensor_test(source: SourceFile, node: ast.AST, test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp):
        return any(_tensor_test(source, node, part) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _tensor_test(source, node, test.operand)
    if isinstance(test, ast.Constant):
        return False
    if isinstance(test, ast.Compare):
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in test.ops):
            return False
        sides = [test.left, *test.comparators]
        if any(isinstance(s, ast.Constant) and isinstance(s.value, str | None) for s in sides):
            return False
        return any(_tensor_like(source, node, side) for side in sides)
    return _tensor_like(source, node, test)


def _tensor_like(source: SourceFile, node: ast.AST, value: ast.expr) -> bool:
    """Made by a tensor's method, or a name that was."""
    parts = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
    if any(
        last_name(part) in _HOST_TESTS or last_name(part) in ("item", "float", "int")
        for part in parts
    ):
        return False
    if any(isinstance(part, ast.Mod) for part in ast.walk(value)):
        return False
    if any(last_name(part) in _TENSOR_CALLS for part in parts):
        return True
    if not isinstance(value, ast.Name):
        return bool(parts)
    given = _assigned(source, node, value.id)
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and last_name(part) not in ("item", "tolist", "time", "perf_counter", "get")
        for one in given
        for part in ast.walk(one)
    )


def _is_mask(source: SourceFile, node: ast.AST, index: ast.expr) -> bool:
    if isinstance(index, ast.Tuple):
        return any(_is_mask(source, node, part) for part in index.elts)
    if isinstance(index, ast.Compare):
        return True
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.BitAnd | ast.BitOr):
        return True
    if isinstance(index, ast.Call):
        return last_name(index) in _MASKING
    if isinstance(index, ast.Name):
        given = _assigned(source, node, index.id)
        return _mask_word(index.id) or any(_is_mask(source, node, one) for one in given)
    return isinstance(index, ast.Attribute) and _mask_word(index.attr)


def _mask_word(name: str) -> bool:
    return any(word in name.lower() for word in ("mask", "valid", "keep"))


def _assigned(source: SourceFile, node: ast.AST, name: str) -> list[ast.expr]:
    """What is assigned to a name in the function around a node."""
    around = next(
        (a for a in source.parents(node) if isinstance(a, ast.FunctionDef | ast.AsyncFunctionDef)),
        source.module,
    )
    return [
        part.value
        for part in source.walk(around)
        if isinstance(part, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == name for t in part.targets)
    ]


def _shown(source: SourceFile, node: ast.AST, value: ast.expr) -> bool:
    """Whether it may be a tensor: no literal, no text, no count, no number read before."""
    if isinstance(value, ast.JoinedStr):
        parts = [v.value for v in value.values if isinstance(v, ast.FormattedValue)]
        return any(_shown(source, node, part) for part in parts)
    if isinstance(value, ast.Call):
        return last_name(value) not in _NUMBERS
    if isinstance(value, ast.Name):
        return not _counts(source, node, value.id)
    if isinstance(value, ast.BinOp):
        return any(_shown(source, node, side) for side in (value.left, value.right))
    return isinstance(value, ast.Attribute | ast.Subscript | ast.Dict | ast.List | ast.Tuple)


def _counts(source: SourceFile, node: ast.AST, name: str) -> bool:
    """A loop's own count: `for name in range(…)`, `for name, x in enumerate(…)`."""
    for above in source.parents(node):
        if not isinstance(above, ast.For) or not isinstance(above.iter, ast.Call):
            continue
        first = above.target.elts[0] if isinstance(above.target, ast.Tuple) else above.target
        counting = last_name(above.iter) in ("range", "trange", "enumerate", "count")
        if counting and isinstance(first, ast.Name) and first.id == name:
            return True
    return False


EVERY = 100
_COUNTING = ("range", "trange", "enumerate", "count")
_PLAIN = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant


def operand(source: SourceFile, node: ast.expr) -> str:
    """As written, in brackets where something can be done to it only then."""
    text = source.written(node).strip()
    return text if isinstance(node, _PLAIN) else f"({text})"


def counter(source: SourceFile, node: ast.AST) -> str:
    """The name that counts the loops around a node, the outermost; "" where none does."""
    found = ""
    for above in source.parents(node):
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
            break
        if isinstance(above, ast.For) and isinstance(above.iter, ast.Call):
            first = above.target.elts[0] if isinstance(above.target, ast.Tuple) else above.target
            if last_name(above.iter) in _COUNTING and isinstance(first, ast.Name):
                found = first.id
    return found


def now_and_then(source: SourceFile | None, node: ast.AST | None, text: str) -> str:
    """Statements under an `if` that holds once in `EVERY` rounds; a count is made where none is."""
    name = counter(source, node) if source is not None and node is not None else ""
    if name:
        return f"if {name} % {EVERY} == 0:\n{indent(text, '    ')}"
    return (
        "asked = itertools.count()  # once, at the top of the file; import itertools\n"
        f"if next(asked) % {EVERY} == 0:\n{indent(text, '    ')}"
    )
