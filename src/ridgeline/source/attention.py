"""Attention written out in the user's source: its products and its softmax, and the one call that
would do."""

import ast
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    last_name,
)

_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
_TURNS = ("transpose", "permute", "t", "contiguous", "swapaxes", "mT", "T")


class WrittenAttention(Struct, frozen=True, kw_only=True):
    line: int
    """Of the softmax."""
    call: str
    """out = F.scaled_dot_product_attention(q, k, v, dropout_p=…); "" where parts are missing."""
    dropout: str = ""
    """What the weights are dropped with: self.drop.p"""
    out: str = ""
    """What the result is called."""


def written_attention(sources: SourceFiles, place: Place | None) -> WrittenAttention | None:
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return None
    nodes = sorted(
        (n for n in source.walk(source.scope(place.line)) if isinstance(n, _Node)),
        key=_ends,
    )
    softmax = [n for n in nodes if isinstance(n, ast.Call) and last_name(n).lower() == "softmax"]
    if not softmax:
        return None
    at = softmax[0]
    line = at.func.end_lineno or at.lineno
    pairs = [(n, _operands(n)) for n in nodes]
    products = [(n, pair) for n, pair in pairs if pair]
    before = [p for p in products if _ends(p[0]) <= _ends(at)]
    after = [p for p in products if _ends(p[0]) > _ends(at)]
    if not before or not after:
        return WrittenAttention(line=line, call="")
    (_, (q, k)), (last, (_, v)) = before[-1], after[0]
    given = [ast.unparse(_straight(one)) for one in (q, k, v)]
    between = [n for n in nodes if _ends(before[-1][0]) < _ends(n) <= _ends(last)]
    mask = _mask(source, [n for n in between if _ends(n) <= _ends(at)])
    dropout = _dropout(between)
    if dropout:
        mask = [*mask, f"dropout_p={dropout} if self.training else 0.0"]
    call = f"F.scaled_dot_product_attention({', '.join([*given, *mask])})"
    out, begins = _result(source, last)
    return WrittenAttention(line=line, call=f"{begins}{call}", dropout=dropout, out=out)


_Node = ast.Call | ast.BinOp | ast.AugAssign


def _ends(node: _Node) -> tuple[int, int]:
    return (node.end_lineno or 0, node.end_col_offset or 0)


def _operands(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp):
        return (node.left, node.right) if isinstance(node.op, ast.MatMult) else None
    if not isinstance(node, ast.Call) or last_name(node) not in _PRODUCTS:
        return None
    args = node.args[1:] if last_name(node) in ("einsum", "baddbmm") else node.args
    on = node.func.value if isinstance(node.func, ast.Attribute) else None
    if len(args) == 1 and on is not None:
        return on, args[0]
    return (args[0], args[1]) if len(args) == 2 else None


def _straight(node: ast.expr) -> ast.expr:
    """Without what turns it for the product, or scales it."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _TURNS:
                return node
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
            node = node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            node = node.left
        else:
            return node


def _mask(source: SourceFile, nodes: Sequence[_Node]) -> list[str]:
    """A boolean mask of the fused operator is True where a position takes part, that of
    masked_fill where it does not; a float one is added."""
    for node in nodes:
        mask, negated = _masking(node)
        if mask is None:
            continue
        text = ast.unparse(mask)
        if causal(source.lines, mask):
            return ["is_causal=True"]
        if not negated:
            return [f"attn_mask={text}"]
        if isinstance(mask, ast.Compare) and isinstance(mask.ops[0], ast.Eq):
            return [f"attn_mask={ast.unparse(mask.left)} != {ast.unparse(mask.comparators[0])}"]
        return [f"attn_mask=~{text}" if isinstance(mask, ast.Name) else f"attn_mask=~({text})"]
    return []


def _masking(node: _Node) -> tuple[ast.expr | None, bool]:
    """What masks the scores, and whether it says what to leave out."""
    if isinstance(node, ast.Call) and node.args:
        if last_name(node).startswith("masked_fill"):
            return node.args[0], True
        if last_name(node) == "where":
            return node.args[0], False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return node.right, False
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.value, False
    return None, False


def _dropout(nodes: Sequence[_Node]) -> str:
    for node in nodes:
        if isinstance(node, ast.Call) and "drop" in last_name(node).lower():
            if isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("self."):
                return f"{ast.unparse(node.func)}.p"
            given = [k.value for k in node.keywords if k.arg == "p"] + node.args[1:2]
            return ast.unparse(given[0]) if given else "0.5"
    return ""


def _result(source: SourceFile, node: ast.AST) -> tuple[str, str]:
    """What the last product is called, and how its statement begins."""
    for parent in source.parents(node):
        if isinstance(parent, ast.Assign) and parent.value is node:
            name = ast.unparse(parent.targets[0])
            return name, f"{name} = "
        if isinstance(parent, ast.Return) and parent.value is node:
            return "", "return "
        if isinstance(parent, ast.stmt):
            break
    return "mixed", "mixed = "


_WORDS = ("tril", "triu", "causal", "square_subsequent")


def causal(lines: Sequence[str], mask: ast.expr) -> bool:
    """`lines`: of the file it is in."""
    rows = [ast.unparse(mask)]
    for node in ast.walk(mask):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name and name not in ("self", "torch"):
            makes = (f'"{name}"', f"'{name}'", f"{name} =")
            rows += [row for row in lines if any(word in row for word in makes)]
    return any(word in row.lower() for word in _WORDS for row in rows)
