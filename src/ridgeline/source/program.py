"""The files of the user's program: which statement of which file imports which other, the classes
in them, and where a layer is called. What is imported by a name made at run time is not seen."""

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ridgeline.harness.capture.places import is_user_file
from ridgeline.source.file import (
    bindings,
    calls_in,
    dotted_name,
    names_in,
    parsed,
    targets_of,
    text_of,
)

ReadText = Callable[[str], str | None]
"""The text of a file of the user's, by its path; None if it cannot be read."""
MAX_FILES = 400
"""Files of a program that are looked at."""
_MAX_PACKAGES = 8
"""Packages that a name is followed through."""
_How = Literal["module", "submodule", "names", "package"]
_Target = tuple[Path, str, str, _How, Path]
LayerCall = tuple[str, int, str, str, str]
"""File, line, the call, the layer, what the layer is given."""


class ImportedFile(Struct, frozen=True, kw_only=True):
    """An import statement, and a file of the user's that a name of the statement stands for."""

    importer: Path
    first: int
    last: int
    file: Path
    name: str
    """What is imported: the module as it is written, or a name of it."""
    alias: str
    """The name that it gets; "" for a star."""
    how: _How
    """`module`: import a.b; `submodule`: from a import b; `names`: from a.b import c; `package`: a
    name that a package's __init__ has from the file, or such an __init__ on the way, unnamed."""
    root: Path
    """The folder that the file's dotted name begins in."""
    level: int = 0
    alone: bool = True
    """Whether the statement is the only one on its lines."""

    def dotted(self, stem: str) -> str:
        """Return how this statement would name the file beside, of that stem; "" if it reaches the
        file by another path."""
        if not self.file.is_relative_to(self.root):
            return ""
        parts = self.file.parent.relative_to(self.root).parts
        return "." * self.level + ".".join((*parts, stem))


class ProgramTexts:
    """The text of a file, by its path; knows the files that the script imports."""

    def __init__(self, script: Path) -> None:
        self.files = _with_imported(str(script))

    def __call__(self, file: str) -> str | None:
        return text_of(Path(file)) or None


def program_files(source: ReadText, start: str) -> tuple[Path, ...]:
    """Return all files of the program if they are known, else a file and those that it imports."""
    return source.files if isinstance(source, ProgramTexts) else _with_imported(start)


def _with_imported(start: str) -> tuple[Path, ...]:
    path = Path(start)
    return tuple(dict.fromkeys((path.resolve(), *(one.file for one in imported_files(path)))))


def imported_files(script: Path) -> tuple[ImportedFile, ...]:
    """Return all statements that import a file of the user's, from the script on. Modules are
    looked for in the script's folder and on PYTHONPATH."""
    start = script.resolve()
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [start.parent, *(Path(one).resolve() for one in path if one)]
    waiting, seen, found = [start], {start}, []
    while waiting and len(seen) < MAX_FILES:
        importer = waiting.pop(0)
        for node, alone in _imports(text_of(importer)):
            for file, name, alias, how, root in _targets(node, importer, folders):
                found.append(
                    ImportedFile(
                        importer=importer, first=node.lineno, last=node.end_lineno or node.lineno,
                        file=file, name=name, alias=alias, how=how, root=root, alone=alone,
                        level=getattr(node, "level", 0),
                    )
                )  # fmt: skip
                if file not in seen:
                    seen.add(file)
                    waiting.append(file)
    return tuple(found)


