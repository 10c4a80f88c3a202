"""A statement that reads from the device, rewritten so that the value stays there.

Only where what it becomes is known to mean the same: an assignment, a sum, a maximum, a list that
grows, a line of a log. Elsewhere "": then a rule shows what to do with the expression alone.
"""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.statements import now_and_then, operand, statement_of, written
from ridgeline.source.reading.waiting_lines import Line, called

_READS = frozenset({"item", "cpu", "tolist", "numpy", "to"})
_VIEWS = frozenset({
    "view", "reshape", "detach", "squeeze", "unsqueeze", "t", "transpose", "permute", "expand",
    "flatten", "contiguous", "to", "view_as", "narrow", "select", "chunk", "split", "float", "cpu",
    "requires_grad_",
})  # fmt: skip
"""Methods whose result may be the memory they are called on."""
_LOGS = frozenset({
    "print", "log", "info", "debug", "warning", "write", "add_scalar", "add_scalars",
    "set_postfix", "set_postfix_str", "set_description", "log_metric", "log_metrics", "log_dict",
})  # fmt: skip
_DEEPEST = 4


def held(source: Source, line: Line) -> str:
    """What a reading call reads, as a tensor of its own: `x.norm().detach()`; "" for other calls.
    A copy where it is the memory of something that may be changed later."""
    of = _read(line.node)
    if of is None:
        return ""
    text = operand(source, of)
    if ".detach()" not in text:
        text += ".detach()"
    return text if _fresh(source, of, 0) else f"{text}.clone()"


def without_reading(source: Source, line: Line) -> str:
    """The statement of a line that reads, and where the host then reads instead."""
    node, kept = line.node, held(source, line)
    statement = statement_of(source, node) if node is not None else None
    of = _read(node)
    if statement is None or of is None or not isinstance(node, ast.Call) or not kept:
        return ""
    whole = _chain(source, node)
    how = _how(source, of, whole)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return _assigned(source, statement, whole, kept, how)
    if isinstance(statement, ast.AugAssign) and statement.value is whole and how == ".item()":
        return _summed(source, statement, kept)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _done(source, statement, statement.value, whole, kept, how)
    return ""


def _summed(source: Source, statement: ast.AugAssign, kept: str) -> str:
    if not isinstance(statement.op, ast.Add | ast.Sub):
        return ""
    sign = "+" if isinstance(statement.op, ast.Add) else "-"
    into = written(source, statement.target)
    return (
        f"{into} {sign}= {kept}.double()  # on the device, as exact as Python's number\n"
        f"# where it is shown: float({into})"
    )


def _assigned(
    source: Source, statement: ast.Assign | ast.AnnAssign, whole: ast.Call, kept: str, how: str
) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    if len(targets) != 1 or not isinstance(targets[0], ast.Name | ast.Attribute) or value is None:
        return ""
    into = written(source, targets[0])
    if value is whole:
        return f"{into} = {kept}  # stays on the device\n# where the host reads it: {into}{how}"
    if isinstance(value, ast.Call) and how == ".item()" and _extreme(value, into, whole):
        # clamp takes the number it begins with, and the tensor it is from then on
        limit = "min" if called(value) == "max" else "max"
        return (
            f"{into} = {kept}.clamp({limit}={into})  # stays on the device\n"
            f"# where it is shown: float({into})"
        )
    return _gathered(source, statement, whole) if how == ".item()" else ""


def _extreme(value: ast.Call, into: str, whole: ast.Call) -> bool:
    """into = max(into, whole)."""
    plain = isinstance(value.func, ast.Name) and value.func.id in ("max", "min")
    if not plain or len(value.args) != 2 or value.keywords:
        return False
    others = [ast.unparse(one) for one in value.args if one is not whole]
    return others == [into]


