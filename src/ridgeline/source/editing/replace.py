"""Replace an expression of a statement by another one."""

import libcst as cst

from ridgeline.records.edit import Replace
from ridgeline.source.editing.draft import Draft, Note, Rank, Splice
from ridgeline.source.editing.tree import Cannot, Spot, expression_shape, own

_ATOMS = (
    *(cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.SimpleString),
    *(cst.FormattedString, cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp),
)
_ROOMY = (cst.Arg, cst.Assign, cst.AugAssign, cst.Return, cst.Expr)
"""Nodes in which any expression can stand without parentheses."""
_NEVER_BARE = (cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp, cst.Await)
_TARGETS = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)
_NAMED = (cst.Param, cst.FunctionDef, cst.ClassDef, cst.ImportAlias, cst.AsName, cst.NameItem)

WAS_LINES = " (was {} lines)"
"""Part of a comment that says how far the lines below have moved."""
_Match = tuple[cst.BaseExpression, cst.CSTNode]


def replace(edit: Replace, draft: Draft) -> bool:
    """Plan the edit; return False if the new expression stands there already."""
    spot = draft.tree.at(edit.line)
    before, after = _matches(draft, spot, edit.before), _matches(draft, spot, edit.after)
    new = [draft.tree.span(node) for node, _ in after]
    bare = [pair for pair in before if not _inside(draft.tree.span(pair[0]), new)]
    if after and not bare:
        return False
    if len(bare) != 1:
        often = "not there" if not bare else f"there {len(bare)} times"
        raise Cannot(f"{edit.before} is {often}")
    node, parent = bare[0]
    start, end = draft.tree.span(node)
    text = _fitted(edit.after, node, parent)
    if start and _joins(draft.tree.text[start - 1]) and _joins(text[0]):
        text = " " + text
    if _joins(draft.tree.text[end : end + 1]) and _joins(text[-1]):
        text += " "
    draft.splices.append(Splice(start=start, end=end, text=text, rank=Rank.TEXT))
    was = draft.tree.line_at(end) - draft.tree.line_at(start) + 1
    why = edit.why if was == text.count("\n") + 1 else edit.why + WAS_LINES.format(was)
    line = draft.tree.line_at(end)
    draft.notes.append(Note(spot.statement, line, why, len(text) - (end - start)))
    return True


def _matches(draft: Draft, spot: Spot, code: str) -> list[_Match]:
    wanted = expression_shape(code)
    kind = type(cst.parse_expression(f"({code}\n)"))
    return [
        (node, parent)
        for node, parent in own(spot.part)
        if isinstance(node, cst.BaseExpression)
        and type(node) is kind
        and _is_value(node, parent)
        and expression_shape(draft.tree.module.code_for_node(node)) == wanted
    ]


def _is_value(node: cst.BaseExpression, parent: cst.CSTNode) -> bool:
    """Return whether a node is a value, not the name of an attribute, a keyword or a target."""
    if isinstance(parent, cst.Attribute):
        return node is not parent.attr
    if isinstance(parent, cst.Arg):
        return node is not parent.keyword
    if isinstance(parent, _TARGETS):
        return node is not parent.target
    if isinstance(parent, _NAMED):
        return node is not getattr(parent, "name", None)
    return True


def _inside(span: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def _fitted(code: str, node: cst.BaseExpression, parent: cst.CSTNode) -> str:
    """Return the new code, in parentheses if it may need them."""
    code = code.strip()
    made = cst.parse_expression(f"({code}\n)")
    if "\n" in code:
        return f"({code})"
    if isinstance(made, _ATOMS) or len(made.lpar) > 1 or node.lpar:
        return code
    if isinstance(parent, _ROOMY) and not isinstance(made, _NEVER_BARE):
        return code
    return f"({code})"


def _joins(character: str) -> bool:
    return character.isalnum() or character in {"_", '"', "'"} if character else False
