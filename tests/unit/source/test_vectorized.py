"""A loop over rows, written without the loop."""

import ast

import pytest

from ridgeline.source.vectorized import for_all_rows


def rewritten(text: str) -> str:
    node = ast.parse(text).body[0]
    if isinstance(node, ast.For):
        return for_all_rows(node.iter, node.target, list(node.body))
    assert isinstance(node, ast.Assign)
    assert isinstance(node.value, ast.ListComp)
    first = node.value.generators[0]
    return for_all_rows(first.iter, first.target, [node.value.elt])


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for i in range(t.size(0)):\n    res.append(t[i] * 2)", "res = t * 2"),
        ("for i in range(len(a)):\n    out.append(a[i] * b[i] + 1)", "out = a * b + 1"),
        ("for i in range(n):\n    res.append(t[i] * 2)", "res = t[:n] * 2"),
        ("res = [x[i].tanh() for i in range(x.shape[0])]", "x.tanh()"),
        ("for i in range(1, n):\n    res.append(t[i] * 2)", ""),
        ("for i in range(n):\n    res.append(t[i] * i)", ""),
        ("for i in range(n):\n    y = t[i]\n    res.append(y)", ""),
        ("for row in t:\n    res.append(row * 2)", ""),
        ("for i in range(n):\n    total.add_(t[i])", ""),
    ],
)
def test_what_a_loop_over_rows_computes(loop: str, expected: str) -> None:
    assert rewritten(loop) == expected