@lru_cache(maxsize=256)
def _imports(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Return the import statements, and whether each is alone on its lines."""
    source = parsed(text)
    statements = [n for n in source.nodes if isinstance(n, ast.stmt)] if source is not None else []
    starts = [node.lineno for node in statements]
    return tuple(
        (node, starts.count(node.lineno) == 1 and starts.count(node.end_lineno or 0) <= 1)
        for node in statements
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _targets(
    node: ast.Import | ast.ImportFrom, importer: Path, folders: Sequence[Path]
) -> Iterator[_Target]:
    """Yield the file, name, alias, way and root of what an import statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            for count in range(1, len(parts) + 1):
                found = _file_of(parts[:count], folders)
                if found is not None:
                    name = alias.asname or ("" if "." in alias.name else alias.name)
                    if count == len(parts):
                        yield found[0], alias.name, name, "module", found[1]
                    else:
                        yield found[0], "", name, "package", found[1]
        return
    parts, base = _module_parts(node, importer, folders)
    module = _file_of(parts, base)
    for count in range(1, len(parts) + 1):
        init = _file_of(parts[:count], base)
        if init is not None and init[0].name == "__init__.py":
            yield init[0], "", "", "package", init[1]
    for alias in node.names:
        as_ = alias.asname or alias.name
        inner = _file_of([*parts, alias.name], base) if alias.name != "*" else None
        origin = _origin(module[0], alias.name, folders) if module is not None else None
        if module is not None and origin is not None and origin != module[0]:
            yield origin, alias.name, as_, "package", module[1]
        elif inner is not None:
            yield inner[0], alias.name, as_, "submodule", inner[1]
        elif module is not None:
            yield module[0], alias.name, "" if as_ == "*" else as_, "names", module[1]


def _module_parts(
    node: ast.ImportFrom, importer: Path, folders: Sequence[Path]
) -> tuple[list[str], list[Path]]:
    """Return the module that names are imported from, in parts, and where it is looked for."""
    base = [importer.parents[node.level - 1]] if node.level else list(folders)
    return node.module.split(".") if node.module else [], base


def _file_of(parts: Sequence[str], folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return the file of a dotted name, and the folder it is found from."""
    for folder in folders:
        place = folder.joinpath(*parts)
        modules = [place.with_name(f"{place.name}.py")] if parts else []
        for file in (place / "__init__.py", *modules):
            if file.is_file() and is_user_file(str(file)):
                return file, folder
    return None


def _origin(
    file: Path, name: str, folders: Sequence[Path], deep: int = _MAX_PACKAGES
) -> Path | None:
    """Return the file that a name comes from which a package's __init__ imports, or None."""
    if file.name != "__init__.py" or not deep:
        return None
    for node, _ in _imports(text_of(file)):
        module = None
        if isinstance(node, ast.ImportFrom):
            module = _file_of(*_module_parts(node, file, folders))
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
        return any(binding.name == name for binding in bindings(text_of(file)))
    except (SyntaxError, ValueError):
        return False


def classes(source: ReadText, start: str, name: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of a program, or those of one name, each with its file."""
    for path in program_files(source, start):
        file = parsed(text_of(path))
        for node in file.nodes if file is not None else ():
            if isinstance(node, ast.ClassDef) and name in ("", node.name):
                yield str(path), node


def layer_calls(source: ReadText, start: str, path: str) -> list[LayerCall]:
    """Return the calls of a layer, given by its path in the model: `self.head(x)` in the one class
    that assigns a linear layer to `self.head`; [] if there is no such class or several."""
    layer = f"self.{path.rpartition('.')[2]}"
    found = []
    for file, kind in classes(source, start):
        # self.transformer = nn.ModuleDict(head=nn.Linear(…)) makes another layer
        if any(name == layer and "Linear" in value for name, value in _assigned(kind)):
            found.append([
                (file, call.lineno, ast.unparse(call), layer, ast.unparse(call.args[0]))
                for call in calls_in(kind)
                if dotted_name(call.func) == layer and len(call.args) == 1 and not call.keywords
            ])  # fmt: skip
    found = [calls for calls in found if calls]
    return found[0] if len(found) == 1 else []


def block_calls(source: ReadText, start: str, kind: str) -> list[tuple[str, int]]:
    """Return the files and lines that call blocks of a class one after the other: `for block in
    self.blocks:`, where self.blocks is made of them."""
    found = []
    for file, owner in classes(source, start):
        held = {name for name, value in _assigned(owner) if f"{kind}(" in value}
        for loop in (n for n in ast.walk(owner) if isinstance(n, ast.For)):
            if held & {dotted_name(n) for n in ast.walk(loop.iter)}:
                names = names_in(loop.target)
                found += [(file, c.lineno) for c in calls_in(loop) if dotted_name(c.func) in names]
    return found


def _assigned(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the names that a class assigns to, each with its value as written."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in targets_of(node):
                yield dotted_name(target), ast.unparse(node.value)
