"""The user's source files, found by the names a trace or a run gives them, and read once.

Kineto strips the search path from file names, so `data/loader.py` may be anywhere beneath a folder
that was on it: the program's folder and its script's are tried. A file that has changed since, is
not there or cannot be parsed is None: then a finding keeps the place that was measured.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

MOST_BYTES = 4 * 2**20
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source:
    """One file, parsed."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines()

    def line(self, number: int) -> str:
        """Its text without indentation; "" where there is no such line."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def indent(self, number: int) -> str:
        """The spaces a line begins with."""
        text = self.lines[number - 1] if 0 < number <= len(self.lines) else ""
        return text[: len(text) - len(text.lstrip())]

    def scope(self, line: int) -> ast.AST:
        """The function that begins at a line (at its decorator, as code objects have it), else the
        innermost function around the line, else the module."""
        begins = [f for f in self._functions if line in (_first_line(f), f.lineno)]
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
        found = begins or sorted(around, key=lambda f: f.lineno)
        return found[-1] if found else self.tree

    def loops(self, node: ast.AST) -> int:
        """How many loops (comprehensions too) of its own function a node stands in."""
        count, at = 0, self._parents.get(node)
        while at is not None and not isinstance(at, Function):
            count += isinstance(at, _LOOPS)
            at = self._parents.get(at)
        return count

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the innermost outwards."""
        at = self._parents.get(node)
        while at is not None:
            yield at
            at = self._parents.get(at)

    def walk(self, scope: ast.AST) -> Iterator[ast.AST]:
        """Everything inside a function, without the functions defined inside it (whose lines are
        theirs), in the order of the source."""
        for child in ast.iter_child_nodes(scope):
            yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self.walk(child)

    @cached_property
    def _functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        nodes = ast.walk(self.tree)
        return [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {c: node for node in ast.walk(self.tree) for c in ast.iter_child_nodes(node)}


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp,
          ast.DictComp)  # fmt: skip


class Sources:
    """Files by name. Nothing is raised: what cannot be read is not there."""

    def __init__(self, roots: Sequence[Path] = (), texts: dict[str, str] | None = None) -> None:
        """`texts`: files given by name, which are not looked for on disk."""
        self._roots = tuple(roots)
        self._texts = texts or {}
        self._kept: dict[str, Source | None] = {}

    def get(self, file: str) -> Source | None:
        if file not in self._kept:
            text = self._texts[file] if file in self._texts else self._read(file)
            self._kept[file] = _parsed(file, text)
        return self._kept[file]

    def _read(self, file: str) -> str | None:
        if not file or not file.endswith(".py"):
            return None
        for path in (Path(file), *(root / file for root in self._roots)):
            try:
                if path.is_file() and path.stat().st_size <= MOST_BYTES:
                    return path.read_text(encoding="utf-8", errors="replace")
            except (OSError, ValueError):
                continue
        return None


def _parsed(file: str, text: str | None) -> Source | None:
    if text is None:
        return None
    try:
        return Source(file, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])
