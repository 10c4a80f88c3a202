"""Code compared by what it means to the parser: without whitespace, comments and parentheses."""

import ast
from collections.abc import Sequence

from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.tree import Statement, Tree


def expression(code: str) -> str:
    try:
        if not code.strip():
            raise SyntaxError("nothing")
        return ast.dump(ast.parse(f"({code}\n)", mode="eval"))
    except (SyntaxError, ValueError) as error:
        raise Cannot(f"{code!r} is no expression") from error


def statements(code: str) -> list[str]:
    try:
        return [ast.dump(node) for node in ast.parse(code).body]
    except (SyntaxError, ValueError) as error:
        raise Cannot("its code does not parse") from error


def of(tree: Tree, run: Sequence[Statement]) -> list[str]:
    """The statements of a block, as they would be at the top of a file."""
    code = "".join(tree.module.code_for_node(statement.node) for statement in run)
    try:
        return statements(code)
    except Cannot:
        return []


def holds(many: Sequence[str], few: Sequence[str]) -> bool:
    """`few` stands in `many` without a gap."""
    size = len(few)
    return any(list(many[at : at + size]) == list(few) for at in range(len(many) - size + 1))


def last_name(code: str) -> str:
    """The name at the end of what is called: autocast of torch.autocast("cuda")."""
    try:
        node: ast.AST = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
