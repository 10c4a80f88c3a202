"""Calls of cross-entropy in a source, by the function's name or through a CrossEntropyLoss of the
same file, and the edits that put another function in its place."""

import ast
from collections.abc import Iterator, Mapping

from ridgeline.fixes.fix import EditByHand, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.source_tree import SourceTree, calls, dotted
from ridgeline.records.edit import Edit, Keyword, Replace, Top
from ridgeline.records.trial import Applied

FUNCTION = "cross_entropy"


def loss_edits(
    applied: Applied,
    source: Source,
    name: str,
    code: str,
    why: str,
    *,
    otherwise: str,
    settings: Mapping[str, str] | None = None,
) -> tuple[Edit, ...]:
    """`name`, which `code` defines and which takes what cross_entropy does. Only the call's name
    and keywords are edited: what it is given may be edited by others. `otherwise`: what to write
    there by hand."""
    found: list[Edit] = []
    for file, line in at(applied):
        call = _call(source(file), line)
        if call is None:
            raise EditByHand(
                f"no cross_entropy(…) by its name on line {line} of {file}: {otherwise}"
            )
        was = dotted(call[0].func)
        given = ("input", "target") if call[1] is not None else ()
        found.append(Top(file=file, where="after imports", text=code, why=why))
        found.append(Replace(file=file, line=line, before=was, after=name, why=why))
        own = {one: f"{was}.{one}" for one in call[1] or ()}
        for key, value in {**own, **(settings or {})}.items():
            found.append(
                Keyword(
                    file=file, line=line, call=was.rpartition(".")[2], name=key, value=value,
                    why=why, positional=given,
                )
            )  # fmt: skip
    return tuple(dict.fromkeys(found))


def _losses(tree: SourceTree) -> dict[str, list[str]]:
    """Names of CrossEntropyLoss objects, with the keywords they are made with."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value
            if dotted(made.func).rpartition(".")[2] == "CrossEntropyLoss":
                named = [one.arg for one in made.keywords if one.arg]
                weight = ["weight"] if made.args else []
                found.update({dotted(one): [*weight, *named] for one in node.targets})
    return found


def given_to_loss(tree: SourceTree) -> Iterator[ast.AST]:
    """All that stands in what a cross-entropy is given first."""
    objects = _losses(tree)
    for call in calls(tree.module):
        name = dotted(call.func)
        if name in objects or name.rpartition(".")[2] == FUNCTION:
            named = [one.value for one in call.keywords if one.arg == "input"]
            for first in (*call.args[:1], *named):
                yield from ast.walk(first)


def _call(text: str | None, line: int) -> tuple[ast.Call, list[str] | None] | None:
    """Of the function; or of a CrossEntropyLoss of this file, with the settings it was given."""
    try:
        tree = SourceTree(text or "")
    except (SyntaxError, ValueError):
        return None
    objects = _losses(tree)
    for call in calls(tree.module):
        if not call.lineno <= line <= (call.end_lineno or call.lineno):
            continue
        name = dotted(call.func)
        if name.rpartition(".")[2] == FUNCTION and len(call.args) < 4:
            return call, None
        if name in objects and len(call.args) == 2 and not call.keywords:
            return call, objects[name]
    return None
