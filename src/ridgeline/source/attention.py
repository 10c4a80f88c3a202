"""Attention written out in the user's source: its products and its softmax, and the one call that
would do."""

import ast
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile, SourceFiles, call_line, keyword_value, last_name

_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
_RESHAPING = ("transpose", "permute", "t", "contiguous", "swapaxes", "mT", "T")
_CAUSAL_WORDS = ("tril", "triu", "causal", "square_subsequent")
_Node = ast.Call | ast.BinOp | ast.AugAssign


class WrittenAttention(Struct, frozen=True, kw_only=True):
    line: int
    """The line of the softmax."""
    call: str
    """out = F.scaled_dot_product_attention(q, k, v, dropout_p=…); "" if parts are missing."""
    dropout: str = ""
    """The rate at which weights are dropped, as written: self.drop.p"""
    out: str = ""
    """The name of the result."""


def written_attention(sources: SourceFiles, place: Place | None) -> WrittenAttention | None:
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
