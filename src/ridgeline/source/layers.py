"""Layers in the user's source: where `nn.Conv2d(…)` or `nn.Embedding(…)` is written, and the
lookups of an embedding in a loop."""

import ast
from collections.abc import Collection, Iterator

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.calls import assigned_to
from ridgeline.source.file import SourceFile, SourceFiles, assigns, last_name

_EMBEDDINGS = ("Embedding", "EmbeddingBag")


class Layer(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    kind: str
    """Conv2d"""
    name: str = ""
    """The last part of what the layer is assigned to: `conv` of `self.conv = …`; "" in a list."""
    target: str = ""
    """What the layer is assigned to, as written: self.conv"""
    owner: str = ""
    """The class around the layer."""
    function: str = ""
    text: str = ""
    """The call as written."""
    arguments: tuple[str, ...] = ()
    keywords: dict[str, str] = {}

    def given(self, keyword: str, position: int) -> str:
        """Return the text of an argument; "" if it is left to its default."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        return self.arguments[position] if len(self.arguments) > position else ""


class Lookups(Struct, frozen=True, kw_only=True):
    place: Place
    """The call of the embedding."""
    at_once: str = ""
    """rows = emb(torch.cat(batch)).split([len(d) for d in batch]); "" if the loop looks up anything
    but its own variable."""


def layers(source: SourceFile, kinds: Collection[str]) -> Iterator[Layer]:
    """Yield the layers of these kinds in the order of the file."""
    calls = [call for call in source.calls if last_name(call) in kinds]
    for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        target = assigned_to(source, node)
        owner, function = source.class_of(node), source.function_of(node)
        yield Layer(
            file=source.file,
            line=node.lineno,
            kind=last_name(node),
            name=last_name(target),
            target=ast.unparse(target) if target is not None and last_name(target) else "",
            owner=owner.name if owner is not None else "",
            function=function.name if function is not None else "",
            text=source.segment(node),
            arguments=tuple(ast.unparse(a) for a in node.args),
            keywords={k.arg: ast.unparse(k.value) for k in node.keywords if k.arg},
        )


def value_of(source: SourceFile, text: str) -> int | None:
    """Return the number that an expression stands for: a literal, or a name that the file assigns a
    literal to."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        constants = [node.value for node in source.nodes
                     if isinstance(node, ast.Assign) and assigns(node, text)
                     and isinstance(node.value, ast.Constant)]  # fmt: skip
        value = constants[0].value if constants else None
    return value if isinstance(value, int) else None


def lookups_in_loop(sources: SourceFiles, place: Place | None) -> Lookups | None:
    """Return the first call of an embedding in a loop of the function around a place."""
    for source, node in sources.around(place):
        if not isinstance(node, ast.Call) or not source.loops(node) or place is None:
            continue
        if last_name(node) in {layer.name for layer in layers(source, _EMBEDDINGS)} - {""}:
            at = Place(file=place.file, line=node.lineno, function=place.function)
            return Lookups(place=at, at_once=_at_once(source, node))
    return None


def _at_once(source: SourceFile, call: ast.Call) -> str:
    loops = (ast.For, ast.ListComp, ast.GeneratorExp)
    loop = next((n for n in source.parents(call) if isinstance(n, loops)), None)
    if loop is None or len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
        return ""
    head = loop if isinstance(loop, ast.For) else loop.generators[0]
    item, over = call.args[0].id, ast.unparse(head.iter)
    if not isinstance(head.target, ast.Name) or head.target.id != item or "(" in over:
        return ""
    table = ast.unparse(call.func)
    return f"rows = {table}(torch.cat({over})).split([len({item}) for {item} in {over}])"
