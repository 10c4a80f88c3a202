"""Calls in the user's source: where they stand, what they are given, what their result is called,
and the same call with one more argument."""

import ast
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    last_name,
)


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
    sources: SourceFiles, place: Place | None, names: Collection[str]
) -> tuple[SourceCall, ...]:
    """Return the calls of these names in the function around a place, those in the innermost loop
    first. Calls that are known not to have been made in the traced steps are left out."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return ()
    found = [
        _call(source, node)
        for node in source.walk(source.scope(place.line))
        if isinstance(node, ast.Call) and last_name(node) in names and source.ran(node) is not False
    ]
    return tuple(sorted(found, key=lambda call: (-call.loops, call.line)))


def line_of(
    sources: SourceFiles, place: Place | None, wanted: Callable[[ast.AST], bool]
) -> int | None:
    """The line of the one node (most looped, then first) of a function that passes; None: none."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return None
    every = (n for n in source.walk(source.scope(place.line)) if wanted(n))
    nodes = [n for n in every if source.ran(n) is not False]
    lines = [(-source.loops(n), n.lineno) for n in nodes if hasattr(n, "lineno")]
    return min(lines)[1] if lines else None


def all_calls(source: SourceFile, names: Collection[str]) -> Iterator[SourceCall]:
    """In the whole file."""
    for node in ast.walk(source.module):
        if isinstance(node, ast.Call) and last_name(node) in names:
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


def _call(source: SourceFile, node: ast.Call) -> SourceCall:
    on = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return SourceCall(
        file=source.file,
        line=node.func.end_lineno or node.lineno,  # of `.item` in a chain over several lines
        name=last_name(node),
        on=on,
        text=ast.get_source_segment(source.text, node) or ast.unparse(node),
        loops=source.loops(node),
        keywords=tuple(k.arg for k in node.keywords if k.arg),
        first=ast.unparse(node.args[0]) if node.args else "",
    )


def target_of(sources: SourceFiles, call: SourceCall) -> str:
    """net, of `net = DDP(…)`; "" where the call is a part of something else, or returned."""
    source = sources.get(call.file)
    return _target(source, call) if source is not None else ""


def start_of_statement(sources: SourceFiles, call: SourceCall) -> str:
    """Return how a line begins that replaces the call: `y = `, `return `; "" inside an
    expression."""
    source = sources.get(call.file)
    if source is None:
        return ""
    if any(isinstance(n, ast.Return) and _is(n.value, call) for n in ast.walk(source.module)):
        return "return "
    name = _target(source, call)
    return f"{name} = " if name else ""


def assigned_to(source: SourceFile, node: ast.AST) -> ast.expr | None:
    """What an expression is assigned to, in a tuple too; None: it is a part of something else."""
    above = list(source.parents(node))[:2]
    parent = above[0] if above else None
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return parent.targets[0]
    if isinstance(parent, ast.AnnAssign):
        return parent.target
    outer = above[1] if len(above) > 1 else None
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Assign):
        to = outer.targets[0]
        if isinstance(to, ast.Tuple) and len(to.elts) == len(parent.elts):
            return to.elts[[id(one) for one in parent.elts].index(id(node))]
    return None


def _target(source: SourceFile, call: SourceCall) -> str:
    for node in ast.walk(source.module):
        if isinstance(node, ast.Call) and _is(node, call):
            to = assigned_to(source, node)
            return ast.unparse(to) if isinstance(to, ast.Name | ast.Attribute) else ""
    return ""


def _is(node: ast.AST | None, call: SourceCall) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == call.name and (node.func.end_lineno or node.lineno) == call.line
