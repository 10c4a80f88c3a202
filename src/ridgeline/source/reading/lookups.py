"""Lookups of an embedding in a loop of the user's source, and the one lookup that would do."""

import ast

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.reading.layers import layers
from ridgeline.source.reading.sources import Source, Sources

_LOOPS = ast.For | ast.ListComp | ast.GeneratorExp
_TABLES = ("Embedding", "EmbeddingBag")


class Lookups(Struct, frozen=True, kw_only=True):
    place: Place
    """Of the call."""
    at_once: str = ""
    """rows = emb(torch.cat(batch)).split([len(d) for d in batch]); "" where the loop does not look
    up just what it goes through."""


def lookups_in_loop(sources: Sources, place: Place | None) -> Lookups | None:
    """The call of a table in a loop of the function a place names."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return None
    tables = {layer.name for layer in layers(source, _TABLES) if layer.name}
    for node in source.walk(source.scope(place.line)):
        if isinstance(node, ast.Call) and called_name(node) in tables and source.loops(node):
            at = Place(file=place.file, line=node.lineno, function=place.function)
            return Lookups(place=at, at_once=_at_once(source, node))
    return None


def called_name(call: ast.Call) -> str:
    """The last part of what is called: items, of self.items(i)."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _at_once(source: Source, call: ast.Call) -> str:
    loop = next((n for n in source.parents(call) if isinstance(n, _LOOPS)), None)
    if loop is None or len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
        return ""
    head = loop if isinstance(loop, ast.For) else loop.generators[0]
    one = call.args[0].id
    if not isinstance(head.target, ast.Name) or head.target.id != one:
        return ""
    over, table = ast.unparse(head.iter), ast.unparse(call.func)
    if "(" in over:
        return ""
    return f"rows = {table}(torch.cat({over})).split([len({one}) for {one} in {over}])"
