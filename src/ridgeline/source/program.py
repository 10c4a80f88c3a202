"""The files of the user's program: which statement of which file imports which other, the classes
in them, and where a layer is called. What is imported by a name made at run time is not seen."""

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from ridgeline.harness.capture.places import own
from ridgeline.source.bindings import bindings
from ridgeline.source.file import (
    calls_in,
    dotted_name,
    text_of,
)

ReadText = Callable[[str], str | None]
"""The text of a file of the user's, by its path; None if it cannot be read."""
MAX_FILES = 400
"""Files of a program that are looked at."""
_DEEP = 8
"""Packages a name is followed through."""


class Reached(Struct, frozen=True, kw_only=True):
    """An import statement, and a file of the user's that a name of it stands for."""

    importer: Path
    first: int
    last: int
    file: Path
    name: str
    """What is imported: the module as it is written, or a name of it."""
    alias: str
    """The name it gets; "" of a star."""
    how: str
    """`module`: import a.b; `submodule`: from a import b; `names`: from a.b import c; `package`: a
    name that a package's __init__ has from the file, or such an __init__ on the way, unnamed."""
    root: Path
    """The folder that the file's is_own_file dotted name begins in."""
    level: int = 0
    alone: bool = True
    """It is the only one on its lines."""

    def dotted(self, stem: str) -> str:
        """Return how this statement would name the file beside, of that stem; "" if it reaches the
        file by another path."""
        if not self.file.is_relative_to(self.root):
            return ""
        parts = self.file.parent.relative_to(self.root).parts
        return "." * self.level + ".".join((*parts, stem))


def reached(script: Path, roots: Sequence[Path] = ()) -> tuple[Reached, ...]:
    """All statements that reach a file of the user's, from the script on. `roots`: folders that
    modules are found in besides the script's is_own_file."""
    start = script.resolve()
    folders = [start.parent, *(root.resolve() for root in roots)]
    waiting, seen, found = [start], {start}, []
    while waiting and len(seen) < MAX_FILES:
        file = waiting.pop(0)
        for one in _reached_from(file, folders):
            found.append(one)
            if one.file not in seen:
                seen.add(one.file)
                waiting.append(one.file)
    return tuple(found)


