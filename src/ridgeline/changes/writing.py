"""Edits at a model's lines: after the statement that makes it, before the one that calls it, and
around those from the call to the loss."""

from ridgeline.changes.change import NotWritten, Source
from ridgeline.changes.model_lines import called, made, to_backward
from ridgeline.changes.places import at
from ridgeline.records.edit import Edit, Import, Insert, Within
from ridgeline.records.trial import Applied


def after_made(
    applied: Applied, source: Source, statement: str, why: str, kind: str = ""
) -> tuple[Edit, ...]:
    """`statement` with {name} for the model."""
    found: list[Edit] = []
    for file, line, text in _read(applied, source, statement.format(name="model")):
        where = made(text, line, kind)
        if isinstance(where, str):
            raise _in_words(where, "after the model is made", statement.format(name="model"))
        edit = Insert(
            file=file, line=where.line, where="after", text=statement.format(name=where.name),
            why=why,
        )  # fmt: skip
        if edit not in found:
            found.append(edit)
    return tuple(found)


def before_call(
    applied: Applied, source: Source, statement: str, why: str, kind: str = ""
) -> tuple[Edit, ...]:
    """`statement`, with {given} for the name the model is called with first; nothing, where it has
    that and the model is called with something without a name."""
    found: list[Edit] = []
    for file, line, text in _read(applied, source, statement):
        where = called(text, line, kind)
        if isinstance(where, str):
            raise _in_words(where, "before the model is called", statement)
        name = where.given[0] if where.given else ""
        if name or "{given}" not in statement:
            edit = Insert(
                file=file, line=where.first, where="before", text=statement.format(given=name),
                why=why,
            )  # fmt: skip
            found.append(edit)
    return tuple(dict.fromkeys(found))


def around_loss(
    applied: Applied, source: Source, header: str, why: str, kind: str = ""
) -> tuple[Edit, ...]:
    found: list[Edit] = []
    for file, line, text in _read(applied, source, f"with {header}:"):
        lines = to_backward(text, line, kind)
        if isinstance(lines, str):
            raise _in_words(lines, "around the model's call and the loss", f"with {header}:")
        found.append(Within(file=file, first=lines[0], last=lines[1], header=header, why=why))
        found.append(Import(file=file, text="import torch"))
    return tuple(dict.fromkeys(found))


def _read(applied: Applied, source: Source, wanted: str) -> list[tuple[str, int, str]]:
    places = at(applied)
    if not places:
        raise _in_words("no line of the program's own calls the model", "in its set-up", wanted)
    found = []
    for file, line in places:
        text = source(file)
        if text is None:
            raise _in_words(f"{file} cannot be read", f"near its line {line}", wanted)
        found.append((file, line, text))
    return found


def _in_words(why: str, where: str, wanted: str) -> NotWritten:
    return NotWritten(f"{why}; write {where}: {wanted}")
