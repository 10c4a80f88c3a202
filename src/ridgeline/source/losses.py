"""Calls of cross-entropy in the user's source, by the function's name or through a CrossEntropyLoss
of the same file, and the edits that put another function in its place."""

import ast
from collections.abc import Iterator, Mapping

from ridgeline.records.edit import Edit, Keyword, Replace, Top
from ridgeline.source.file import SourceFile, dotted_name, keyword_value, last_name, parsed

_FUNCTION = "cross_entropy"
_CLASS = "CrossEntropyLoss"


def loss_edits(
    file: str, text: str, line: int, name: str, code: str, why: str, settings: Mapping[str, str]
) -> tuple[Edit, ...]:
    """Return the edits that call `name`, which `code` defines and which takes what cross_entropy
    does, in its place; none if no cross_entropy is called by its name on that line. Only the call's
    name and keywords are edited: its arguments may be edited by others."""
    source = parsed(text)
    found = _loss_call(source, line) if source is not None else None
    if found is None:
        return ()
    call, own_settings = found
    was = dotted_name(call.func)
    positional = ("input", "target") if own_settings is not None else ()
    own = {one: f"{was}.{one}" for one in own_settings or ()}
    return (
        Top(file=file, where="after imports", text=code, why=why),
        Replace(file=file, line=line, before=was, after=name, why=why),
        *(
            Keyword(
                file=file, line=line, call=last_name(call), name=key, value=value, why=why,
                positional=positional,
            )
            for key, value in {**own, **settings}.items()
        ),
    )  # fmt: skip


def given_to_loss(source: SourceFile) -> Iterator[ast.AST]:
    """Yield every node of the logits that a cross-entropy is given."""
    objects = _loss_objects(source)
    for call in source.calls:
        if dotted_name(call.func) in objects or last_name(call) == _FUNCTION:
            logits = keyword_value(call, "input")
            for node in (*call.args[:1], *([logits] if logits is not None else [])):
                yield from ast.walk(node)


def _loss_objects(source: SourceFile) -> dict[str, list[str]]:
    """Return the names of CrossEntropyLoss objects, with the keywords they are made with."""
    found: dict[str, list[str]] = {}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value
            if last_name(made) == _CLASS:
                weight = ["weight"] if made.args else []
                keywords = [keyword.arg for keyword in made.keywords if keyword.arg]
                found.update({dotted_name(target): [*weight, *keywords] for target in node.targets})
    return found


def _loss_call(source: SourceFile, line: int) -> tuple[ast.Call, list[str] | None] | None:
    """Return the call of the function, with None; or that of a CrossEntropyLoss of this file, with
    the settings it was made with."""
    objects = _loss_objects(source)
    for call in source.calls_on_line(line):
        name = dotted_name(call.func)
        if last_name(call) == _FUNCTION and len(call.args) < 4:
            return call, None
        if name in objects and len(call.args) == 2 and not call.keywords:
            return call, objects[name]
    return None
