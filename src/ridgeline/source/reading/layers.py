"""Layers in the user's source: where `nn.Conv2d(…)` or `nn.Embedding(…)` is written."""

import ast
from collections.abc import Collection, Iterator

from msgspec import Struct

from ridgeline.source.reading.assigned import assigned_to
from ridgeline.source.reading.calls import merge_into_starred
from ridgeline.source.reading.sources import Source


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


def layers(source: Source, kinds: Collection[str]) -> Iterator[Layer]:
    """In the order of the file."""
    found = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and _kind(n) in kinds]
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
        to = assigned_to(source, node)
        yield Layer(
            file=source.file,
            line=node.lineno,
            kind=_kind(node),
            name=_name(to),
            target=ast.unparse(to) if to is not None and _name(to) else "",
            owner=_around(source, node, ast.ClassDef),
            function=_around(source, node, ast.FunctionDef),
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


def value_of(source: Source, text: str) -> int | None:
    """The number an expression stands for: a literal, or a name of the file that is one, or the
    same in a tuple of names."""
    try:
        value = ast.literal_eval(text)
        return value if isinstance(value, int) else None
    except (ValueError, SyntaxError):
        pass
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and any(isinstance(t, ast.Name) and t.id == text for t in node.targets)
        ):
            return node.value.value if isinstance(node.value.value, int) else None
    return None


def _kind(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _name(target: ast.expr | None) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _around(source: Source, node: ast.AST, kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> str:
    for parent in source.parents(node):
        if isinstance(parent, kind):
            return parent.name
    return ""
