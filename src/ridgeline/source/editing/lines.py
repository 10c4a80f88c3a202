"""Statements of ours as lines of the file: its indentation, its newlines, the reason above them."""

import libcst as cst

from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.comment import comment
from ridgeline.source.editing.draft import Draft
from ridgeline.source.editing.splice import DEEPER, Rank, Splice
from ridgeline.source.editing.tree import Block, Statement, Tree

_UNIT = 4  # how the texts we are given are indented


def written(draft: Draft, text: str, why: str, indent: str, newline: str) -> str:
    """The comment and the code, each line ended."""
    try:
        ours = Tree(text.strip("\r\n") + "\n")
    except cst.ParserSyntaxError as error:
        raise Cannot("its code does not parse") from error
    out = [f"{indent}{DEEPER}{comment(why, draft.encoding)}"]
    for number in range(1, ours.count):
        line = ours.line(number)
        if ours.in_string(number) or not line.strip():
            out.append(line)
            continue
        space = len(line) - len(line.lstrip(" "))
        deep = draft.tree.module.default_indent * (space // _UNIT) + " " * (space % _UNIT)
        out.append(f"{indent}{DEEPER}{deep}{line.lstrip(' ')}")
    return "".join(line + newline for line in out)


def put(tree: Tree, line: int, text: str, rank: Rank) -> Splice:
    """Lines put before that line; a file that does not end its last line goes on not doing so."""
    offset = tree.start_of(line)
    if offset == len(tree.text) and tree.text and not tree.text.endswith(("\n", "\r")):
        newline = tree.module.default_newline
        text = newline + text.removesuffix(newline)
    return Splice(start=offset, end=offset, text=text, rank=rank)


def line_before(tree: Tree, statement: Statement) -> int:
    """Where lines before a statement go: above the comments that belong to it, save those that open
    the file (interpreter, encoding, licence) or a cell."""
    line = statement.first
    indent = tree.indent(line)
    if line > 1 and tree.line(line - 1).endswith("\\") and not tree.own_comment(line - 1):
        raise Cannot("its line goes on from the one above")
    if statement.index == 0 and statement.block.owner is None:
        return line
    while (own := tree.own_comment(line - 1)) and tree.indent(line - 1) == indent:
        if own.startswith(("# %%", "# In[")):
            break
        line -= 1
    return line


def line_after(tree: Tree, statement: Statement) -> int:
    """Below the comments that end its body."""
    line = statement.last + 1
    indent = tree.indent(statement.first)
    while tree.own_comment(line) and len(tree.indent(line)) > len(indent):
        line += 1
    return line


def opening(block: Block) -> int:
    """How many statements at its start must stay there: a docstring, `from __future__` imports."""
    owner = block.owner.node if block.owner else None
    if owner is not None and not isinstance(owner, cst.FunctionDef | cst.ClassDef):
        return 0
    count = 0
    for at, statement in enumerate(block.statements):
        small = _smalls(statement)
        docstring = at == 0 and small and _is_text(small[0])
        if not docstring and not (owner is None and any(_is_future(one) for one in small)):
            break
        count = at + 1
    return count


def _smalls(statement: Statement) -> list[cst.BaseSmallStatement]:
    node = statement.node
    return list(node.body) if isinstance(node, cst.SimpleStatementLine) else []


def _is_text(node: cst.BaseSmallStatement) -> bool:
    if not isinstance(node, cst.Expr):
        return False
    value = node.value
    if isinstance(value, cst.ConcatenatedString):
        return isinstance(value.evaluated_value, str)
    return isinstance(value, cst.SimpleString) and "b" not in value.prefix.lower()


def _is_future(node: cst.BaseSmallStatement) -> bool:
    if not isinstance(node, cst.ImportFrom) or not isinstance(node.module, cst.Name):
        return False
    return node.module.value == "__future__"
