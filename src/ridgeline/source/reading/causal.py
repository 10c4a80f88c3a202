"""Whether a mask is causal, by its own words or by those of the lines that make it."""

import ast
from collections.abc import Sequence

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
