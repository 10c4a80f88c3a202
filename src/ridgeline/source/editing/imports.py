"""Statements that stand for the whole program, at its top, and the imports they need."""

import ast
from collections.abc import Iterator

import libcst as cst

from ridgeline.records.edit import Import, Top
from ridgeline.source.bindings import bindings, imported, needed
from ridgeline.source.editing.draft import Draft, Rank
from ridgeline.source.editing.statements import (
    line_after,
    line_before,
    opening,
    put_lines,
    written_lines,
)
from ridgeline.source.editing.tree import Cannot, Statement, Tree, holds_run, statement_shapes

_IMPORTS = (cst.Import, cst.ImportFrom)
_BESIDE = (*_IMPORTS, cst.Pass, cst.Assign, cst.AnnAssign)
"""Statements that may stand in the branches around an import: `except ImportError: thing =
None`."""


def top(edit: Top, draft: Draft) -> bool:
    """Plan the edit; return False if the statements stand there already."""
    tree = draft.tree
    wanted = statement_shapes(edit.text)
    if holds_run(_top_level(tree, ast.parse(edit.text)), wanted):
        return False
    if edit.where == "start":
        missing = needed(edit.text)
        if missing:
            raise Cannot(f"{', '.join(sorted(missing))} is not bound at the start of the file")
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
        raise Cannot("its code does not parse") from error
    wanted = [binding for node in parsed for binding in imported(node)]
    if len(parsed) != 1 or not wanted:
        raise Cannot("it is no import")
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
            raise Cannot(f"{one.name} is bound to something else on line {other[0].line}")
    line = _beside(draft.tree, {one.module.split(".")[0] for one in wanted})
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
            raise Cannot(f"line {statement.first} holds more than one statement")
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
            raise Cannot(f"{name} is not bound at the top level of the file")
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


def _beside(tree: Tree, packages: set[str]) -> int:
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
        smalls = list(_smalls(node))
        some = any(isinstance(small, _IMPORTS) for small in smalls)
        return some and all(isinstance(small, _BESIDE) for small in smalls)
    if isinstance(node, cst.Try):
        smalls = list(_smalls(node.body))
        some = any(isinstance(small, _IMPORTS) for small in smalls)
        return some and all(isinstance(small, _BESIDE) for small in smalls)
    return False


def _smalls(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the simple statements of the branches; an inner compound statement stands for
    itself."""
    if isinstance(node, cst.If):
        yield from _smalls(node.body)
        if node.orelse is not None:
            yield from _smalls(node.orelse)
    elif isinstance(node, cst.Else):
        yield from _smalls(node.body)
    elif isinstance(node, cst.IndentedBlock | cst.SimpleStatementSuite | cst.SimpleStatementLine):
        for child in node.body:
            yield from _smalls(child)
    else:
        yield node