def python_path() -> list[Path]:
    return [Path(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


@lru_cache(maxsize=256)
def _imports(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Import statements, and whether each is alone on its lines."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    lines: dict[int, int] = {}
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for one in statements:
        lines[one.lineno] = lines.get(one.lineno, 0) + 1
    return tuple(
        (node, lines[node.lineno] == 1 and lines.get(node.end_lineno or 0, 1) == 1)
        for node in statements
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _reached_from(importer: Path, folders: Sequence[Path]) -> Iterator[Reached]:
    for node, alone in _imports(text_of(importer)):
        for file, name, alias, how, root in _named(node, importer, folders):
            yield Reached(
                importer=importer, first=node.lineno, last=node.end_lineno or node.lineno,
                file=file, name=name, alias=alias, how=how, root=root, alone=alone,
                level=getattr(node, "level", 0),
            )  # fmt: skip


_Named = tuple[Path, str, str, str, Path]


def _named(
    node: ast.Import | ast.ImportFrom, importer: Path, folders: Sequence[Path]
) -> Iterator[_Named]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            for count in range(1, len(parts) + 1):
                found = _file_of(parts[:count], folders)
                if found is not None:
                    whole = count == len(parts)
                    name = alias.asname or ("" if "." in alias.name else alias.name)
                    how = "module" if whole else "package"
                    yield found[0], alias.name if whole else "", name, how, found[1]
        return
    base = [importer.parents[node.level - 1]] if node.level else list(folders)
    parts = (node.module or "").split(".") if node.module else []
    module = _file_of(parts, base)
    for count in range(1, len(parts) + 1):
        init = _file_of(parts[:count], base)
        if init is not None and init[0].name == "__init__.py":
            yield init[0], "", "", "package", init[1]
    for alias in node.names:
        as_ = alias.asname or alias.name
        inner = _file_of([*parts, alias.name], base) if alias.name != "*" else None
        origin = module and (_origin(module[0], alias.name, folders) or module[0])
        if module is not None and origin is not None and origin != module[0]:
            yield origin, alias.name, as_, "package", module[1]
        elif inner is not None:
            yield inner[0], alias.name, as_, "submodule", inner[1]
        elif module is not None:
            yield module[0], alias.name, "" if as_ == "*" else as_, "names", module[1]


def _file_of(parts: Sequence[str], folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """The file of that dotted name, and the folder it is found from."""
    for folder in folders:
        place = folder.joinpath(*parts)
        options = [place / "__init__.py"]
        if parts:
            options.append(place.with_name(f"{place.name}.py"))
        for option in options:
            if option.is_file() and own(str(option)):
                return option, folder
    return None


def _origin(file: Path, name: str, folders: Sequence[Path], deep: int = _DEEP) -> Path | None:
    """Of a name that a package's __init__ imports: the file it comes from."""
    if file.name != "__init__.py" or not deep:
        return None
    for node, _ in _imports(text_of(file)):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = [file.parents[node.level - 1]] if node.level else list(folders)
        module = _file_of((node.module or "").split(".") if node.module else [], base)
        if module is None or module[0] == file:
            continue
        for alias in node.names:
            if alias.name == "*" and _binds(module[0], name):
                return _origin(module[0], name, folders, deep - 1) or module[0]
            if (alias.asname or alias.name) == name:
                if alias.asname not in (None, alias.name):
                    return None
                return _origin(module[0], alias.name, folders, deep - 1) or module[0]
    return None


def _binds(file: Path, name: str) -> bool:
    try:
        return any(one.name == name for one in bindings(text_of(file)))
    except (SyntaxError, ValueError):
        return False


Site = tuple[str, int, str, str, str]
"""File, line, the call, the layer, what it is given."""


class ProgramTexts:
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


def known(source: ReadText, start: str) -> tuple[Path, ...]:
    """All files of the program where they are known, else those that a file of it imports."""
    return source.files if isinstance(source, ProgramTexts) else files(start)


def classes(source: ReadText, start: str, name: str) -> Iterator[ast.ClassDef]:
    for path in known(source, start) if name else ():
        yield from (one for one in _classes(path) if one.name == name)


def layer_calls(source: ReadText, start: str, path: str) -> list[Site]:
    """Of the layer at that path of the model, by its own name: calls of self.head(x) in the one
    class that makes self.head. [] where that is not one."""
    name = path.rpartition(".")[2]
    found: list[list[Site]] = []
    for file in known(source, start):
        for kind in _classes(file):
            if _makes(kind, name) and (sites := list(_sites(file, kind, f"self.{name}"))):
                found.append(sites)
    return found[0] if len(found) == 1 else []


def block_calls(source: ReadText, start: str, kind: str) -> list[tuple[str, int]]:
    """Lines that call blocks of that class, one after the other: `for block in self.blocks:`, where
    self.blocks is made of them."""
    found = []
    for file in known(source, start):
        for owner in _classes(file):
            held = [name for name, value in _assigned(owner) if f"{kind}(" in value]
            for loop in (n for n in ast.walk(owner) if isinstance(n, ast.For)):
                over = {dotted_name(n) for n in ast.walk(loop.iter)}
                names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
                if over & set(held):
                    found += [
                        (str(file), c.lineno)
                        for c in calls_in(loop)
                        if dotted_name(c.func) in names
                    ]
    return found


def _assigned(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield dotted_name(target), ast.unparse(node.value)


def _sites(file: Path, kind: ast.ClassDef, layer: str) -> Iterator[Site]:
    for call in calls_in(kind):
        if dotted_name(call.func) == layer and len(call.args) == 1 and not call.keywords:
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
