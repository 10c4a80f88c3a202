"""The call that breaks a compiled graph, on the line where execution left the graph or in a
function called there; and the line without it."""

import ast
from collections.abc import Collection, Sequence

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile, SourceFiles, call_line, last_name

NUMBERS = ("item", "tolist", "float", "int", "bool")
"""Calls that ask a tensor for a number, which Dynamo all names `Tensor.item()`."""
_BUILTIN_NUMBERS = ("float", "int", "bool")


class BreakingCall(Struct, frozen=True, kw_only=True):
    place: Place
    called: str
    """.item(), float()"""
    text: str
    """The statement as written."""
    without: str = ""
    """The statement with a tensor in the place of the number; "" if Python needs a number."""


def breaking_call(
    sources: SourceFiles, place: Place, names: Collection[str], frames: Sequence[Place]
) -> BreakingCall | None:
    """Return the call of one of these names that breaks the graph at a place. `frames` are
    functions that were compiled by themselves and broke for the same reason."""
    source = sources.get(place.file)
    if source is None:
        return None
    calls = source.calls_on_line(place.line)
    for call in calls:
        if _breaks(call, names):
            return _described(source, call)
    called = {last_name(call) for call in calls} - {""}
    files = dict.fromkeys((place.file, *(frame.file for frame in frames)))
    for other in filter(None, map(sources.get, files)):
        for function in other.functions:
            if function.name in called:
                for node in other.walk(function):
                    if isinstance(node, ast.Call) and _breaks(node, names):
                        return _described(other, node)
    return None


def _breaks(call: ast.Call, names: Collection[str]) -> bool:
    """Return whether a call is a method of these names, or Python's own function of something that
    is no literal."""
    name = last_name(call)
    if isinstance(call.func, ast.Attribute):
        return name in names and name not in _BUILTIN_NUMBERS
    computed = len(call.args) == 1 and not isinstance(call.args[0], ast.Constant)
    return name in names and (computed or name not in NUMBERS)


def _described(source: SourceFile, call: ast.Call) -> BreakingCall:
    name, line, statement = last_name(call), call_line(call), source.statement_of(call)
    compound = hasattr(statement, "body")
    text = source.line(line) if compound else source.written(statement)
    tensor, without = call.args[0] if call.args else None, ""
    if isinstance(call.func, ast.Attribute):
        tensor = call.func.value
    simple = isinstance(statement, ast.Assign | ast.AugAssign)
    if name in ("item", "float", "int") and simple and tensor is not None:
        whole = source.segment(call)
        without = text.replace(whole, source.segment(tensor), 1) if whole in text else ""
    return BreakingCall(
        place=Place(file=source.file, line=line, function=source.function_name(call.lineno)),
        called=f".{name}()" if isinstance(call.func, ast.Attribute) else f"{name}()",
        text=text.partition("  #")[0],
        without=without.partition("  #")[0],
    )
