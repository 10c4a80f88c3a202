"""A branch on a tensor, rewritten so that the device decides.

Only where it is known to mean the same: something counted or changed under an `if` without an
`else`, an assertion. Elsewhere the test is counted on the device and looked at now and then.
"""

import ast

from msgspec.structs import replace

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.statements import EVERY, counter, operand, statement_of, written
from ridgeline.source.reading.waiting_lines import Line, called, tensor_part

_SIGNS: dict[type[ast.operator], tuple[str, int]] = {
    ast.Add: ("+=", 0),
    ast.Sub: ("-=", 0),
    ast.Mult: ("*=", 1),
    ast.Div: ("/=", 1),
}
"""And what leaves the value as it is."""


def without_branch(source: Source, line: Line) -> str:
    """`line`: of a branch, or of a call in its test."""
    if line.node is None:
        return ""
    branch = _branch(source, line.node)
    if branch is None:
        return _extreme(source, line.node)
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
        return _rounds(written(source, test))
    return _counted(source, branch, told) if told else ""


def without_read_branch(source: Source, line: Line) -> str:
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
    changed = Source(source.file, b"".join(lines).decode())
    same = next(
        (
            n
            for n in ast.walk(changed.tree)
            if type(n) is type(branch)
            and (n.lineno, n.col_offset) == (branch.lineno, branch.col_offset)
        ),
        None,
    )
    return without_branch(changed, replace(line, node=same)) if same is not None else ""


def _branch_around(
    source: Source, node: ast.AST
) -> ast.If | ast.While | ast.Assert | ast.IfExp | None:
    """Return the branch whose condition contains a node at any depth, or None."""
    for at in source.parents(node):
        if isinstance(at, ast.If | ast.While | ast.Assert | ast.IfExp):
            return at if any(part is node for part in ast.walk(at.test)) else None
        if isinstance(at, ast.stmt):
            return None
    return None


def _branch(source: Source, node: ast.AST) -> ast.If | ast.While | ast.Assert | ast.IfExp | None:
    """The node itself, or the one whose test it stands in."""
    below: ast.AST = node
    for at in (node, *source.parents(node)):
        if isinstance(at, ast.If | ast.While | ast.Assert | ast.IfExp):
            return at if at is node or below is at.test else None
        if isinstance(at, ast.stmt):
            return None
        below = at
    return None


def _as_tensor(source: Source, test: ast.expr) -> str:
    """The test as a tensor on the device; "" where Python has to judge (and, or, not, a < b < c)"""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return written(source, test)
    if isinstance(test, ast.Name | ast.Attribute):
        return f"{written(source, test)} != 0"
    if not isinstance(test, ast.Call):
        return ""
    name, given = called(test), [written(source, one) for one in test.args]
    if name in ("equal", "allclose"):
        if isinstance(test.func, ast.Attribute) and written(source, test.func.value) != "torch":
            given.insert(0, operand(source, test.func.value))
        options = [f"{k.arg}={written(source, k.value)}" for k in test.keywords if k.arg]
        if name == "allclose":
            return f"torch.isclose({', '.join([*given, *options])}).all()"
        return f"({given[0]} == {given[1]}).all()" if len(given) == 2 else ""
    of_python = isinstance(test.func, ast.Name) and name in ("any", "all", "max", "min", "bool")
    return "" if of_python else written(source, test)


def _changed(source: Source, done: ast.stmt, test: str) -> str:
    if isinstance(done, ast.AugAssign) and type(done.op) in _SIGNS:
        sign, same = _SIGNS[type(done.op)]
        into, value = written(source, done.target), written(source, done.value)
        number = isinstance(done.value, ast.Constant) and isinstance(done.value.value, int | float)
        if number and same == 0:
            much = test if value == "1" else f"{value} * ({test})"
            return f"{into} {sign} {much}  # counted on the device; {into} is a tensor then"
        return f"{into} {sign} torch.where({test}, {value}, {same})  # chosen on the device"
    if isinstance(done, ast.Assign) and len(done.targets) == 1:
        into, value = written(source, done.targets[0]), written(source, done.value)
        again = any(ast.unparse(part) == into for part in ast.walk(done.value))
        if again and isinstance(done.value, ast.BinOp):
            return f"{into} = torch.where({test}, {value}, {into})  # chosen on the device"
    if isinstance(done, ast.Expr) and isinstance(done.value, ast.Call):
        call = done.value
        if called(call) in ("mul_", "div_") and len(call.args) == 1 and not call.keywords:
            into, value = written(source, call.func), written(source, call.args[0])
            return f"{into}(torch.where({test}, {value}, 1))  # chosen on the device"
    return ""


def _extreme(source: Source, node: ast.AST) -> str:
    """best = max(best, x.norm()): of Python's, which compares on the host."""
    statement = statement_of(source, node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return ""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return ""
    into = written(source, statement.targets[0])
    others = [one for one in node.args if ast.unparse(one) != into]
    if called(node) not in ("max", "min") or len(node.args) != 2 or len(others) != 1:
        return ""
    limit = "min" if called(node) == "max" else "max"
    # clamp takes the number it begins with, and the tensor it is from then on
    return f"{into} = {operand(source, others[0])}.detach().clamp({limit}={into})  # on the device"


def _counted(source: Source, branch: ast.AST, test: str) -> str:
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
