"""Layers in the user's source: where `nn.Conv2d(…)` or `nn.Embedding(…)` is written, and the
lookups of an embedding in a loop; and attention written out as products and a softmax, with the one
call that replaces it."""

import ast
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.calls import assigned_to
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    assigns,
    call_line,
    keyword_value,
    last_name,
)

_EMBEDDINGS = ("Embedding", "EmbeddingBag")

_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
_RESHAPING = ("transpose", "permute", "t", "contiguous", "swapaxes", "mT", "T")
_CAUSAL_WORDS = ("tril", "triu", "causal", "square_subsequent")
_Node = ast.Call | ast.BinOp | ast.AugAssign


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


class WrittenAttention(Struct, frozen=True, kw_only=True):
    line: int
    """The line of the softmax."""
    call: str
    """out = F.scaled_dot_product_attention(q, k, v, dropout_p=…); "" if parts are missing."""
    dropout: str = ""
    """The rate at which weights are dropped, as written: self.drop.p"""
    out: str = ""
    """The name of the result."""


def find_written_attention(sources: SourceFiles, place: Place | None) -> WrittenAttention | None:
    """Return the attention that the function around a place computes step by step, or None."""
    source = sources.get(place.file) if place is not None else None
    nodes = sorted((n for _, n in sources.around(place) if isinstance(n, _Node)), key=_end)
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    softmax = next((n for n in calls if last_name(n).lower() == "softmax"), None)
    if source is None or softmax is None:
        return None
    products = [(node, pair) for node in nodes if (pair := _operands(node))]
    before = [p for p in products if _end(p[0]) <= _end(softmax)]
    after = [p for p in products if _end(p[0]) > _end(softmax)]
    if not before or not after:
        return WrittenAttention(line=call_line(softmax), call="")
    (first, (q, k)), (last, (_, v)) = before[-1], after[0]
    between = [n for n in nodes if _end(first) < _end(n) <= _end(last)]
    given = [ast.unparse(_plain(one)) for one in (q, k, v)]
    given += _mask_argument(source, [n for n in between if _end(n) <= _end(softmax)])
    dropout = _dropout(between)
    if dropout:
        given.append(f"dropout_p={dropout} if self.training else 0.0")
    out, begins = "mixed", "mixed = "
    parent = next(source.parents(last))
    if isinstance(parent, ast.Assign):
        out = ast.unparse(parent.targets[0])
        begins = f"{out} = "
    elif isinstance(parent, ast.Return):
        out, begins = "", "return "
    call = f"{begins}F.scaled_dot_product_attention({', '.join(given)})"
    return WrittenAttention(line=call_line(softmax), call=call, dropout=dropout, out=out)


def is_causal(lines: Sequence[str], mask: ast.expr) -> bool:
    """Return whether a mask is causal, by its own words or by those of the lines of its file that
    make it."""
    rows = [ast.unparse(mask)]
    for node in ast.walk(mask):
        name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if name and name not in ("self", "torch"):
            makes = (f'"{name}"', f"'{name}'", f"{name} =")
            rows += [row for row in lines if any(word in row for word in makes)]
    return any(word in row.lower() for word in _CAUSAL_WORDS for row in rows)


def _end(node: _Node) -> tuple[int, int]:
    return (node.end_lineno or 0, node.end_col_offset or 0)


def _operands(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the factors of a matrix product; None for any other node."""
    if isinstance(node, ast.BinOp):
        return (node.left, node.right) if isinstance(node.op, ast.MatMult) else None
    if not isinstance(node, ast.Call) or last_name(node) not in _PRODUCTS:
        return None
    args = node.args[1:] if last_name(node) in ("einsum", "baddbmm") else node.args
    if len(args) == 1 and isinstance(node.func, ast.Attribute):
        return node.func.value, args[0]
    return (args[0], args[1]) if len(args) == 2 else None


def _plain(node: ast.expr) -> ast.expr:
    """Return a factor without what transposes it for the product, or scales it."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _RESHAPING:
                return node
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
            node = node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            node = node.left
        else:
            return node


def _mask_argument(source: SourceFile, nodes: Sequence[_Node]) -> list[str]:
    """Return the argument for a mask. A boolean mask of the fused operator is True where a position
    takes part, that of masked_fill where it does not; a float one is added."""
    for node in nodes:
        mask: ast.expr | None = None
        negated = False
        match node:
            case ast.Call(args=[first, *_]):
                negated = last_name(node).startswith("masked_fill")
                mask = first if negated or last_name(node) == "where" else None
            case ast.BinOp(op=ast.Add()):
                mask = node.right
            case ast.AugAssign(op=ast.Add()):
                mask = node.value
        if mask is None:
            continue
        text = ast.unparse(mask)
        if is_causal(source.lines, mask):
            return ["is_causal=True"]
        if not negated:
            return [f"attn_mask={text}"]
        if isinstance(mask, ast.Compare) and isinstance(mask.ops[0], ast.Eq):
            return [f"attn_mask={ast.unparse(mask.left)} != {ast.unparse(mask.comparators[0])}"]
        return [f"attn_mask=~{text}" if isinstance(mask, ast.Name) else f"attn_mask=~({text})"]
    return []


def _dropout(nodes: Sequence[_Node]) -> str:
    for node in nodes:
        if isinstance(node, ast.Call) and "drop" in last_name(node).lower():
            if isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("self."):
                return f"{ast.unparse(node.func)}.p"
            rate = keyword_value(node, "p") or (node.args[1] if len(node.args) > 1 else None)
            return ast.unparse(rate) if rate is not None else "0.5"
    return ""
