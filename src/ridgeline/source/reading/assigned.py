"""What the program calls the result of a call."""

import ast

from ridgeline.source.reading.calls import SourceCall
from ridgeline.source.reading.sources import Source, Sources


def target_of(sources: Sources, call: SourceCall) -> str:
    """net, of `net = DDP(…)`; "" where the call is a part of something else, or returned."""
    source = sources.get(call.file)
    return _target(source, call) if source is not None else ""


def begins(sources: Sources, call: SourceCall) -> str:
    """How a line begins that replaces the call: `y = `, `return `; "" inside an expression."""
    source = sources.get(call.file)
    if source is None:
        return ""
    if any(isinstance(n, ast.Return) and _is(n.value, call) for n in ast.walk(source.tree)):
        return "return "
    name = _target(source, call)
    return f"{name} = " if name else ""


def assigned_to(source: Source, node: ast.AST) -> ast.expr | None:
    """What an expression is assigned to, in a tuple too; None: it is a part of something else."""
    above = list(source.parents(node))[:2]
    parent = above[0] if above else None
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return parent.targets[0]
    if isinstance(parent, ast.AnnAssign):
        return parent.target
    outer = above[1] if len(above) > 1 else None
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Assign):
        to = outer.targets[0]
        if isinstance(to, ast.Tuple) and len(to.elts) == len(parent.elts):
            return to.elts[[id(one) for one in parent.elts].index(id(node))]
    return None


def _target(source: Source, call: SourceCall) -> str:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _is(node, call):
            to = assigned_to(source, node)
            return ast.unparse(to) if isinstance(to, ast.Name | ast.Attribute) else ""
    return ""


def _is(node: ast.AST | None, call: SourceCall) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == call.name and (node.func.end_lineno or node.lineno) == call.line
