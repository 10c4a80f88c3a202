"""A source file as a tree that knows what stands around what."""

import ast
from collections.abc import Iterator

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Module)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


class SourceTree:
    """Raises SyntaxError or ValueError where the text is no Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.module = ast.parse(text)
        self._above: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.module):
            for child in ast.iter_child_nodes(node):
                self._above[child] = node

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What it stands in, the nearest first; the module last."""
        while node in self._above:
            node = self._above[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        return next(n for n in (node, *self.above(node)) if isinstance(n, ast.stmt))

    def scope(self, node: ast.AST) -> Scope:
        """The function, class or module whose names it sees first."""
        return next(n for n in self.above(node) if isinstance(n, SCOPES))

    def loop(self, node: ast.AST) -> ast.AST | None:
        """The nearest loop around it in its own function."""
        for one in self.above(node):
            if isinstance(one, LOOPS):
                return one
            if isinstance(one, SCOPES):
                return None
        return None

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements it is one of."""
        owner = self._above[statement]
        for field in ("body", "orelse", "finalbody"):
            found = getattr(owner, field, None)
            if isinstance(found, list) and statement in found:
                return found
        return [statement]

    def inside(self, scope: Scope) -> Iterator[ast.stmt]:
        """Its statements, in the order of their lines, without those of functions in it."""
        every = (n for n in ast.walk(scope) if isinstance(n, ast.stmt) and n is not scope)
        yield from sorted((n for n in every if self.scope(n) is scope), key=lambda n: n.lineno)


def dotted(node: ast.AST) -> str:
    """model, self.model, trainer.net; "" for what has no such name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    yield from (n for n in ast.walk(node) if isinstance(n, ast.Call))
