"""The user's own files that a script imports, by the import statements in them: which statement of
which file reaches which other. What is imported by a name made at run time is not seen."""

import ast
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from ridgeline.harness.capture.places import own
from ridgeline.source.editing.bindings import bindings
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.decoding import decoded

MOST = 400
"""Files looked at."""
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
    """The folder that the file's own dotted name begins in."""
    level: int = 0
    alone: bool = True
    """It is the only one on its lines."""

    def dotted(self, stem: str) -> str:
        """How this statement would name the file beside, of that stem."""
        if not self.file.is_relative_to(self.root):
            raise Cannot(f"line {self.first} of {self.importer} reaches it by another path")
        parts = self.file.parent.relative_to(self.root).parts
        return "." * self.level + ".".join((*parts, stem))


def text_of(file: Path) -> str:
    """As Python reads it, its lines ended by \\n; "" where it cannot be read."""
    try:
        found = decoded(file.read_bytes())
    except OSError:
        return ""
    return "" if found.fault else found.text.replace("\r\n", "\n").replace("\r", "\n")


def reached(script: Path, roots: Sequence[Path] = ()) -> tuple[Reached, ...]:
    """All statements that reach a file of the user's, from the script on. `roots`: folders that
    modules are found in besides the script's own."""
    start = script.resolve()
    folders = [start.parent, *(root.resolve() for root in roots)]
    waiting, seen, found = [start], {start}, []
    while waiting and len(seen) < MOST:
        file = waiting.pop(0)
        for one in _of(file, folders):
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


def _of(importer: Path, folders: Sequence[Path]) -> Iterator[Reached]:
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
                found = _found(parts[:count], folders)
                if found is not None:
                    whole = count == len(parts)
                    name = alias.asname or ("" if "." in alias.name else alias.name)
                    how = "module" if whole else "package"
                    yield found[0], alias.name if whole else "", name, how, found[1]
        return
    base = [importer.parents[node.level - 1]] if node.level else list(folders)
    parts = (node.module or "").split(".") if node.module else []
    module = _found(parts, base)
    for count in range(1, len(parts) + 1):
        init = _found(parts[:count], base)
        if init is not None and init[0].name == "__init__.py":
            yield init[0], "", "", "package", init[1]
    for alias in node.names:
        as_ = alias.asname or alias.name
        inner = _found([*parts, alias.name], base) if alias.name != "*" else None
        origin = module and (_origin(module[0], alias.name, folders) or module[0])
        if module is not None and origin is not None and origin != module[0]:
            yield origin, alias.name, as_, "package", module[1]
        elif inner is not None:
            yield inner[0], alias.name, as_, "submodule", inner[1]
        elif module is not None:
            yield module[0], alias.name, "" if as_ == "*" else as_, "names", module[1]


def _found(parts: Sequence[str], folders: Sequence[Path]) -> tuple[Path, Path] | None:
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
        module = _found((node.module or "").split(".") if node.module else [], base)
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
