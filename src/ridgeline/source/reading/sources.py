"""The user's source files, found by the names a trace or a run gives them, and read once.

Kineto strips the search path from file names, so `data/loader.py` may be anywhere beneath a folder
that was on it: the program's folder and its script's are tried. A file that has changed since, is
not there or cannot be parsed is None: then a finding keeps the place that was measured.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

MOST_BYTES = 4 * 2**20
CalledLines = Mapping[int, frozenset[str]]
"""Names of the functions that a line was seen calling."""
_CLASSES = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source:
    """One file, parsed."""

    def __init__(self, file: str, text: str, called: CalledLines | None = None) -> None:
        """`called` has the functions that each line was seen calling in the traced steps; it is
        None or empty if these are not known."""
        self.called = called or {}
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

    def ran(self, node: ast.AST) -> bool | None:
        """Return whether an expression ran in the traced steps; None if that is not known."""
        if not self._is_followed(node):
            return None
        seen = self._calls_in(*_span(node))
        if isinstance(node, ast.Call) and _called(node) in seen:
            return True
        if seen or any(isinstance(above, ast.withitem) for above in self.parents(node)):
            return None  # a `with` may have been entered before the trace began
        if _is_seen_if_made(node):
            return False
        return None if self.reached(node) else False

    def lines_calling(self, line: int, name: str) -> tuple[int, ...]:
        """Return the lines, in the function around `line`, that were seen calling a function of
        that name."""
        scope = self.scope(line)
        first, last = _span(scope) if isinstance(scope, Function) else (1, len(self.lines))
        return tuple(
            number
            for number, names in sorted(self.called.items())
            if first <= number <= last and name in names
        )

    def _is_followed(self, node: ast.AST) -> bool:
        """Return whether calls in the function around `node` were seen, so that the function was
        traced and not compiled."""
        around = next((p for p in self.parents(node) if isinstance(p, Function)), self.tree)
        return bool(self.called and self._calls_in(*_span(around)))

    def _calls_in(self, first: int, last: int) -> set[str]:
        return {name for line, names in self.called.items() if first <= line <= last
                for name in names}  # fmt: skip

    def reached(self, node: ast.AST) -> bool:
        """Return False if `node` is in a branch or a loop that always makes a call, but made none
        in the traced steps; else True."""
        inside = node
        if not self._is_followed(node):
            return True
        for above in self.parents(node):
            if isinstance(above, Function):
                break
            for block in (getattr(above, "body", None), getattr(above, "orelse", None)):
                if not isinstance(block, list) or not any(one is inside for one in block):
                    continue
                if self._calls_in(block[0].lineno, block[-1].end_lineno or block[-1].lineno):
                    return True
                plain = [s for s in block if isinstance(s, ast.Expr | ast.Assign | ast.AugAssign)]
                if any(_is_seen_if_made(one.value) for one in plain):
                    return False
            inside = above
        return True

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

    def __init__(
        self,
        roots: Sequence[Path] = (),
        texts: dict[str, str] | None = None,
        called: Mapping[str, CalledLines] | None = None,
    ) -> None:
        """`texts` has files by name that are not looked for on disk. `called` has for each file
        the functions that its lines were seen calling in the traced steps."""
        self.called = called or {}
        self.roots = tuple(roots)
        self._texts = texts or {}
        self._kept: dict[str, Source | None] = {}

    def get(self, file: str) -> Source | None:
        if file not in self._kept:
            text = self._texts[file] if file in self._texts else self._read(file)
            self._kept[file] = _parsed(file, text, self._called_in(file))
        return self._kept[file]

    def _called_in(self, file: str) -> CalledLines:
        """Return the calls seen in a file, found by its path or the end of its path: a trace names
        files without the entry of `sys.path`."""
        end = f"/{file.removeprefix('./')}"
        return next((c for f, c in self.called.items() if f == file or f.endswith(end)), {})

    def _read(self, file: str) -> str | None:
        if not file or not file.endswith(".py"):
            return None
        for path in (Path(file), *(root / file for root in self.roots)):
            try:
                if path.is_file() and path.stat().st_size <= MOST_BYTES:
                    return path.read_text(encoding="utf-8", errors="replace")
            except (OSError, ValueError):
                continue
        return None


def _span(node: ast.AST) -> tuple[int, int]:
    """Return the first and last line of an expression; for a branch, those of its test."""
    node = getattr(node, "test", node)
    first = getattr(node, "lineno", 0)
    return first, getattr(node, "end_lineno", None) or first or 10**9


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_seen_if_made(node: ast.AST) -> bool:
    """Return whether the profiler records such a call. It records no calls of classes, such as
    `float()`."""
    return (
        isinstance(node, ast.Call)
        and not (isinstance(node.func, ast.Name) and node.func.id in _CLASSES)
        and not _called(node)[:1].isupper()
    )


def _parsed(file: str, text: str | None, called: CalledLines) -> Source | None:
    if text is None:
        return None
    try:
        return Source(file, text, called)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])
