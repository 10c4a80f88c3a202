"""Statements that read from the device, and branches on tensors, rewritten so that the value stays
on the device.

Only where the new code is known to mean the same: an assignment, a sum, a maximum, a list that
grows, a line of a log, something counted or changed under an `if` without an `else`, an assertion.
Elsewhere the result is "", and a rule shows what to do with the expression alone.
"""

import ast

from msgspec.structs import replace

from ridgeline.source.file import SourceFile, last_name, targets_of
from ridgeline.source.waiting import EVERY, Line, counter, now_and_then, operand, tensor_part

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
_MAX_FOLLOWED_NAMES = 4
"""Assignments and views that a tensor is followed back through."""
_SIGNS: dict[type[ast.operator], tuple[str, int]] = {
    ast.Add: ("+=", 0),
    ast.Sub: ("-=", 0),
    ast.Mult: ("*=", 1),
    ast.Div: ("/=", 1),
}
"""The operators of updates, with the value that leaves the target as it is."""
_Branch = ast.If | ast.While | ast.Assert | ast.IfExp


def tensor_read(source: SourceFile, line: Line) -> str:
    """Return what a reading call reads, as a tensor of its own: `x.norm().detach()`; "" for other
    calls. The tensor is cloned if its memory may be changed later."""
    tensor = _tensor_of(line.node)
    if tensor is None:
        return ""
    text = operand(source, tensor)
    if ".detach()" not in text:
        text += ".detach()"
    return text if _is_fresh(source, tensor, 0) else f"{text}.clone()"


def without_reading(source: SourceFile, line: Line) -> str:
    """Return the statement of a line that reads, rewritten to keep the tensor, and where the host
    then reads instead."""
    node, tensor = line.node, _tensor_of(line.node)
    if tensor is None or not isinstance(node, ast.Call):
        return ""
    kept, statement = tensor_read(source, line), source.statement_of(node)
    while True:  # x.cpu().numpy() of its x.cpu()
        method, call = [*source.parents(node), None, None][:2]
        follows = isinstance(call, ast.Call) and call.func is method
        if not follows or not isinstance(call, ast.Call) or last_name(call) not in _READS:
            break
        node = call
    how = _methods_after(tensor, node)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return _rewritten_assignment(source, statement, node, kept, how)
    if isinstance(statement, ast.AugAssign) and statement.value is node and how == ".item()":
        if not isinstance(statement.op, ast.Add | ast.Sub):
            return ""
        sign, _ = _SIGNS[type(statement.op)]
        into = source.written(statement.target)
        return (
            f"{into} {sign} {kept}.double()  # on the device, as exact as Python's number\n"
            f"# where it is shown: float({into})"
        )
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if last_name(call) == "append" and call.args == [node]:
            assert isinstance(call.func, ast.Attribute)
            into = source.written(call.func.value)
            return (
                f"{into}.append({kept})  # stays on the device\n"
                f"{into} = [one{how} for one in {into}]  # once, after the loop"
            )
        if last_name(call) in _LOGS:
            return now_and_then(source, statement, source.written(statement))
    return ""


