"""Layers in the user's source: where `nn.Conv2d(…)` or `nn.Embedding(…)` is written, and the
lookups of an embedding in a loop."""

import ast
from collections.abc import Collection, Iterator

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.calls import assigned_to, merge_into_starred
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    last_name,
)


class Layer(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    kind: str
    """Conv2d"""
    name: str = ""
    """What it is assigned to: conv, of `self.conv = …`; "" where it stands in a list."""
    target: str = ""
    """The same as written: self.conv"""
    owner: str = ""
    """The class it is in."""
    function: str = ""
    text: str = ""
    """The call as written."""
    arguments: tuple[str, ...] = ()
    keywords: dict[str, str] = {}

    def given(self, keyword: str, position: int) -> str:
        """An argument's text; "" where it is left to its default."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        return self.arguments[position] if len(self.arguments) > position else ""


def layers(source: SourceFile, kinds: Collection[str]) -> Iterator[Layer]:
    """In the order of the file."""
    found = [
        n for n in ast.walk(source.module) if isinstance(n, ast.Call) and last_name(n) in kinds
    ]
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
        to = assigned_to(source, node)
        yield Layer(
            file=source.file,
            line=node.lineno,
            kind=last_name(node),
            name=last_name(to),
            target=ast.unparse(to) if to is not None and last_name(to) else "",
            owner=_name_around(source, node, ast.ClassDef),
            function=_name_around(source, node, ast.FunctionDef),
            text=ast.get_source_segment(source.text, node) or ast.unparse(node),
            arguments=tuple(ast.unparse(a) for a in node.args),
            keywords={k.arg: ast.unparse(k.value) for k in node.keywords if k.arg},
        )


def with_argument(text: str, argument: str) -> str:
    """Return a call as written, with one more argument name=value."""
    name, _, value = argument.partition("=")
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        call = None
    if isinstance(call, ast.Call) and merge_into_starred(call, {name: value})[1]:
        return ast.unparse(ast.fix_missing_locations(call))
    inner = text.rstrip()[:-1].rstrip().rstrip(",")
    return f"{inner}{'' if inner.endswith('(') else ', '}{argument})"


def value_of(source: SourceFile, text: str) -> int | None:
    """The number an expression stands for: a literal, or a name of the file that is one, or the
    same in a tuple of names."""
    try:
        value = ast.literal_eval(text)
        return value if isinstance(value, int) else None
    except (ValueError, SyntaxError):
        pass
    for node in ast.walk(source.module):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and any(isinstance(t, ast.Name) and t.id == text for t in node.targets)
        ):
            return node.value.value if isinstance(node.value.value, int) else None
    return None


def _name_around(
    source: SourceFile, node: ast.AST, kind: type[ast.ClassDef] | type[ast.FunctionDef]
) -> str:
    for parent in source.parents(node):
        if isinstance(parent, kind):
            return parent.name
    return ""


_LOOPS = ast.For | ast.ListComp | ast.GeneratorExp
_TABLES = ("Embedding", "EmbeddingBag")


class Lookups(Struct, frozen=True, kw_only=True):
    place: Place
    """Of the call."""
    at_once: str = ""
    """rows = emb(torch.cat(batch)).split([len(d) for d in batch]); "" where the loop does not look
    up just what it goes through."""


def lookups_in_loop(sources: SourceFiles, place: Place | None) -> Lookups | None:
    """The call of a table in a loop of the function a place names."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return None
    tables = {layer.name for layer in layers(source, _TABLES) if layer.name}
    for node in source.walk(source.scope(place.line)):
        if isinstance(node, ast.Call) and last_name(node) in tables and source.loops(node):
            at = Place(file=place.file, line=node.lineno, function=place.function)
            return Lookups(place=at, at_once=_at_once(source, node))
    return None


def _at_once(source: SourceFile, call: ast.Call) -> str:
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
