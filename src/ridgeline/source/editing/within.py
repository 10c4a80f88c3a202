"""Whole statements of one block put into a `with`."""

import libcst as cst

from ridgeline.records.edit import Within
from ridgeline.source.editing import lines, shape
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.comment import comment
from ridgeline.source.editing.draft import Draft
from ridgeline.source.editing.splice import DEEPER, Run
from ridgeline.source.editing.tree import Spot, Statement, Tree


def within(edit: Within, draft: Draft) -> bool:
    """False where they are in such a `with` already."""
    tree = draft.tree
    shape.statements(f"with {edit.header}: pass")
    opens, closes = edit.first, edit.last
    while opens < closes and _empty(tree, opens):
        opens += 1
    while closes > opens and _empty(tree, closes):
        closes -= 1
    if _is_within(edit, tree, tree.at(opens).statement, tree.at(closes).statement):
        return False
    first, last = whole(tree, opens, closes)
    if first is last and _enters(edit, tree, first):
        return False
    if first.index < lines.opening(first.block):
        raise Cannot("a docstring or a __future__ import must stay first")
    run = _run(edit, draft, first, last)
    for other in draft.runs:
        if other.start < run.start < other.end < run.end:
            raise Cannot("it overlaps another edit")
        if run.start < other.start < run.end < other.end:
            raise Cannot("it overlaps another edit")
    draft.runs.append(run)
    return True


def whole(tree: Tree, opens: int, closes: int) -> tuple[Statement, Statement]:
    """The first and last whole statement of the run, in one block."""
    start, end = tree.at(opens), tree.at(closes)
    if not start.opens:
        raise Cannot(f"line {opens} is a part of the statement on line {start.statement.first}")
    last = end.statement
    while last.block is not start.statement.block:
        if last.block.owner is None:
            raise Cannot(f"lines {opens} and {closes} are in different blocks")
        last = last.block.owner
    if _reached(tree, end) != last.last or last.index < start.statement.index:
        raise Cannot(f"line {closes} is not the end of a statement of that block")
    return start.statement, last


def _empty(tree: Tree, line: int) -> bool:
    return not tree.line(line).strip() or bool(tree.own_comment(line))


def _reached(tree: Tree, spot: Spot) -> int:
    """The last line of the whole statements that end on the spot's line; 0 inside a header."""
    if isinstance(spot.part, cst.SimpleStatementLine):
        return spot.statement.last
    return tree.lines_of(spot.part)[1] if spot.shared else 0


def _is_within(edit: Within, tree: Tree, first: Statement, last: Statement) -> bool:
    """Both ends are in one such `with`, of the same function."""
    around = first.block.owner
    while around is not None and not isinstance(around.node, cst.FunctionDef | cst.ClassDef):
        if _enters(edit, tree, around) and last.last <= around.last:
            return True
        around = around.block.owner
    return False


def _enters(edit: Within, tree: Tree, statement: Statement) -> bool:
    if not isinstance(statement.node, cst.With):
        return False
    wanted = shape.last_name(edit.header)
    codes = [tree.module.code_for_node(item.item) for item in statement.node.items]
    return wanted != "" and wanted in [shape.last_name(code) for code in codes]


def _run(edit: Within, draft: Draft, first: Statement, last: Statement) -> Run:
    tree = draft.tree
    indent, newline = tree.indent(first.first), tree.newline(first.first)
    block = first.block.node
    unit = block.indent if isinstance(block, cst.IndentedBlock) else None
    ends = []
    for number in range(first.first, last.last + 1):
        line = tree.line(number)
        if line.strip() and not tree.in_string(number):
            ends.append(tree.start_of(number) + len(line) - len(line.lstrip(" \t\f")))
    note = f"{indent}{DEEPER}{comment(edit.why, draft.encoding)}{newline}"
    return Run(
        start=tree.start_of(first.first),
        end=tree.start_of(last.last + 1),
        level=first.level,
        unit=unit or tree.module.default_indent,
        header=f"{note}{indent}{DEEPER}with {edit.header}:{newline}",
        line_ends=tuple(ends),
    )
