"""The names that a file binds at its top level, and what its imports bind them to."""

import ast
import builtins
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from ridgeline.source.file import Comprehension, Function, last_name

_ALWAYS_BOUND = {*dir(builtins), "__file__", "__name__"}
_CONDITIONAL = ast.If | ast.For | ast.While | ast.Match | ast.AsyncFor | ast.ExceptHandler


class Binding(Struct, frozen=True, kw_only=True):
    name: str
    thing: str = ""
    """The dotted name of what an import binds; "" for other bindings."""
    module: str = ""
    """The module that was loaded for it."""
    line: int
    certain: bool
    """Whether the binding stands under no condition such as `if TYPE_CHECKING`."""


def imported(node: ast.AST, certain: bool = True) -> list[Binding]:
    """Return what an import statement binds; `from a import b` and `import a.b as b` bind the
    same."""
    bound = []
    if isinstance(node, ast.Import):
        for alias in node.names:
            thing = alias.name if alias.asname else alias.name.split(".")[0]
            bound.append((alias.asname or thing, thing, alias.name))
    elif isinstance(node, ast.ImportFrom):
        prefix = "." * node.level + (f"{node.module}." if node.module else "")
        for alias in node.names:
            bound.append((alias.asname or alias.name, prefix + alias.name, prefix + alias.name))
    line = getattr(node, "lineno", 0)
    return [
        Binding(name=name, thing=thing, module=module, line=line, certain=certain)
        for name, thing, module in bound
    ]


@lru_cache(maxsize=4)
def bindings(text: str) -> tuple[Binding, ...]:
    """Return what a file binds at its top level. Raises SyntaxError or ValueError."""
    return tuple(binding for node in ast.parse(text).body for binding in _bound(node, True))


@lru_cache(maxsize=4)
def aliases(text: str) -> dict[str, str]:
    """Return the names that a file gives anywhere by `import … as`, `name = thing` or
    `name = partial(thing, …)`, with the last name of what they stand for. A partial that gives
    arguments by position is left out: bare arguments are counted."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name.split(".")[-1]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(value, ast.Call):
                is_partial = last_name(value) == "partial" and len(value.args) == 1
                value = value.args[0] if is_partial else ast.Constant(None)
            thing = "" if isinstance(value, ast.Call) else last_name(value)
            if isinstance(target, ast.Name) and thing:
                found[target.id] = thing
    return found


def _bound(node: ast.AST, certain: bool) -> Iterator[Binding]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from imported(node, certain)
    elif isinstance(node, Function | ast.ClassDef):
        yield Binding(name=node.name, line=node.lineno, certain=certain)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield Binding(name=node.id, line=node.lineno, certain=certain)
    elif not isinstance(node, Comprehension | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child, certain and not isinstance(node, _CONDITIONAL))


def needed(code: str) -> set[str]:
    """Return the names that a piece of code reads and does not bind itself, builtins apart."""
    nodes = list(ast.walk(ast.parse(code)))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    reads: set[str] = set()
    for node in nodes:
        bound |= {binding.name for binding in imported(node)}
        if isinstance(node, Function | ast.ClassDef | ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return reads - bound - _ALWAYS_BOUND
