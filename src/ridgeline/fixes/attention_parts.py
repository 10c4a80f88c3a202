"""What the expressions of written-out attention say: products, turned keys, scales, masks."""

import ast
from collections.abc import Sequence

from ridgeline.source.file import last_name

_PRODUCTS = ("matmul", "bmm")
_FAR_BELOW = -1e4
"""A mask filled with less than this leaves nothing of a weight in any type."""


def operands(node: ast.AST, sums: Sequence[str]) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return None
    if (
        last_name(node) == "einsum"
        and len(node.args) == 3
        and isinstance(node.args[0], ast.Constant)
    ):
        told = str(node.args[0].value).replace(" ", "")
        return (node.args[1], node.args[2]) if told in sums else None
    if last_name(node) not in _PRODUCTS:
        return None
    if len(node.args) == 2:
        return node.args[0], node.args[1]
    on = node.func.value if isinstance(node.func, ast.Attribute) else None
    return (on, node.args[0]) if on is not None and len(node.args) == 1 else None


def turned(node: ast.expr) -> ast.expr | None:
    """What is transposed for the product; None where it is not."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        numbers = [number(one) for one in node.args]
        if node.func.attr in ("transpose", "swapaxes") and sorted(map(str, numbers)) in (
            ["-1", "-2"], ["2", "3"], ["1", "2"],
        ):  # fmt: skip
            return node.func.value
        if node.func.attr == "permute" and numbers in ([0, 1, 3, 2], [0, 2, 1]):
            return node.func.value
    return None


def unscaled(node: ast.expr) -> tuple[ast.expr, str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return node.left, times("1.0", node.op, ast.unparse(node.right))
    return node, "1.0"


def times(scale: str, op: ast.operator, other: str) -> str:
    if isinstance(op, ast.Div):
        return f"{scale} / ({other})"
    return f"({other})" if scale == "1.0" else f"{scale} * ({other})"


def taking_part(mask: ast.expr) -> str:
    """masked_fill is told what to leave out, the fused operator what takes part."""
    if isinstance(mask, ast.Compare) and len(mask.ops) == 1 and isinstance(mask.ops[0], ast.Eq):
        return f"{ast.unparse(mask.left)} != {ast.unparse(mask.comparators[0])}"
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return ast.unparse(mask.operand)
    return f"~({ast.unparse(mask)})"


def dropped(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("self."):
        return f"{ast.unparse(node.func)}.p if self.training else 0.0"
    named = {k.arg: k.value for k in node.keywords}
    p = named.get("p", node.args[1] if len(node.args) > 1 else None)
    training = named.get("training", node.args[2] if len(node.args) > 2 else None)
    rate = ast.unparse(p) if p is not None else "0.5"
    return f"{rate} if {ast.unparse(training)} else 0.0" if training is not None else rate


def far_below(node: ast.expr) -> bool:
    text = ast.unparse(node).replace(" ", "")
    if "inf" in text.lower() and "-" in text:
        return True
    if ".min" in text and "finfo" in text:
        return True
    value = number(node)
    return value is not None and value <= _FAR_BELOW


def number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, int | float) else None