def _gathered(source: Source, statement: ast.stmt, whole: ast.Call) -> str:
    """[x.item() for x in y] and sum(x.item() for x in y): all read with one wait."""
    around = next(source.parents(whole), None)
    of = _read(whole)
    if not isinstance(around, ast.ListComp | ast.GeneratorExp) or around.elt is not whole:
        return ""
    if of is None:
        return ""
    listed = f"torch.stack([{operand(source, of)} {_loops_text(around)}])"
    old: ast.expr = around
    if isinstance(around, ast.ListComp):
        new = f"{listed}.flatten().tolist()"
    else:
        call = next(source.parents(around), None)
        if not isinstance(call, ast.Call) or called(call) != "sum" or len(call.args) != 1:
            return ""
        old, new = call, f"{listed}.sum().item()"
    before, part = written(source, statement), written(source, old)
    if before.count(part) != 1:
        return ""
    return f"{before.replace(part, new)}  # one wait for all"


def _loops_text(around: ast.ListComp | ast.GeneratorExp) -> str:
    """for x in y if z."""
    return " ".join(
        f"for {ast.unparse(one.target)} in {ast.unparse(one.iter)}"
        + "".join(f" if {ast.unparse(test)}" for test in one.ifs)
        for one in around.generators
    )


def _done(
    source: Source, statement: ast.Expr, call: ast.Call, whole: ast.Call, kept: str, how: str
) -> str:
    if called(call) == "append" and call.args == [whole] and isinstance(call.func, ast.Attribute):
        into = written(source, call.func.value)
        return (
            f"{into}.append({kept})  # stays on the device\n"
            f"{into} = [one{how} for one in {into}]  # once, after the loop"
        )
    if called(call) in _LOGS:
        return now_and_then(source, statement, written(source, statement))
    return ""


def _read(node: ast.AST | None) -> ast.expr | None:
    """x of x.item(), x.cpu(), float(x)."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
        return node.func.value
    plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "round")
    return node.args[0] if plain and len(node.args) == 1 and not node.keywords else None


def _chain(source: Source, node: ast.Call) -> ast.Call:
    """x.cpu().numpy() of its x.cpu()."""
    above = source.parents(node)
    method, call = next(above, None), next(above, None)
    if isinstance(method, ast.Attribute) and isinstance(call, ast.Call) and call.func is method:
        return _chain(source, call) if method.attr in _READS else node
    return node


def _how(source: Source, of: ast.expr, whole: ast.Call) -> str:
    """.cpu().numpy(), what follows the tensor; of float(x) the same as a method."""
    if not isinstance(whole.func, ast.Attribute):
        return ".item()"
    names, at = "", whole
    while isinstance(at.func, ast.Attribute):
        given = ", ".join(
            [ast.unparse(a) for a in at.args]
            + [f"{k.arg}={ast.unparse(k.value)}" for k in at.keywords if k.arg]
        )
        names = f".{at.func.attr}({given}){names}"
        if at.func.value is of or not isinstance(at.func.value, ast.Call):
            break
        at = at.func.value
    return names


def _fresh(source: Source, value: ast.expr, depth: int) -> bool:
    """Whether nobody else holds the memory: made by a function, kept in no buffer."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, ast.BinOp | ast.UnaryOp | ast.Compare):
        return True
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
            return _fresh(source, value.func.value, depth + 1)
        return not called(value).endswith("_")
    if not isinstance(value, ast.Name):
        return False
    around = next((a for a in source.parents(value) if isinstance(a, ast.FunctionDef)), source.tree)
    given = []
    for part in ast.walk(around):
        if _changes(part, value.id):
            return False
        targets = part.targets if isinstance(part, ast.Assign) else ()
        if isinstance(part, ast.AnnAssign):
            targets = [part.target]
        if any(isinstance(t, ast.Name) and t.id == value.id for t in targets):
            given.append(part.value)  # type: ignore[attr-defined]
    return bool(given) and all(one and _fresh(source, one, depth + 1) for one in given)


def _changes(node: ast.AST, name: str) -> bool:
    """name += x, name.add_(x), name[i] = x."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node.value, ast.Name) and node.value.id == name
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    on = node.func.value
    in_place = node.func.attr.endswith("_") and node.func.attr != "requires_grad_"
    return in_place and isinstance(on, ast.Name) and on.id == name
