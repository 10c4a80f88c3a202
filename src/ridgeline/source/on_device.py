"""Statements that read from the device, and branches on tensors, rewritten so that the value stays
on the device.

Only where the new code is known to mean the same: an assignment, a sum, a maximum, a list that
grows, a line of a log, something counted or changed under an `if` without an `else`, an assertion.
Elsewhere the result is "", and a rule shows what to do with the expression alone.
"""

import ast

from msgspec.structs import replace

from ridgeline.source.file import (
    SourceFile,
    last_name,
)
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
_DEEPEST = 4


def held(source: SourceFile, line: Line) -> str:
    """What a reading call reads, as a tensor of its own: `x.norm().detach()`; "" for other calls.
    A copy where it is the memory of something that may be changed later."""
    of = _read(line.node)
    if of is None:
        return ""
    text = operand(source, of)
    if ".detach()" not in text:
        text += ".detach()"
    return text if _fresh(source, of, 0) else f"{text}.clone()"


def without_reading(source: SourceFile, line: Line) -> str:
    """The statement of a line that reads, and where the host then reads instead."""
    node, kept = line.node, held(source, line)
    statement = source.statement_of(node) if node is not None else None
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


def _summed(source: SourceFile, statement: ast.AugAssign, kept: str) -> str:
    if not isinstance(statement.op, ast.Add | ast.Sub):
        return ""
    sign = "+" if isinstance(statement.op, ast.Add) else "-"
    into = source.written(statement.target)
    return (
        f"{into} {sign}= {kept}.double()  # on the device, as exact as Python's number\n"
        f"# where it is shown: float({into})"
    )


def _assigned(
    source: SourceFile, statement: ast.Assign | ast.AnnAssign, whole: ast.Call, kept: str, how: str
) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    if len(targets) != 1 or not isinstance(targets[0], ast.Name | ast.Attribute) or value is None:
        return ""
    into = source.written(targets[0])
    if value is whole:
        return f"{into} = {kept}  # stays on the device\n# where the host reads it: {into}{how}"
    if isinstance(value, ast.Call) and how == ".item()" and _is_extreme(value, into, whole):
        # clamp takes the number it begins with, and the tensor it is from then on
        limit = "min" if last_name(value) == "max" else "max"
        return (
            f"{into} = {kept}.clamp({limit}={into})  # stays on the device\n"
            f"# where it is shown: float({into})"
        )
    return _gathered(source, statement, whole) if how == ".item()" else ""


def _is_extreme(value: ast.Call, into: str, whole: ast.Call) -> bool:
    """into = max(into, whole)."""
    plain = isinstance(value.func, ast.Name) and value.func.id in ("max", "min")
    if not plain or len(value.args) != 2 or value.keywords:
        return False
    others = [ast.unparse(one) for one in value.args if one is not whole]
    return others == [into]


def _gathered(source: SourceFile, statement: ast.stmt, whole: ast.Call) -> str:
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
        if not isinstance(call, ast.Call) or last_name(call) != "sum" or len(call.args) != 1:
            return ""
        old, new = call, f"{listed}.sum().item()"
    before, part = source.written(statement), source.written(old)
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
    source: SourceFile, statement: ast.Expr, call: ast.Call, whole: ast.Call, kept: str, how: str
) -> str:
    if (
        last_name(call) == "append"
        and call.args == [whole]
        and isinstance(call.func, ast.Attribute)
    ):
        into = source.written(call.func.value)
        return (
            f"{into}.append({kept})  # stays on the device\n"
            f"{into} = [one{how} for one in {into}]  # once, after the loop"
        )
    if last_name(call) in _LOGS:
        return now_and_then(source, statement, source.written(statement))
    return ""


def _read(node: ast.AST | None) -> ast.expr | None:
    """x of x.item(), x.cpu(), float(x)."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
        return node.func.value
    plain = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "round")
    return node.args[0] if plain and len(node.args) == 1 and not node.keywords else None


def _chain(source: SourceFile, node: ast.Call) -> ast.Call:
    """x.cpu().numpy() of its x.cpu()."""
    above = source.parents(node)
    method, call = next(above, None), next(above, None)
    if isinstance(method, ast.Attribute) and isinstance(call, ast.Call) and call.func is method:
        return _chain(source, call) if method.attr in _READS else node
    return node


def _how(source: SourceFile, of: ast.expr, whole: ast.Call) -> str:
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


def _fresh(source: SourceFile, value: ast.expr, depth: int) -> bool:
    """Whether nobody else holds the memory: made by a function, kept in no buffer."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, ast.BinOp | ast.UnaryOp | ast.Compare):
        return True
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
            return _fresh(source, value.func.value, depth + 1)
        return not last_name(value).endswith("_")
    if not isinstance(value, ast.Name):
        return False
    around = next(
        (a for a in source.parents(value) if isinstance(a, ast.FunctionDef)), source.module
    )
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


_SIGNS: dict[type[ast.operator], tuple[str, int]] = {
    ast.Add: ("+=", 0),
    ast.Sub: ("-=", 0),
    ast.Mult: ("*=", 1),
    ast.Div: ("/=", 1),
}
"""And what leaves the value as it is."""


def without_branch(source: SourceFile, line: Line) -> str:
    """`line`: of a branch, or of a call in its test."""
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
    part = tensor_part(source, branch, test)
    told = whole or (_as_tensor(source, part) if part is not None else "")
    if isinstance(branch, ast.While):
        return _rounds(source.written(test))
    return _counted(source, branch, told) if told else ""


def without_read_branch(source: SourceFile, line: Line) -> str:
    """Return code without the branch for a number that is read for a condition, as in
    `if loss.item() > limit`; "" if there is none."""
    node = line.node
    branch = _branch_around(source, node) if node is not None else None
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
    same = next(
        (
            n
            for n in ast.walk(changed.module)
            if type(n) is type(branch)
            and (n.lineno, n.col_offset) == (branch.lineno, branch.col_offset)
        ),
        None,
    )
    return without_branch(changed, replace(line, node=same)) if same is not None else ""


def _branch_around(
    source: SourceFile, node: ast.AST
) -> ast.If | ast.While | ast.Assert | ast.IfExp | None:
    """Return the branch whose condition contains a node at any depth, or None."""
    for at in source.parents(node):
        if isinstance(at, ast.If | ast.While | ast.Assert | ast.IfExp):
            return at if any(part is node for part in ast.walk(at.test)) else None
        if isinstance(at, ast.stmt):
            return None
    return None


def _branch(
    source: SourceFile, node: ast.AST
) -> ast.If | ast.While | ast.Assert | ast.IfExp | None:
    """The node itself, or the one whose test it stands in."""
    below: ast.AST = node
    for at in (node, *source.parents(node)):
        if isinstance(at, ast.If | ast.While | ast.Assert | ast.IfExp):
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
    """best = max(best, x.norm()): of Python's, which compares on the host."""
    statement = source.statement_of(node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return ""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return ""
    into = source.written(statement.targets[0])
    others = [one for one in node.args if ast.unparse(one) != into]
    if last_name(node) not in ("max", "min") or len(node.args) != 2 or len(others) != 1:
        return ""
    limit = "min" if last_name(node) == "max" else "max"
    # clamp takes the number it begins with, and the tensor it is from then on
    return f"{into} = {operand(source, others[0])}.detach().clamp({limit}={into})  # on the device"


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


def _rounds(test: str) -> str:
    return (
        "for done in itertools.count():  # import itertools\n"
        f"    if done % 10 == 0 and not ({test}):  # one wait in 10 rounds\n"
        "        break\n    ...  # the loop's body"
    )
