"""Statements put before or after another one, in its block."""

from typing import Literal

import libcst as cst
from msgspec import structs

from ridgeline.records.edit import Insert
from ridgeline.source.editing import lines, shape
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.draft import Draft
from ridgeline.source.editing.splice import Rank
from ridgeline.source.editing.tree import Statement

_LEAVES = (cst.Return, cst.Raise, cst.Break, cst.Continue)


def insert(edit: Insert, draft: Draft) -> bool:
    """False where it stands there already."""
    tree = draft.tree
    spot = tree.at(edit.line)
    if not spot.opens:
        raise Cannot(f"line {edit.line} is a part of the statement on line {spot.statement.first}")
    if spot.shared and not isinstance(spot.part, cst.SimpleStatementLine):
        raise Cannot(f"line {edit.line} holds more than one statement")
    statement, where = _kept_opening(spot.statement, edit.where)
    if where == "after" and _leaves(statement):
        raise Cannot("nothing after that statement would be reached")
    if _stands(edit, draft, statement, where):
        return False
    if any(first <= statement.first <= last for first, last in draft.rewritten):
        raise Cannot("the statement it belongs to is rewritten")
    draft.beside.append(statement.first)
    indent, newline = tree.indent(statement.first), tree.newline(statement.last)
    text = lines.written(draft, edit.text, edit.why, indent, newline)
    if where == "before":
        at, rank = lines.line_before(tree, statement), Rank.BEFORE
    else:
        at, rank = lines.line_after(tree, statement), Rank.AFTER
    piece = lines.put(tree, at, text, rank)
    anchor = tree.start_of(statement.first)
    draft.splices.append(structs.replace(piece, anchor=anchor, level=statement.level))
    return True


def _kept_opening(
    statement: Statement, where: Literal["before", "after"]
) -> tuple[Statement, Literal["before", "after"]]:
    """A docstring and `from __future__` imports stay first: what would come before goes after."""
    kept = lines.opening(statement.block)
    if statement.index < (kept if where == "before" else kept - 1):
        return statement.block.statements[kept - 1], "after"
    return statement, where


def _leaves(statement: Statement) -> bool:
    node = statement.node
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[-1], _LEAVES)


def _stands(edit: Insert, draft: Draft, statement: Statement, where: str) -> bool:
    wanted = shape.statements(edit.text)
    if not wanted:
        raise Cannot("it holds no statement")
    at: Statement | None = statement
    while at is not None:
        if _beside(draft, at, where == "before", wanted):
            return True
        # a `with` of ours put around the statement keeps such lines outside
        edge = 0 if where == "before" else len(at.block.statements) - 1
        owner = at.block.owner
        at = owner if owner and at.index == edge and owner.first in draft.added else None
    return False


def _beside(draft: Draft, statement: Statement, before: bool, wanted: list[str]) -> bool:
    siblings = statement.block.statements
    near = siblings[: statement.index][::-1] if before else siblings[statement.index + 1 :]
    count = next((at for at, one in enumerate(near) if one.first not in draft.added), len(near))
    for run in (near[:count], near[: len(wanted)]):
        if shape.holds(shape.of(draft.tree, run[::-1] if before else run), wanted):
            return True
    return False
