"""A keyword of a call: added, or its value changed. What is in a `**` of the call may give it as
well: `**options` becomes `**{**options, "num_workers": 2}`, where the later one counts."""

import ast
import keyword as python
import re

import libcst as cst

from ridgeline.records.edit import Keyword
from ridgeline.source.editing import shape
from ridgeline.source.editing.bindings import aliases
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.comment import comment, marked
from ridgeline.source.editing.draft import Asked, Draft, Note
from ridgeline.source.editing.positional import POSITIONAL
from ridgeline.source.editing.splice import Rank, Splice
from ridgeline.source.editing.tree import Spot, own

_STRINGS = (cst.FormattedString, cst.TemplatedString)
_READS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict,
    ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred, ast.keyword,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_COMPUTED = (cst.Call, cst.Subscript)
"""`getattr(torch.optim, name)(…)`, `OPTIMIZERS[name](…)`: with other options it calls another."""
_ONLY_READ = ("bool", "cpu_count", "float", "get", "getattr", "int", "len", "max", "min", "round")
"""What calls itself so does nothing besides: nothing is lost where it is not called any more."""


def keyword(edit: Keyword, draft: Draft) -> bool:
    """False where the call has it already."""
    shape.expression(edit.value)
    if not edit.name.isidentifier() or python.iskeyword(edit.name):
        raise Cannot(f"{edit.name!r} is no name")
    try:
        spot, call = _found(edit, draft)
    except Cannot:
        if _moved(edit, draft):
            return False
        raise
    given = _given(edit, call)
    if given is not None:
        return _changed(edit, draft, spot, given)
    # by its end: a chain of calls begins where its first call does
    end = draft.tree.span(call)[1]
    asked = draft.calls.setdefault(end, Asked(call, spot.statement))
    for name, value, _ in asked.keywords:
        if name == edit.name and value != edit.value:
            raise Cannot(f"another edit gives it {name}={value}")
    asked.keywords.append((edit.name, edit.value, edit.why))
    return True


def _found(edit: Keyword, draft: Draft) -> tuple[Spot, cst.Call]:
    spot = draft.tree.at(edit.line)
    here = [node for node, _ in own(spot.part) if isinstance(node, cst.Call)]
    here = [node for node in here if _is_on(edit.line, draft, node)]
    calls = [node for node in here if _is_named(edit, draft, node)]
    if not calls and any(isinstance(node.func, _COMPUTED) for node in here):
        raise Cannot(f"line {edit.line} looks up what it calls, {edit.call} with these options")
    if len(calls) != 1:
        often = "is no call" if not calls else f"are {len(calls)} calls"
        raise Cannot(f"there {often} of {edit.call} on line {edit.line}")
    start, end = draft.tree.span(calls[0])
    for node, _ in own(spot.part):
        if isinstance(node, _STRINGS):
            first, last = draft.tree.span(node)
            if first < start and end < last:
                raise Cannot("the call is inside a string")
    return spot, calls[0]


def _is_on(line: int, draft: Draft, call: cst.Call) -> bool:
    first, last = draft.tree.lines_of(call)
    return first <= line <= last


def _is_named(edit: Keyword, draft: Draft, call: cst.Call) -> bool:
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value == edit.call
    if not isinstance(call.func, cst.Name):
        return False
    name = call.func.value
    return name == edit.call or aliases(draft.tree.text).get(name) == edit.call


def _moved(edit: Keyword, draft: Draft) -> bool:
    """Lines have moved, and a call of that name has the keyword and our comment."""
    note = comment(edit.why, draft.encoding)
    if all(found.value != note for found in draft.tree.comments.values()):
        return False
    wanted = shape.expression(edit.value)
    for statement in draft.tree.statements():
        if not marked(draft.tree, statement, note):
            continue
        for node, _ in own(statement.node):
            if isinstance(node, cst.Call) and _is_named(edit, draft, node):
                values = [one.value for one in _named(node, edit.name)]
                codes = [draft.tree.module.code_for_node(value) for value in values]
                if any(shape.expression(code) == wanted for code in codes):
                    return True
    return False


def _given(edit: Keyword, call: cst.Call) -> cst.Arg | cst.DictElement | None:
    """What gives it now."""
    for one in _named(call, edit.name):
        return one
    stars = [argument.star for argument in call.args if argument.star]
    if "*" in stars or len(stars) > 1:
        raise Cannot(f"{edit.name} may be in the {stars[0]}… of the call")
    bare = [a for a in call.args if a.keyword is None and not a.star]
    order = edit.positional or POSITIONAL.get(edit.call, ())
    if edit.name in order and order.index(edit.name) < len(bare):
        return bare[order.index(edit.name)]
    if len(bare) > len(order) and "*" not in order:
        raise Cannot(f"{edit.name} may be one of the call's bare arguments")
    return None


def _named(call: cst.Call, name: str) -> list[cst.Arg | cst.DictElement]:
    """Arguments of that name, also those in a `**{…}` that stands in the call."""
    found: list[cst.Arg | cst.DictElement] = []
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            found.append(argument)
        if argument.star == "**" and isinstance(argument.value, cst.Dict):
            found += [one for one in _certain(argument.value) if _key(one) == name]
    return found


def _certain(given: cst.Dict) -> list[cst.DictElement]:
    """What no `**` after it may give once more."""
    found: list[cst.DictElement] = []
    for one in given.elements:
        found = [*found, one] if isinstance(one, cst.DictElement) else []
    return found


def _key(one: cst.DictElement) -> object:
    return one.key.evaluated_value if isinstance(one.key, cst.SimpleString) else None


def _changed(edit: Keyword, draft: Draft, spot: Spot, argument: cst.Arg | cst.DictElement) -> bool:
    code = draft.tree.module.code_for_node(argument.value)
    if shape.expression(code) == shape.expression(edit.value):
        return False
    inner = re.sub(r"\s+", " ", code.strip())
    if not _only_reads(code):
        raise Cannot(f"it has {edit.name}={inner}, which may do more than give a value")
    start, end = draft.tree.span(argument.value)
    if draft.tree.line_at(start) != draft.tree.line_at(end):
        raise Cannot(f"its value of {edit.name} is written over several lines")
    draft.splices.append(Splice(start=start, end=end, text=edit.value, rank=Rank.TEXT))
    line = draft.tree.line_at(start)
    why = f"{edit.why} (was {inner})"
    draft.notes.append(Note(spot.statement, line, why, len(edit.value) - (end - start)))
    return True


def _only_reads(code: str) -> bool:
    """Whether nothing is lost where it is not worked out any more."""
    for node in ast.walk(ast.parse(f"({code}\n)", mode="eval").body):
        if isinstance(node, ast.Call):
            if shape.last_name(ast.unparse(node.func)) not in _ONLY_READ:
                return False
        elif not isinstance(node, _READS):
            return False
    return True
