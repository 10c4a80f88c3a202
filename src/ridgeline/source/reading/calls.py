"""Calls in the user's source: at which line of a measured function a certain call stands."""

import ast
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.reading.sources import Source, Sources


class SourceCall(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    name: str
    """The last part: item, to, DataLoader."""
    on: str = ""
    """What it is called on or from, as written: loss, torch.cuda."""
    text: str = ""
    """The call as written."""
    loops: int = 0
    """Loops around it in its own function."""
    keywords: tuple[str, ...] = ()
    first: str = ""
    """The first positional argument as written; "" if there is none."""


def calls_at(
    sources: Sources, place: Place | None, names: Collection[str]
) -> tuple[SourceCall, ...]:
    """Return the calls of these names in the function around a place, those in the innermost loop
    first. Calls that are known not to have been made in the traced steps are left out."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return ()
    found = [
        _call(source, node)
        for node in source.walk(source.scope(place.line))
        if isinstance(node, ast.Call) and _name(node) in names and source.ran(node) is not False
    ]
    return tuple(sorted(found, key=lambda call: (-call.loops, call.line)))


def line_of(sources: Sources, place: Place | None, wanted: Callable[[ast.AST], bool]) -> int | None:
    """The line of the one node (most looped, then first) of a function that passes; None: none."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return None
    every = (n for n in source.walk(source.scope(place.line)) if wanted(n))
    nodes = [n for n in every if source.ran(n) is not False]
    lines = [(-source.loops(n), n.lineno) for n in nodes if hasattr(n, "lineno")]
    return min(lines)[1] if lines else None


def all_calls(source: Source, names: Collection[str]) -> Iterator[SourceCall]:
    """In the whole file."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _name(node) in names:
            yield _call(source, node)


def merge_into_starred(call: ast.Call, options: dict[str, str]) -> tuple[dict[str, str], bool]:
    """Merge options into the `**settings` of a call. The settings may hold an option already, and
    then a keyword beside them would raise. In `**{**settings, "option": value}` the later one
    counts. Return the options that must still be written as keywords, and whether the call was
    changed."""
    starred = [k for k in call.keywords if k.arg is None]
    written = {k.arg for k in call.keywords}
    new = {name: value for name, value in options.items() if name not in written}
    if not starred or not new:
        return options, False
    merged = ast.Dict(
        keys=[*(None for _ in starred), *(ast.Constant(name) for name in new)],
        values=[
            *(k.value for k in starred),
            *(ast.parse(v, mode="eval").body for v in new.values()),
        ],
    )
    call.keywords = [*(k for k in call.keywords if k.arg), ast.keyword(None, merged)]
    return {name: value for name, value in options.items() if name in written}, True


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _call(source: Source, node: ast.Call) -> SourceCall:
    on = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return SourceCall(
        file=source.file,
        line=node.func.end_lineno or node.lineno,  # of `.item` in a chain over several lines
        name=_name(node),
        on=on,
        text=ast.get_source_segment(source.text, node) or ast.unparse(node),
        loops=source.loops(node),
        keywords=tuple(k.arg for k in node.keywords if k.arg),
        first=ast.unparse(node.args[0]) if node.args else "",
    )
