"""Edits at a model's lines: after the statement that makes it, before the one that calls it, and
around the call."""

from collections.abc import Mapping, Sequence

from ridgeline.fixes.fix import EditByHand, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.precision import HALF
from ridgeline.records.edit import Edit, Import, Insert, Keyword
from ridgeline.records.trial import Applied
from ridgeline.source.file import last_name, parsed
from ridgeline.source.losses import loss_edits
from ridgeline.source.mixed_precision import cast_edits
from ridgeline.source.models import called, made
from ridgeline.source.program import program_files


def after_made(
    applied: Applied, source: Source, statement: str, why: str, kind: str = ""
) -> tuple[Edit, ...]:
    """`statement` with {name} for the model."""
    found: list[Edit] = []
    for file, line, text in _read(applied, source, statement.format(name="model")):
        others = [(str(one), source(str(one)) or "") for one in program_files(source, file)]
        where = made(text, line, kind, others)
        if isinstance(where, str):
            raise _in_words(where, "after the model is made", statement.format(name="model"))
        home = where.file or file
        put = statement.format(name=where.name)
        found.append(Insert(file=home, line=where.line, where="after", text=put, why=why))
        found += _torch(home, put)
    return tuple(dict.fromkeys(found))


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
            put = statement.format(given=name)
            found.append(Insert(file=file, line=where.first, where="before", text=put, why=why))
            found += _torch(file, put)
    return tuple(dict.fromkeys(found))


def around_call(
    applied: Applied, source: Source, header: str, why: str, kind: str = ""
) -> tuple[Edit, ...]:
    """The model's calls in `with {header}:`, what they return in float32 again."""
    found: list[Edit] = []
    for file, line, _ in _read(applied, source, f"with {header}:"):
        edits = cast_edits(file, source, line, header, why, kind, half=HALF in applied.what)
        if isinstance(edits, str):
            raise _in_words(edits, "around the model's call", f"with {header}:")
        found += edits
    return tuple(dict.fromkeys(found))


def cross_entropy_edits(
    applied: Applied,
    source: Source,
    name: str,
    code: str,
    why: str,
    *,
    otherwise: str,
    settings: Mapping[str, str] | None = None,
) -> tuple[Edit, ...]:
    """Return the edits that call `name`, which `code` defines, in the place of cross_entropy.
    `otherwise` says what to write by hand where no such call is found."""
    found: list[Edit] = []
    for file, line in at(applied):
        edits = loss_edits(file, source(file) or "", line, name, code, why, settings or {})
        if not edits:
            raise EditByHand(
                f"no cross_entropy(…) by its name on line {line} of {file}: {otherwise}"
            )
        found += edits
    return tuple(dict.fromkeys(found))


def optimizer_keyword(applied: Applied, source: Source, name: str, why: str) -> tuple[Edit, ...]:
    """Of the optimizers made at those lines, which may be of several kinds."""
    kinds = [one.partition("(")[0] for one in applied.what.split("; ")]
    found = []
    for file, line in at(applied):
        here = kinds_at(source(file) or "", line, kinds) or kinds[:1]
        found += [
            Keyword(file=file, line=line, call=kind, name=name, value="True", why=why)
            for kind in here
        ]
    return tuple(found)


def kinds_at(text: str, line: int, kinds: Sequence[str]) -> list[str]:
    """Those of them that are called on that line."""
    tree = parsed(text)
    names = [last_name(call) for call in tree.calls_on_line(line)] if tree is not None else []
    return [kind for kind in dict.fromkeys(kinds) if kind in names]


def _torch(file: str, code: str) -> list[Edit]:
    return [Import(file=file, text="import torch")] if "torch." in code else []


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


def _in_words(why: str, where: str, wanted: str) -> EditByHand:
    return EditByHand(f"{why}; write {where}: {wanted}")
