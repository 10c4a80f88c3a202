"""The lines of the user's source that keep tensors from step to step."""

import ast
from collections.abc import Iterator

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import user_sources
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.kept_tensors import Kept, kept

_PUTS = frozenset({"append", "appendleft", "add", "put", "insert", "extend"})
_NUMBERS = frozenset({
    "item", "tolist", "float", "int", "len", "round", "str", "format", "join", "time",
    "perf_counter", "monotonic", "range", "copy", "keys", "values", "items",
})  # fmt: skip
_TENSOR = ".detach()"
"""A call that tells a reader of the source that a value is a tensor."""


def kept_lines(case: Case) -> tuple[Kept, ...]:
    """Return the lines that keep tensors: first those that were seen running, then those that keep
    a graph, then those that never release what they keep. A local variable of a function that
    trains nothing is left out, because it is gone before the next step ends."""
    found = [
        one for source in user_sources(case) for one in kept(source)
        if not (one.temporary or one.limited)
    ]  # fmt: skip
    return tuple(
        sorted(found, key=lambda one: (one.unseen, not one.graph, one.guessed, one.renewed))
    )


def kept_where_made(case: Case, place: Place) -> tuple[Kept, ...]:
    """Return the lines of one function that keep what is made in it, for a function that allocates
    what stays, as a trace says. An argument that is only put away was allocated by the caller. A
    call on the line (`self.seen.append(x.repeat(8))`) makes a tensor, whatever the source says."""
    source = case.sources.get(place.file)
    if source is None:
        return ()
    scope = source.scope(place.line) if place.function != "<module>" else source.module
    inside = {getattr(node, "lineno", 0) for node in source.walk(scope)}
    given = {node.arg for node in source.walk(scope) if isinstance(node, ast.arg)}
    found = {one.line: one for one in kept(source) if one.line in inside}
    for one in kept(_with_tensors(source, list(_made(source, scope)))):
        if one.line in inside and one.line not in found:
            text = source.line(one.line)
            value = one.value.removesuffix(_TENSOR)
            found[one.line] = replace(one, text=text, value=value, detached="", guessed=True)
    return tuple(one for _, one in sorted(found.items()) if one.value not in given)


def _made(source: SourceFile, scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the calls and sums whose result is put into something."""
    for node in source.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.args[-1] if node.func.attr in _PUTS and node.args else None
        else:
            subscript = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
            value = node.value if isinstance(node, ast.Assign) and subscript else None
        if isinstance(value, ast.BinOp | ast.Subscript) or (
            isinstance(value, ast.Call)
            and ast.unparse(value.func).rpartition(".")[2] not in _NUMBERS
        ):
            yield value


def _with_tensors(source: SourceFile, values: list[ast.expr]) -> SourceFile:
    """Return the source with these values marked as tensors."""
    lines = [line.encode() for line in source.lines]  # columns of the tree are bytes
    for value in sorted(values, key=lambda v: -v.col_offset):
        line = lines[value.lineno - 1]
        if value.end_lineno == value.lineno:
            start, end = value.col_offset, value.end_col_offset
            lines[value.lineno - 1] = (
                line[:start] + b"(" + line[start:end] + b")" + _TENSOR.encode() + line[end:]
            )
    return SourceFile(source.file, b"\n".join(lines).decode(errors="replace"))


def place_of_line(line: Kept | None) -> Place | None:
    return Place(file=line.file, line=line.line, function=line.function) if line else None
