"""Statements around what was found in a source, and how to have one done only now and then."""

import ast
from textwrap import dedent, indent

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.waiting_lines import called

EVERY = 100
_COUNTING = ("range", "trange", "enumerate", "count")
_PLAIN = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant


def statement_of(source: Source, node: ast.AST) -> ast.stmt | None:
    """The innermost one around a node, or the node itself."""
    return next((n for n in (node, *source.parents(node)) if isinstance(n, ast.stmt)), None)


def written(source: Source, node: ast.AST) -> str:
    """As it stands there, without the indentation of its first line."""
    text = ast.get_source_segment(source.text, node) or ast.unparse(node)
    return dedent(source.indent(getattr(node, "lineno", 0)) + text)


def operand(source: Source, node: ast.expr) -> str:
    """As written, in brackets where something can be done to it only then."""
    text = written(source, node).strip()
    return text if isinstance(node, _PLAIN) else f"({text})"


def counter(source: Source, node: ast.AST) -> str:
    """The name that counts the loops around a node, the outermost; "" where none does."""
    found = ""
    for above in source.parents(node):
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
            break
        if isinstance(above, ast.For) and isinstance(above.iter, ast.Call):
            first = above.target.elts[0] if isinstance(above.target, ast.Tuple) else above.target
            if called(above.iter) in _COUNTING and isinstance(first, ast.Name):
                found = first.id
    return found


def now_and_then(source: Source | None, node: ast.AST | None, text: str) -> str:
    """Statements under an `if` that holds once in `EVERY` rounds; a count is made where none is."""
    name = counter(source, node) if source is not None and node is not None else ""
    if name:
        return f"if {name} % {EVERY} == 0:\n{indent(text, '    ')}"
    return (
        "asked = itertools.count()  # once, at the top of the file; import itertools\n"
        f"if next(asked) % {EVERY} == 0:\n{indent(text, '    ')}"
    )
