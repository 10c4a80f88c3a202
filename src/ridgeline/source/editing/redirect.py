"""Imports of a file led to its copy: the statements of the files that import it, rewritten."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.records.edit import Rewrite
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.modules import Reached, text_of

_FROM = re.compile(r"(\s*from\s+)([.\w]+)(\s+import\b)")
_WHY = "its copy has the changes"


def importers(file: Path, every: Sequence[Reached]) -> set[Path]:
    """Those that must be led to its copy; a package's __init__ stays, its users are led past it."""
    if file.name == "__init__.py":
        raise Cannot("it is the file of a package, which has one name only")
    found = [one for one in every if one.file == file]
    inits = {one.importer for one in found if one.importer.name == "__init__.py"}
    for init in inits:
        if not _only_imports(init):
            raise Cannot(f"{init} imports it and does more than that")
        for one in every:
            if one.file == init and one.importer.name != "__init__.py" and one.how == "module":
                raise Cannot(f"line {one.first} of {one.importer} reaches it through {init}")
    left = {one.importer for one in found} - inits
    if not left:
        raise Cannot("no import of the script leads to it by a name that can be followed")
    return left


def redirected(
    importer: Path, copies: Mapping[Path, str], every: Sequence[Reached]
) -> list[Rewrite]:
    """The edits of one file. `copies`: files to the stems of their copies."""
    statements: dict[int, list[Reached]] = {}
    for one in every:
        if one.importer == importer and one.file in copies:
            statements.setdefault(one.first, []).append(one)
    lines = text_of(importer).split("\n")
    found = []
    for first, led in sorted(statements.items()):
        before = "\n".join(lines[first - 1 : led[0].last])
        if not led[0].alone:
            raise Cannot(f"line {first} of {importer} holds more than its import")
        after = _written(before, led, copies)
        found.append(
            Rewrite(
                file=str(importer), first=first, last=led[0].last, before=before, after=after,
                why=_WHY,
            )
        )  # fmt: skip
    return found


def _written(text: str, led: Sequence[Reached], copies: Mapping[Path, str]) -> str:
    hows = {one.how for one in led}
    if hows == {"names"}:
        one = led[0]
        return _FROM.sub(lambda m: m[1] + one.dotted(copies[one.file]) + m[3], text, count=1)
    for one in led:
        stem = copies[one.file]
        if one.how == "submodule":
            head, word, tail = text.partition("import")
            name = re.compile(rf"\b{one.name}\b(\s+as\s+\w+)?")
            tail = name.sub(lambda m: f"{stem}{m[1] or f' as {one.name}'}", tail, count=1)  # noqa: B023
            text = head + word + tail
        elif one.how == "module":
            text = _module(text, one, stem)
    return _past_package(text, [one for one in led if one.how == "package"], copies)


def _module(text: str, one: Reached, stem: str) -> str:
    if not one.alias:
        raise Cannot(
            f"line {one.first} of {one.importer} imports it as {one.name}, which is used by its "
            "whole name"
        )
    name = re.compile(rf"(?<![\w.]){re.escape(one.name)}(?![\w.])(\s+as\s+\w+)?")
    return name.sub(f"{one.dotted(stem)} as {one.alias}", text, count=1)


def _past_package(text: str, led: Sequence[Reached], copies: Mapping[Path, str]) -> str:
    """`from pkg import Net, other`: each name from the file that has it."""
    if not led:
        return text
    if any(not one.name for one in led):
        return text  # import a.b: the package itself
    node = ast.parse(text.strip()).body[0]
    assert isinstance(node, ast.ImportFrom)
    indent = text[: len(text) - len(text.lstrip())]
    by_file: dict[Path, list[str]] = {}
    gone = set()
    for one in led:
        gone.add(one.alias)
        said = one.name if one.alias == one.name else f"{one.name} as {one.alias}"
        by_file.setdefault(one.file, []).append(said)
    rest = [alias for alias in node.names if (alias.asname or alias.name) not in gone]
    sample = {one.file: one for one in led}
    lines = [
        f"from {sample[file].dotted(copies[file])} import {', '.join(names)}"
        for file, names in by_file.items()
    ]
    if rest:
        node.names = rest
        lines.append(ast.unparse(node))
    return "\n".join(indent + line for line in lines)


def _only_imports(init: Path) -> bool:
    try:
        body = ast.parse(text_of(init)).body
    except (SyntaxError, ValueError):
        return False
    return all(
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (
            isinstance(node, ast.Assign)
            and not any(isinstance(n, ast.Call) for n in ast.walk(node))
        )
        for node in body
    )
