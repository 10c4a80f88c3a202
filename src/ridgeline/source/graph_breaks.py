"""The call that breaks a compiled graph: on the line execution left it, or in a function called
there; and the line without it."""

import ast
from collections.abc import Collection, Sequence

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    Function,
    SourceFile,
    SourceFiles,
    dotted_name,
)

NUMBERS = ("item", "tolist", "float", "int", "bool")
"""Of a tensor, each asks it for a number, which Dynamo calls `Tensor.item()`."""


class Breaking(Struct, frozen=True, kw_only=True):
    place: Place
    called: str
    """.item(), float()"""
    text: str
    """The statement as written."""
    without: str = ""
    """Its statement with a tensor in the place of the number; "" where Python needs a number."""


def breaking(
    sources: SourceFiles, place: Place, names: Collection[str], frames: Sequence[Place]
) -> Breaking | None:
    """`frames`: functions that were compiled by themselves and broke likewise."""
    source = sources.get(place.file)
    if source is None:
        return None
    calls = source.calls_on_line(place.line)
    here = [call for call in calls if _fits(call, names)]
    if here:
        return _told(source, here[0])
    called = {dotted_name(call.func).rpartition(".")[2] for call in calls} - {""}
    for file in dict.fromkeys((place.file, *(frame.file for frame in frames))):
        other = sources.get(file)
        for node in ast.walk(other.module) if other is not None else ():
            if isinstance(node, Function) and node.name in called and other is not None:
                inside = [n for n in other.walk(node) if isinstance(n, ast.Call)]
                hit = next((call for call in inside if _fits(call, names)), None)
                if hit is not None:
                    return _told(other, hit)
    return None


def _fits(call: ast.Call, names: Collection[str]) -> bool:
    """A method of these names, or Python's own function of something that is no literal."""
    name = dotted_name(call.func)
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in names and call.func.attr not in ("float", "int", "bool")
    return name in names and not (name in NUMBERS and not _computed(call))


def _computed(call: ast.Call) -> bool:
    return len(call.args) == 1 and not isinstance(call.args[0], ast.Constant)


def _told(source: SourceFile, call: ast.Call) -> Breaking:
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted_name(call.func)
    scope = source.scope(call.lineno)
    line = call.func.end_lineno or call.lineno  # of `.item` in a chain over several lines
    statement = source.statement_of(call)
    simple = statement is not None and not hasattr(statement, "body")
    text = source.written(statement) if statement is not None and simple else source.line(line)
    without = ""
    if name in ("item", "float", "int") and isinstance(statement, ast.Assign | ast.AugAssign):
        kept = call.func.value if isinstance(call.func, ast.Attribute) else call.args[0]
        mine, inner = (ast.get_source_segment(source.text, n) or "" for n in (call, kept))
        without = text.replace(mine, inner, 1) if mine and mine in text else ""
    return Breaking(
        place=Place(file=source.file, line=line, function=str(getattr(scope, "name", ""))),
        called=f".{name}()" if method else f"{name}()",
        text=text.partition("  #")[0],
        without=without.partition("  #")[0],
    )