def _tensor_of(node: ast.AST | None) -> ast.expr | None:
    """Return the tensor that a call reads: `x` of x.item(), x.cpu(), float(x)."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
        return node.func.value
    plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "round")
    return node.args[0] if plain and len(node.args) == 1 and not node.keywords else None


def _methods_after(tensor: ast.expr, call: ast.Call) -> str:
    """Return the methods that follow a tensor: .cpu().numpy(); for float(x) the same as a
    method."""
    if not isinstance(call.func, ast.Attribute):
        return ".item()"
    names = ""
    while isinstance(call.func, ast.Attribute):
        given = [ast.unparse(one) for one in (*call.args, *call.keywords)]
        names = f".{call.func.attr}({', '.join(given)}){names}"
        if call.func.value is tensor or not isinstance(call.func.value, ast.Call):
            break
        call = call.func.value
    return names


def _rewritten_assignment(
    source: SourceFile, statement: ast.Assign | ast.AnnAssign, whole: ast.Call, kept: str, how: str
) -> str:
    targets, value = targets_of(statement), statement.value
    if len(targets) != 1 or not isinstance(targets[0], ast.Name | ast.Attribute) or value is None:
        return ""
    into = source.written(targets[0])
    if value is whole:
        return f"{into} = {kept}  # stays on the device\n# where the host reads it: {into}{how}"
    if how != ".item()":
        return ""
    if isinstance(value, ast.Call) and whole in value.args:
        limit = _limit_of_extreme(value, into)
        if limit:
            return (
                f"{into} = {kept}.clamp({limit}={into})  # stays on the device\n"
                f"# where it is shown: float({into})"
            )
    return _read_together(source, statement, whole)


def _limit_of_extreme(value: ast.Call, into: str) -> str:
    """Return the argument of `clamp` that does what `into = max(into, x)` does: clamp takes the
    number that `into` begins with, and the tensor that it is from then on. Return "" for another
    call."""
    others = [one for one in value.args if ast.unparse(one) != into]
    plain = isinstance(value.func, ast.Name) and value.func.id in ("max", "min")
    if not plain or value.keywords or len(value.args) != 2 or len(others) != 1:
        return ""
    return "min" if last_name(value) == "max" else "max"


def _read_together(source: SourceFile, statement: ast.stmt, whole: ast.Call) -> str:
    """Rewrite [x.item() for x in y] and sum(x.item() for x in y) so that all are read with one
    wait."""
    around, call = [*source.parents(whole), None, None][:2]
    tensor = _tensor_of(whole)
    if not isinstance(around, ast.ListComp | ast.GeneratorExp) or around.elt is not whole:
        return ""
    if tensor is None:
        return ""
    loops = " ".join(
        f"for {ast.unparse(one.target)} in {ast.unparse(one.iter)}"
        + "".join(f" if {ast.unparse(test)}" for test in one.ifs)
        for one in around.generators
    )
    stacked = f"torch.stack([{operand(source, tensor)} {loops}])"
    if isinstance(around, ast.ListComp):
        old, new = source.written(around), f"{stacked}.flatten().tolist()"
    elif isinstance(call, ast.Call) and last_name(call) == "sum" and len(call.args) == 1:
        old, new = source.written(call), f"{stacked}.sum().item()"
    else:
        return ""
    before = source.written(statement)
    return f"{before.replace(old, new)}  # one wait for all" if before.count(old) == 1 else ""


def _is_fresh(source: SourceFile, value: ast.expr, depth: int) -> bool:
    """Return whether nobody else holds the memory of a tensor: a function made it, and it is kept
    in no buffer."""
    if depth > _MAX_FOLLOWED_NAMES:
        return False
    if isinstance(value, ast.BinOp | ast.UnaryOp | ast.Compare):
        return True
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
            return _is_fresh(source, value.func.value, depth + 1)
        return not last_name(value).endswith("_")
    if not isinstance(value, ast.Name):
        return False
    nodes = list(ast.walk(source.function_of(value) or source.module))
    given = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(isinstance(t, ast.Name) and t.id == value.id for t in targets_of(node))
    ]
    if not given or any(_changes(node, value.id) for node in nodes):
        return False
    return all(one is not None and _is_fresh(source, one, depth + 1) for one in given)


def _changes(node: ast.AST, name: str) -> bool:
    """Return whether a node changes a tensor in place: name += x, name.add_(x), name[i] = x."""
    changed: ast.expr | None = None
    if isinstance(node, ast.AugAssign):
        changed = node.target
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        changed = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        in_place = node.func.attr.endswith("_") and node.func.attr != "requires_grad_"
        changed = node.func.value if in_place else None
    return isinstance(changed, ast.Name) and changed.id == name


def without_branch(source: SourceFile, line: Line) -> str:
    """Return code in which the device decides; "" if the branch cannot be rewritten. `line` is that
    of a branch, or of a call in its test."""
    if line.node is None:
        return ""
    branch = _branch(source, line.node)
    if branch is None:
        return _clamped(source, line.node)
    test = branch.test
    whole = _as_tensor(source, test)
    if isinstance(branch, ast.Assert) and whole:
        return f"torch._assert_async({whole})  # looked at on the device, without waiting"
    if isinstance(branch, ast.If) and whole and not branch.orelse and len(branch.body) == 1:
        changed = _changed(source, branch.body[0], whole)
        if changed:
            return changed
    if isinstance(branch, ast.While):
        return (
            "for done in itertools.count():  # import itertools\n"
            f"    if done % 10 == 0 and not ({source.written(test)}):  # one wait in 10 rounds\n"
            "        break\n    ...  # the loop's body"
        )
    part = tensor_part(source, branch, test)
    condition = whole or (_as_tensor(source, part) if part is not None else "")
    return _counted(source, branch, condition) if condition else ""


def without_read_branch(source: SourceFile, line: Line) -> str:
    """Return code without the branch for a number that is read for a condition, as in
    `if loss.item() > limit`; "" if there is none."""
    node = line.node
    branch = _branch(source, node, anywhere=True) if node is not None else None
    if branch is None or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    on = node.func.value
    if node.args or on.end_lineno != node.end_lineno:
        return ""
    # Replace the number by the tensor itself, in the same place of the same text.
    lines = source.text.encode().splitlines(keepends=True)
    row = (node.end_lineno or 1) - 1
    start, end = on.end_col_offset or 0, node.end_col_offset or 0
    lines[row] = lines[row][:start] + b".detach()" + lines[row][end:]
    changed = SourceFile(source.file, b"".join(lines).decode())
    same = [
        other for other in changed.nodes
        if isinstance(other, _Branch) and type(other) is type(branch)
        and (other.lineno, other.col_offset) == (branch.lineno, branch.col_offset)
    ]  # fmt: skip
    return without_branch(changed, replace(line, node=same[0])) if same else ""


def _branch(source: SourceFile, node: ast.AST, *, anywhere: bool = False) -> _Branch | None:
    """Return the node itself if it is a branch, else the branch whose whole test the node is; with
    `anywhere`, the branch whose test contains the node at any depth."""
    below = node
    for at in (node, *source.parents(node)):
        if isinstance(at, _Branch):
            if anywhere:
                return at if any(part is node for part in ast.walk(at.test)) else None
            return at if at is node or below is at.test else None
        if isinstance(at, ast.stmt):
            return None
        below = at
    return None


def _as_tensor(source: SourceFile, test: ast.expr) -> str:
    """The test as a tensor on the device; "" where Python has to judge (and, or, not, a < b < c)"""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return source.written(test)
    if isinstance(test, ast.Name | ast.Attribute):
        return f"{source.written(test)} != 0"
    if not isinstance(test, ast.Call):
        return ""
    name, given = last_name(test), [source.written(one) for one in test.args]
    if name in ("equal", "allclose"):
        if isinstance(test.func, ast.Attribute) and source.written(test.func.value) != "torch":
            given.insert(0, operand(source, test.func.value))
        options = [f"{k.arg}={source.written(k.value)}" for k in test.keywords if k.arg]
        if name == "allclose":
            return f"torch.isclose({', '.join([*given, *options])}).all()"
        return f"({given[0]} == {given[1]}).all()" if len(given) == 2 else ""
    of_python = isinstance(test.func, ast.Name) and name in ("any", "all", "max", "min", "bool")
    return "" if of_python else source.written(test)


def _changed(source: SourceFile, done: ast.stmt, test: str) -> str:
    if isinstance(done, ast.AugAssign) and type(done.op) in _SIGNS:
        sign, same = _SIGNS[type(done.op)]
        into, value = source.written(done.target), source.written(done.value)
        number = isinstance(done.value, ast.Constant) and isinstance(done.value.value, int | float)
        if number and same == 0:
            much = test if value == "1" else f"{value} * ({test})"
            return f"{into} {sign} {much}  # counted on the device; {into} is a tensor then"
        return f"{into} {sign} torch.where({test}, {value}, {same})  # chosen on the device"
    if isinstance(done, ast.Assign) and len(done.targets) == 1:
        into, value = source.written(done.targets[0]), source.written(done.value)
        again = any(ast.unparse(part) == into for part in ast.walk(done.value))
        if again and isinstance(done.value, ast.BinOp):
            return f"{into} = torch.where({test}, {value}, {into})  # chosen on the device"
    if isinstance(done, ast.Expr) and isinstance(done.value, ast.Call):
        call = done.value
        if last_name(call) in ("mul_", "div_") and len(call.args) == 1 and not call.keywords:
            into, value = source.written(call.func), source.written(call.args[0])
            return f"{into}(torch.where({test}, {value}, 1))  # chosen on the device"
    return ""


def _clamped(source: SourceFile, node: ast.AST) -> str:
    """Rewrite best = max(best, x.norm()) with Python's max, which compares on the host."""
    statement = source.statement_of(node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return ""
    into = source.written(statement.targets[0])
    limit = _limit_of_extreme(node, into) if isinstance(node, ast.Call) else ""
    if not limit or not isinstance(node, ast.Call):
        return ""
    other = next(one for one in node.args if ast.unparse(one) != into)
    return f"{into} = {operand(source, other)}.detach().clamp({limit}={into})  # on the device"


def _counted(source: SourceFile, branch: ast.AST, test: str) -> str:
    name = counter(source, branch)
    seen = "seen = 0  # once, before the loop"
    judged = f"if {name} % {EVERY} == 0 and seen > 0:  # one wait in {EVERY} steps"
    if not name:
        seen = "seen, asked = 0, itertools.count()  # once, before the loop; import itertools"
        judged = f"if next(asked) % {EVERY} == 0 and seen > 0:  # one wait in {EVERY} rounds"
    return (
        f"{seen}\n"
        f"seen = seen + ({test})  # counted on the device, without waiting\n"
        f"{judged}\n    ...  # what the branch did, for all since the last look"
    )
