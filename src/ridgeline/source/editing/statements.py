"""Edits of whole statements: new ones put before or after one, a run of them put into a `with`,
lines rewritten; and statements at the top of the file that stand for the whole program, with the
imports they need."""

import ast
from collections.abc import Iterator
from typing import Literal

import libcst as cst
from msgspec import structs

from ridgeline.records.edit import Import, Insert, Rewrite, Top, Within
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing.draft import DEEPER, Draft, Rank, Run, Splice, comment
from ridgeline.source.editing.tree import (
    Block,
    Cannot,
    Spot,
    Statement,
    Tree,
    called_name,
    holds_run,
    run_shape,
    statement_shapes,
)
from ridgeline.source.file import bindings, imported, needed

_UNIT = 4  # how the texts we are given are indented

_LEAVES = (cst.Return, cst.Raise, cst.Break, cst.Continue)
_IMPORTS = (cst.Import, cst.ImportFrom)
_BESIDE = (*_IMPORTS, cst.Pass, cst.Assign, cst.AnnAssign)
"""Statements that may stand in the branches around an import: `except ImportError: thing =
None`."""


def written_lines(draft: Draft, text: str, why: str, indent: str, newline: str) -> str:
    """Return the comment and the code as lines of the file, with its indentation and newlines."""
    try:
        ours = Tree(text.strip("\r\n") + "\n")
    except cst.ParserSyntaxError as error:
        raise Cannot(Obstacle.OWN_CODE_NOT_PARSED) from error
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


def put_lines(tree: Tree, line: int, text: str, rank: Rank) -> Splice:
    """Put lines before that line; a file that does not end its last line goes on not doing so."""
    offset = tree.start_of(line)
    if offset == len(tree.text) and tree.text and not tree.text.endswith(("\n", "\r")):
        newline = tree.module.default_newline
        text = newline + text.removesuffix(newline)
    return Splice(start=offset, end=offset, text=text, rank=rank)


def line_before(tree: Tree, statement: Statement) -> int:
    """Return where lines before a statement go: above the comments that belong to it, save those
    that open the file (interpreter, encoding, licence) or a cell."""
    line = statement.first
    indent = tree.indent(line)
    if line > 1 and tree.line(line - 1).endswith("\\") and not tree.own_comment(line - 1):
        raise Cannot(Obstacle.CONTINUED_LINE)
    if statement.index == 0 and statement.block.owner is None:
        return line
    while (own := tree.own_comment(line - 1)) and tree.indent(line - 1) == indent:
        if own.startswith(("# %%", "# In[")):
            break
        line -= 1
    return line


def line_after(tree: Tree, statement: Statement) -> int:
    """Return where lines after a statement go: below the comments that end its body."""
    line = statement.last + 1
    indent = tree.indent(statement.first)
    while tree.own_comment(line) and len(tree.indent(line)) > len(indent):
        line += 1
    return line


def opening(block: Block) -> int:
    """Return how many statements at the start of a block must stay there: a docstring and `from
    __future__` imports."""
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


def insert(edit: Insert, draft: Draft) -> bool:
    """Plan the edit; return False if the statements stand there already."""
    tree = draft.tree
    spot = tree.at(edit.line)
    if not spot.opens:
        raise Cannot(Obstacle.PART_OF_STATEMENT, line=edit.line, first=spot.statement.first)
    if spot.shared and not isinstance(spot.part, cst.SimpleStatementLine):
        raise Cannot(Obstacle.SEVERAL_STATEMENTS, line=edit.line)
    statement, where = _kept_opening(spot.statement, edit.where)
    if where == "after" and _leaves(statement):
        raise Cannot(Obstacle.NOT_REACHED)
    if _stands(edit, draft, statement, where):
        return False
    if any(first <= statement.first <= last for first, last in draft.rewritten):
        raise Cannot(Obstacle.STATEMENT_REWRITTEN)
    draft.beside.append(statement.first)
    indent, newline = tree.indent(statement.first), tree.newline(statement.last)
    text = written_lines(draft, edit.text, edit.why, indent, newline)
    if where == "before":
        at, rank = line_before(tree, statement), Rank.BEFORE
    else:
        at, rank = line_after(tree, statement), Rank.AFTER
    piece = put_lines(tree, at, text, rank)
    anchor = tree.start_of(statement.first)
    draft.splices.append(structs.replace(piece, anchor=anchor, level=statement.level))
    return True


