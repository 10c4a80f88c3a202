"""The text of a source line, and where a function begins, from files that may be gone by now."""

import ast
import os
import tokenize
from collections.abc import Iterator
from functools import lru_cache

_LARGEST = 4 * 2**20
_WIDEST = 200


def text_of(file: str, line: int) -> str:
    """The line without its indent; "" where it cannot be read."""
    lines = _lines(file)
    return lines[line - 1].strip()[:_WIDEST] if 0 < line <= len(lines) else ""


def beginning_of(file: str, line: int, function: str) -> int | None:
    """The line of `def` of a function that is known by its qualified name and a line in it."""
    if function == "<module>":
        return 1
    around = [
        start for name, start, end in _functions(file) if name == function and start <= line <= end
    ]
    return max(around, default=None)


@lru_cache(maxsize=64)
def _lines(file: str) -> tuple[str, ...]:
    try:
        # Only a regular file: reading a pipe or a terminal would wait for ever.
        if not os.path.isfile(file) or os.path.getsize(file) > _LARGEST:
            return ()
        with tokenize.open(file) as opened:
            return tuple(opened.read().splitlines())
    except (OSError, SyntaxError, ValueError):
        return ()


@lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    try:
        return tuple(_within(ast.parse("\n".join(_lines(file))), ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _within(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = prefix + ("<lambda>" if isinstance(child, ast.Lambda) else child.name)
            yield name, child.lineno, child.end_lineno or child.lineno
            yield from _within(child, f"{name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _within(child, f"{prefix}{child.name}.")
        else:
            yield from _within(child, prefix)
