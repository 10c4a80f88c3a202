"""The names that a file binds at its top level, and what its imports bind them to."""

import ast
import builtins
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from ridgeline.source.file import (
    last_name,
)

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_ALWAYS = {*dir(builtins), "__file__", "__name__"}
_MAYBE = (ast.If, ast.For, ast.While, ast.Match, ast.AsyncFor, ast.ExceptHandler)


class Binding(Struct, frozen=True, kw_only=True):
    name: str
    thing: str
    """What it is, by dotted name; empty where it is no import."""
    module: str
    """What was loaded for it."""
    line: int
    certain: bool
    """Not under a condition (`if TYPE_CHECKING`)."""


def imported(node: ast.AST, certain: bool = True) -> list[Binding]:
    """What an import statement binds; `from a import b` and `import a.b as b` bind the same."""
    out = []
    if isinstance(node, ast.Import):
        for alias in node.names:
            thing = alias.name if alias.asname else alias.name.split(".")[0]
            name = alias.asname or thing
            out.append((name, thing, alias.name))
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            joined = f"{module}.{alias.name}" if node.module else module + alias.name
            out.append((alias.asname or alias.name, joined, joined))
    line = getattr(node, "lineno", 0)
    return [
        Binding(name=name, thing=thing, module=module, line=line, certain=certain)
        for name, thing, module in out
    ]


@lru_cache(maxsize=4)
def bindings(text: str) -> tuple[Binding, ...]:
    found: list[Binding] = []
    for node in ast.parse(text).body:
        found += _bound(node, True)
    return tuple(found)


@lru_cache(maxsize=4)
def aliases(text: str) -> dict[str, str]:
    """Names given anywhere by `import … as`, `name = thing` or `name = partial(thing, …)`, and the
    last name of what they stand for."""
    out: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    out[alias.asname] = alias.name.split(".")[-1]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, thing = node.targets[0], _stands_for(node.value)
            if isinstance(target, ast.Name) and thing:
                out[target.id] = thing
    return out


def _stands_for(value: ast.AST) -> str:
    """Of a partial only where it gives nothing by position: bare arguments are counted."""
    if isinstance(value, ast.Call) and last_name(value.func) == "partial" and len(value.args) == 1:
        return last_name(value.args[0])
    return last_name(value)


def _bound(node: ast.AST, certain: bool) -> Iterator[Binding]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from imported(node, certain)
    elif isinstance(node, _INNER):
        if not isinstance(node, ast.Lambda):
            yield _other(node.name, node.lineno, certain)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield _other(node.id, node.lineno, certain)
    elif not isinstance(node, _COMPREHENSIONS):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child, certain and not isinstance(node, _MAYBE))


def _other(name: str, line: int, certain: bool) -> Binding:
    return Binding(name=name, thing="", module="", line=line, certain=certain)


def needed(code: str) -> set[str]:
    """The names that a piece of code reads and does not bind itself, builtins apart."""
    nodes = list(ast.walk(ast.parse(code)))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    reads: set[str] = set()
    for node in nodes:
        bound |= {binding.name for binding in imported(node)}
        if isinstance(node, _NAMED) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return reads - bound - _ALWAYS