def _kept_opening(
    statement: Statement, where: Literal["before", "after"]
) -> tuple[Statement, Literal["before", "after"]]:
    """Return the statement to stand beside, and on which side. A docstring and `from __future__`
    imports stay first: what would come before them goes after."""
    kept = opening(statement.block)
    if statement.index < (kept if where == "before" else kept - 1):
        return statement.block.statements[kept - 1], "after"
    return statement, where


def _leaves(statement: Statement) -> bool:
    node = statement.node
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[-1], _LEAVES)


def _stands(edit: Insert, draft: Draft, statement: Statement, where: str) -> bool:
    wanted = statement_shapes(edit.text)
    if not wanted:
        raise Cannot(Obstacle.NO_STATEMENT_IN_IT)
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
        if holds_run(run_shape(draft.tree, run[::-1] if before else run), wanted):
            return True
    return False


def within(edit: Within, draft: Draft) -> bool:
    """Plan the edit; return False if the statements are in such a `with` already."""
    tree = draft.tree
    statement_shapes(f"with {edit.header}: pass")
    opens, closes = edit.first, edit.last
    while opens < closes and _empty(tree, opens):
        opens += 1
    while closes > opens and _empty(tree, closes):
        closes -= 1
    if _is_in_with(edit, tree, tree.at(opens).statement, tree.at(closes).statement):
        return False
    first, last = whole(tree, opens, closes)
    if first is last and _enters(edit, tree, first):
        return False
    if first.index < opening(first.block):
        raise Cannot(Obstacle.MUST_STAY_FIRST)
    run = _run(edit, draft, first, last)
    for other in draft.runs:
        if other.start < run.start < other.end < run.end:
            raise Cannot(Obstacle.OVERLAPS)
        if run.start < other.start < run.end < other.end:
            raise Cannot(Obstacle.OVERLAPS)
    draft.runs.append(run)
    return True


def whole(tree: Tree, opens: int, closes: int) -> tuple[Statement, Statement]:
    """Return the first and last whole statement of a run of lines, in one block."""
    start, end = tree.at(opens), tree.at(closes)
    if not start.opens:
        raise Cannot(Obstacle.PART_OF_STATEMENT, line=opens, first=start.statement.first)
    last = end.statement
    while last.block is not start.statement.block:
        if last.block.owner is None:
            raise Cannot(Obstacle.DIFFERENT_BLOCKS, first=opens, last=closes)
        last = last.block.owner
    if _reached(tree, end) != last.last or last.index < start.statement.index:
        raise Cannot(Obstacle.NOT_A_BLOCK_END, line=closes)
    return start.statement, last


def _empty(tree: Tree, line: int) -> bool:
    return not tree.line(line).strip() or bool(tree.own_comment(line))


def _reached(tree: Tree, spot: Spot) -> int:
    """Return the last line of the whole statements that end on a line; 0 inside a header."""
    if isinstance(spot.part, cst.SimpleStatementLine):
        return spot.statement.last
    return tree.lines_of(spot.part)[1] if spot.shared else 0


def _is_in_with(edit: Within, tree: Tree, first: Statement, last: Statement) -> bool:
    """Return whether both ends are in one such `with` of the same function."""
    around = first.block.owner
    while around is not None and not isinstance(around.node, cst.FunctionDef | cst.ClassDef):
        if _enters(edit, tree, around) and last.last <= around.last:
            return True
        around = around.block.owner
    return False


def _enters(edit: Within, tree: Tree, statement: Statement) -> bool:
    if not isinstance(statement.node, cst.With):
        return False
    wanted = called_name(edit.header)
    codes = [tree.module.code_for_node(item.item) for item in statement.node.items]
    return wanted != "" and wanted in [called_name(code) for code in codes]


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


