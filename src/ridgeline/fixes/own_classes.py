"""Classes of the user's own, in the files that a file imports, and where a layer is called."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ridgeline.fixes.fix import Source
from ridgeline.fixes.source_tree import calls, dotted
from ridgeline.source.editing.modules import python_path, reached, text_of

Site = tuple[str, int, str, str, str]
"""File, line, the call, the layer, what it is given."""


class Sources:
    """The text of a file, by its path; knows the files that the script imports."""

    def __init__(self, script: Path) -> None:
        self.files = files(str(script))

    def __call__(self, file: str) -> str | None:
        return text_of(Path(file)) or None


def files(start: str) -> tuple[Path, ...]:
    """That file, and those of the user's own that it imports."""
    path = Path(start)
    found = [path.resolve(), *(one.file for one in reached(path, python_path()))]
    return tuple(dict.fromkeys(found))


def known(source: Source, start: str) -> tuple[Path, ...]:
    """All files of the program where they are known, else those that a file of it imports."""
    return source.files if isinstance(source, Sources) else files(start)


def classes(source: Source, start: str, name: str) -> Iterator[ast.ClassDef]:
    for path in known(source, start) if name else ():
        yield from (one for one in _classes(path) if one.name == name)


def layer_calls(source: Source, start: str, path: str) -> list[Site]:
    """Of the layer at that path of the model, by its own name: calls of self.head(x) in the one
    class that makes self.head. [] where that is not one."""
    name = path.rpartition(".")[2]
    found: list[list[Site]] = []
    for file in known(source, start):
        for kind in _classes(file):
            if _makes(kind, name) and (sites := list(_sites(file, kind, f"self.{name}"))):
                found.append(sites)
    return found[0] if len(found) == 1 else []


def block_calls(source: Source, start: str, kind: str) -> list[tuple[str, int]]:
    """Lines that call blocks of that class, one after the other: `for block in self.blocks:`, where
    self.blocks is made of them."""
    found = []
    for file in known(source, start):
        for owner in _classes(file):
            held = [name for name, value in _assigned(owner) if f"{kind}(" in value]
            for loop in (n for n in ast.walk(owner) if isinstance(n, ast.For)):
                over = {dotted(n) for n in ast.walk(loop.iter)}
                names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
                if over & set(held):
                    found += [(str(file), c.lineno) for c in calls(loop) if dotted(c.func) in names]
    return found


def _assigned(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield dotted(target), ast.unparse(node.value)


def _sites(file: Path, kind: ast.ClassDef, layer: str) -> Iterator[Site]:
    for call in calls(kind):
        if dotted(call.func) == layer and len(call.args) == 1 and not call.keywords:
            given = ast.unparse(call.args[0])
            yield str(file), call.lineno, ast.unparse(call), layer, given


def _makes(kind: ast.ClassDef, name: str) -> bool:
    """self.head = nn.Linear(…), or self.transformer = nn.ModuleDict of it, which is not this."""
    return any(at == f"self.{name}" and "Linear" in value for at, value in _assigned(kind))


def _classes(file: Path) -> tuple[ast.ClassDef, ...]:
    return _classes_of(text_of(file))


@lru_cache(maxsize=256)
def _classes_of(text: str) -> tuple[ast.ClassDef, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