def rewrite(edit: Rewrite, draft: Draft) -> bool:
    """Plan the edit; return False if the new lines stand there already."""
    tree = draft.tree
    before, after = edit.before.split("\n"), edit.after.split("\n")
    if edit.last - edit.first + 1 != len(before) or _lines_like(tree, edit.first, before) != before:
        here = [line.strip() for line in _lines_like(tree, edit.first, after)]
        if here == [line.strip() for line in after]:
            return False
        raise Cannot(Obstacle.LINES_CHANGED, first=edit.first, last=edit.last)
    first, last = whole(tree, edit.first, edit.last)
    if (first.first, last.last) != (edit.first, edit.last):
        raise Cannot(Obstacle.NO_WHOLE_STATEMENTS, first=edit.first, last=edit.last)
    indent, newline = tree.indent(edit.first), tree.newline(edit.first)
    if not after[0].startswith(indent) or not after[0].strip():
        raise Cannot(Obstacle.INDENTED_OTHERWISE)
    if any(edit.first <= line <= edit.last for line in draft.beside):
        raise Cannot(Obstacle.EDIT_BESIDE)
    draft.rewritten.append((edit.first, edit.last))
    start, end = tree.start_of(edit.first), tree.start_of(edit.last) + len(tree.line(edit.last))
    note = f"{indent}{DEEPER}{comment(edit.why, draft.encoding)}{newline}"
    draft.splices += [
        Splice(start=start, end=start, text=note, rank=Rank.NOTE),
        # from behind the first line's indentation: a `with` put around it adds its level there
        Splice(
            start=start + len(tree.line(edit.first)) - len(tree.line(edit.first).lstrip(" \t\f")),
            end=end,
            text=newline.join(_deeper(after, indent)),
            rank=Rank.TEXT,
        ),
    ]
    return True


def _lines_like(tree: Tree, first: int, like: list[str]) -> list[str]:
    return [tree.line(number) for number in range(first, first + len(like))]


def _deeper(after: list[str], indent: str) -> list[str]:
    """Return the lines with `DEEPER`, the first without its indentation; lines that begin inside a
    string stay as they are."""
    opened = "if 1:\n" if indent else ""
    try:
        ours = Tree(opened + "\n".join(after) + "\n")
    except cst.ParserSyntaxError as error:
        raise Cannot(Obstacle.OWN_CODE_NOT_PARSED) from error
    out = [after[0][len(indent) :]]
    for number, line in enumerate(after[1:], 2 + bool(opened)):
        bare = line.lstrip(" \t")
        if bare and not ours.in_string(number):
            line = f"{line[: len(line) - len(bare)]}{DEEPER}{bare}"
        out.append(line)
    return out


def top(edit: Top, draft: Draft) -> bool:
    """Plan the edit; return False if the statements stand there already."""
    tree = draft.tree
    wanted = statement_shapes(edit.text)
    if holds_run(_top_level(tree, ast.parse(edit.text)), wanted):
        return False
    if edit.where == "start":
        missing = needed(edit.text)
        if missing:
            raise Cannot(Obstacle.NOT_BOUND_AT_START, names=", ".join(sorted(missing)))
        line, rank = _start(tree), Rank.START
    else:
        function = isinstance(ast.parse(edit.text).body[0], ast.FunctionDef)
        rank = Rank.FUNCTION if function else Rank.FLAGS
        line = _after(tree, _bound_by(edit, draft))
    _put(draft, line, edit.text, edit.why, rank)
    return True


def import_(edit: Import, draft: Draft) -> bool:
    """Plan the edit; return False if the file has the import already."""
    try:
        parsed = ast.parse(edit.text).body
    except (SyntaxError, ValueError) as error:
        raise Cannot(Obstacle.OWN_CODE_NOT_PARSED) from error
    wanted = [binding for node in parsed for binding in imported(node)]
    if len(parsed) != 1 or not wanted:
        raise Cannot(Obstacle.NO_IMPORT)
    there = bindings(draft.tree.text)
    loaded = {binding.module for binding in there if binding.certain and binding.module}
    bound = {(binding.name, binding.thing) for binding in there if binding.certain}
    if all((one.name, one.thing) in bound and _is_loaded(one.module, loaded) for one in wanted):
        return False
    for one in wanted:
        if (one.name, one.thing) in bound:
            continue
        other = [b for b in there if b.name == one.name and b.thing != one.thing]
        if other:
            raise Cannot(Obstacle.BOUND_TO_OTHER, name=one.name, line=other[0].line)
    line = _import_line(draft.tree, {one.module.split(".")[0] for one in wanted})
    _put(draft, line, edit.text, edit.why, Rank.IMPORT)
    for one in wanted:
        draft.imported.setdefault(one.name, line)
    return True


def _is_loaded(module: str, loaded: set[str]) -> bool:
    return any(one == module or one.startswith(f"{module}.") for one in loaded)


def _put(draft: Draft, line: int, text: str, why: str, rank: Rank) -> None:
    tree = draft.tree
    newline = tree.newline(max(1, line - 1))
    indent = tree.indent(tree.body.statements[0].first) if tree.body.statements else ""
    written = written_lines(draft, text, why, indent, newline)
    if rank is Rank.FUNCTION:
        more = line < tree.count and tree.line(line).strip()
        written = f"{2 * newline}{written}{2 * newline if more else ''}"
    draft.splices.append(put_lines(tree, line, written, rank))


def _top_level(tree: Tree, like: ast.Module) -> list[str]:
    """Return the shapes of the module's statements; "" for those of another kind than ours."""
    kinds = {type(node) for node in like.body}
    nodes = _flat(ast.parse(tree.text).body)
    return [ast.dump(node) if type(node) in kinds else "" for node in nodes]


def _flat(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those in a `with`, which may have been put around ours."""
    for node in nodes:
        yield node
        if isinstance(node, ast.With):
            yield from _flat(node.body)


def _start(tree: Tree) -> int:
    """Return the line of the first statement that need not come first."""
    kept = opening(tree.body)
    statements = tree.body.statements
    for statement in statements[:kept]:
        if isinstance(statement.node, cst.SimpleStatementLine) and len(statement.node.body) > 1:
            raise Cannot(Obstacle.SEVERAL_STATEMENTS, line=statement.first)
    if kept < len(statements):
        return line_before(tree, statements[kept])
    return line_after(tree, statements[-1]) if statements else tree.count


def _bound_by(edit: Top, draft: Draft) -> int:
    """Return the line from which on all names of the text are bound."""
    there = bindings(draft.tree.text)
    last = 0
    for name in sorted(needed(edit.text)):
        bound = [binding.line for binding in there if binding.name == name and binding.certain]
        if name in draft.imported:
            bound.append(draft.imported[name] - 1)
        if not bound:
            raise Cannot(Obstacle.NOT_BOUND_AT_TOP, name=name)
        last = max(last, min(bound))
    return last


def _after(tree: Tree, bound: int) -> int:
    """Return the line after the imports that open the file and after the line that binds what is
    needed."""
    statements = tree.body.statements
    at = opening(tree.body)
    while at < len(statements) and (statements[at].first <= bound or _is_import(statements[at])):
        at += 1
    return line_after(tree, statements[at - 1]) if at else _start(tree)


def _import_line(tree: Tree, packages: set[str]) -> int:
    """Return the line after an import of the same package, else after the last import that comes
    before the first statement with a body: what a file sets before an import may have to come
    before it."""
    statements = tree.body.statements
    same = [b.line for b in bindings(tree.text) if b.certain and b.module.split(".")[0] in packages]
    if same:
        return _after(tree, min(same))
    found = -1
    for at in range(opening(tree.body), len(statements)):
        if _is_import(statements[at]):
            found = at
        elif not isinstance(statements[at].node, cst.SimpleStatementLine):
            break
    return line_after(tree, statements[found]) if found >= 0 else _start(tree)


def _is_import(statement: Statement) -> bool:
    node = statement.node
    if isinstance(node, cst.SimpleStatementLine):
        return any(isinstance(small, _IMPORTS) for small in node.body)
    if isinstance(node, cst.If) and "__name__" not in cst.Module([]).code_for_node(node.test):
        smalls = list(_branch_statements(node))
        some = any(isinstance(small, _IMPORTS) for small in smalls)
        return some and all(isinstance(small, _BESIDE) for small in smalls)
    if isinstance(node, cst.Try):
        smalls = list(_branch_statements(node.body))
        some = any(isinstance(small, _IMPORTS) for small in smalls)
        return some and all(isinstance(small, _BESIDE) for small in smalls)
    return False


def _branch_statements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the simple statements of the branches; an inner compound statement stands for
    itself."""
    if isinstance(node, cst.If):
        yield from _branch_statements(node.body)
        if node.orelse is not None:
            yield from _branch_statements(node.orelse)
    elif isinstance(node, cst.Else):
        yield from _branch_statements(node.body)
    elif isinstance(node, cst.IndentedBlock | cst.SimpleStatementSuite | cst.SimpleStatementLine):
        for child in node.body:
            yield from _branch_statements(child)
    else:
        yield node
