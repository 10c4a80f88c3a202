"""Mixed precision written into the user's source, as a trial applies it.

A model's call is put into autocast and its result turned into float32 again: `with …:` around
`logits = model(x)` and `logits = logits.float()` after it. A call in the middle of an expression is
made before it, under a name of its own. For float16 a gradient scaler is written into the loop: the
loss scaled for its backward, gradients scaled back before they are clipped, the step taken by the
scaler.

How the program uses the model's result shows what the result is: a tensor is an operand or an
argument, or has methods; an object has fields. An object is not turned back: there the `with` goes
on to the loss, whose operators autocast runs in float32 itself.
"""

import ast
from collections.abc import Iterator
from typing import Literal

from ridgeline.records.edit import Edit, Import, Insert, Replace, Top, Within
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.file import Function, SourceFile, calls_in, dotted_name, last_name
from ridgeline.source.models import GENERATE, backward, call_of, given_to_loss, to_backward
from ridgeline.source.program import ReadText, classes

_LAZY = (
    ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
    ast.Await, ast.NamedExpr,
)  # fmt: skip
"""Expressions that may not run what is in them, or run it often."""
_RESULT_NAMES = ("outputs", "predicted", "model_outputs", "outputs_of_model")
_SCALER_NAMES = ("scaler", "grad_scaler", "loss_scaler")
_TENSOR_ATTRIBUTES = {"T", "mT", "shape", "dtype", "device", "data", "grad", "ndim",
                      "requires_grad"}  # fmt: skip
_MAPPING_METHODS = {"items", "keys", "values", "get", "to_tuple"}
_NO_OPTIMIZERS = ("sched", "prof", "lr_", "warmup", "writer", "bar", "env")
"""Words in the names of objects that have a step() and are no optimizer."""
_BACK = "in float32 again, as before"
_SCALED = "float16 gradients that would be zero are kept"


def cast_edits(
    file: str,
    source: ReadText,
    line: int,
    header: str,
    why: str,
    kind: str = "",
    *,
    half: bool = False,
) -> tuple[Edit, ...] | Reason:
    """Return the edits that run the model's call on a line under `header`, or why no edit does.
    With `half`, what a cross-entropy is given stays in 16 bits, since the loss casts it itself."""
    text = source(file) or ""
    found = call_of(text, line, kind)
    if isinstance(found, Reason):
        return found
    tree, call = found
    if last_name(call) == GENERATE:  # what it returns are tokens
        statement = tree.statement_of(call)
        last = statement.end_lineno or statement.lineno
        whole = Within(file=file, first=statement.lineno, last=last, header=header, why=why)
        return whole, Import(file=file, text="import torch")
    to_loss = frozenset(given_to_loss(tree) if half else ())
    edits = _around_assignment(file, tree, call, header, why, to_loss)
    edits = edits or _before_statement(file, tree, call, header, why, to_loss)
    if edits is None or _returns_objects(source, file, kind):
        lines = to_backward(text, line, kind)
        if isinstance(lines, Reason):
            return lines
        edits = (Within(file=file, first=lines[0], last=lines[1], header=header, why=why),)
    return (*edits, Import(file=file, text="import torch"))


def _around_assignment(
    file: str, tree: SourceFile, call: ast.Call, header: str, why: str, to_loss: frozenset[ast.AST]
) -> tuple[Edit, ...] | None:
    """Return the edits for `logits = model(x)` and `logits, loss = model(x, y)`, alone on their
    lines."""
    statement = tree.statement_of(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    plain = [one.id for one in names if isinstance(one, ast.Name)]
    if len(statement.targets) > 1 or len(plain) != len(names) or not _is_alone(tree, statement):
        return None
    kinds = [_kind(tree, statement, name) for name in plain]
    if "object" in kinds:
        return None
    first = statement.lineno
    around = Within(
        file=file, first=first, last=statement.end_lineno or first, header=header, why=why
    )
    used = [
        name
        for name, kind in zip(plain, kinds, strict=True)
        if kind == "tensor" and to_loss.isdisjoint(_uses(tree, statement, name))
    ]
    if not used:
        return (around,)
    back = f"{', '.join(used)} = {', '.join(f'{name}.float()' for name in used)}"
    return around, Insert(file=file, line=first, where="after", text=back, why=_BACK)


def _before_statement(
    file: str, tree: SourceFile, call: ast.Call, header: str, why: str, to_loss: frozenset[ast.AST]
) -> tuple[Edit, ...] | None:
    """Return the edits for `loss = F.cross_entropy(model(x), y)`: the call before the statement,
    its result in the place of the call."""
    statement = tree.statement_of(call)
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return
    if not isinstance(statement, simple) or not _begins_line(tree, statement):
        return None
    if not _runs_first(tree, call, statement):
        return None
    if isinstance(statement, ast.Assign) and statement.value is call:
        names = [one for one in statement.targets if isinstance(one, ast.Name)]
        alone = len(names) == len(statement.targets) == 1
        if not alone or _kind(tree, statement, names[0].id) == "object":
            return None
    name = _free_name(tree, _RESULT_NAMES)
    if not name:
        return None
    parent, outer = [*tree.parents(call), None][:2]
    whole: ast.expr = call
    back = "" if call in to_loss else ".float()"
    after = f"{name}{back}"
    is_method = isinstance(outer, ast.Call) and outer.func is parent
    if isinstance(parent, ast.Attribute) and not is_method:
        whole, after = parent, f"{name}.{parent.attr}"
        after += "" if parent.attr in _TENSOR_ATTRIBUTES or "loss" in parent.attr else back
    elif isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        whole, after = parent, f"{name}[{ast.unparse(parent.slice)}]{back}"
    made = f"with {header}:\n    {name} = {ast.unparse(call)}"
    return (
        Insert(file=file, line=statement.lineno, where="before", text=made, why=why),
        Replace(
            file=file, line=call.lineno, before=ast.unparse(whole), after=after,
            why=_BACK if back else "turned into float32 by the loss",
        ),
    )  # fmt: skip


def _free_name(tree: SourceFile, names: tuple[str, ...]) -> str:
    """Return the first of the names that the file does not use; "" if it uses all."""
    used = {node.id for node in tree.nodes if isinstance(node, ast.Name)}
    return next((name for name in names if name not in used), "")


def _runs_first(tree: SourceFile, call: ast.Call, statement: ast.stmt) -> bool:
    """Return whether a call always runs, and nothing that could matter runs before it in its
    statement."""
    inner: ast.AST = call
    for outer in tree.parents(call):
        if isinstance(outer, _LAZY):
            return False
        for child in ast.iter_child_nodes(outer):
            if child is inner:
                break
            if any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(child)):
                return False
        if outer is statement:
            return True
        inner = outer
    return False


def _kind(tree: SourceFile, made: ast.stmt, name: str) -> Literal["tensor", "object", "unused"]:
    """Return what a name holds after a statement, by what its function does with it."""
    uses = list(_uses(tree, made, name))
    if any(_is_object(tree, node) for node in uses):
        return "object"
    return "tensor" if uses else "unused"


def _is_object(tree: SourceFile, node: ast.Name) -> bool:
    """Return whether a name is used as no tensor is: by a field, by an index, unpacked."""
    parent, outer = [*tree.parents(node), None][:2]
    match parent:
        case ast.Attribute():
            called = isinstance(outer, ast.Call) and outer.func is parent
            return parent.attr in _MAPPING_METHODS or not (
                called or parent.attr in _TENSOR_ATTRIBUTES
            )
        case ast.Subscript():
            return parent.value is node and isinstance(parent.slice, ast.Constant)
        case ast.For() | ast.Starred():
            return True
        case ast.keyword():
            return parent.arg is None
        case ast.Assign():
            return isinstance(parent.targets[0], ast.Tuple)
    return False


def _uses(tree: SourceFile, made: ast.stmt, name: str) -> Iterator[ast.Name]:
    """Yield the reads of a name after a statement, until the name is assigned anew."""
    after = [
        node
        for node in ast.walk(tree.scope_of(made))
        if isinstance(node, ast.Name)
        and node.id == name
        and tree.statement_of(node) is not made
        and (node.lineno, node.col_offset) > (made.lineno, made.col_offset)
    ]
    for node in sorted(after, key=lambda one: (one.lineno, one.col_offset)):
        statement = tree.statement_of(node)
        if isinstance(node.ctx, ast.Load):
            yield node
        elif tree.block_of(statement) is tree.block_of(made):
            # the value of `x = f(x)` is read before the name is assigned
            for other in after:
                if tree.statement_of(other) is statement and isinstance(other.ctx, ast.Load):
                    yield other
            return


def _returns_objects(source: ReadText, file: str, kind: str) -> bool:
    """Return whether the class is the user's own, and its forward returns a list or a mapping."""
    for _, node in classes(source, file, kind) if kind else ():
        for method in node.body:
            if isinstance(method, Function) and method.name == "forward":
                values = [n.value for n in ast.walk(method) if isinstance(n, ast.Return)]
                return any(isinstance(one, ast.Dict | ast.List) for one in values)
    return False


def _is_alone(tree: SourceFile, statement: ast.stmt) -> bool:
    """Return whether no other statement is on the lines of a statement."""
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    return getattr(next(tree.parents(statement)), "lineno", 0) not in lines and not any(
        one is not statement and (one.lineno in lines or one.end_lineno in lines)
        for one in tree.block_of(statement)
    )


def _begins_line(tree: SourceFile, statement: ast.stmt) -> bool:
    """Return whether no other statement, nor the header of its block, begins the line of a
    statement."""
    line = statement.lineno
    return getattr(next(tree.parents(statement)), "lineno", 0) != line and not any(
        one is not statement and one.end_lineno == line and one.col_offset < statement.col_offset
        for one in tree.block_of(statement)
    )


def scaler_edits(
    file: str, text: str, line: int, device: str, scale: float, kind: str = ""
) -> tuple[Edit, ...] | Reason:
    """Return the edits that write a gradient scaler, which begins with `scale`, into the loop; or
    why the loop is not plain enough."""
    found = call_of(text, line, kind)
    if isinstance(found, Reason):
        return found
    tree, call = found
    lines = backward(text, line, kind)
    if isinstance(lines, Reason):
        return lines
    first, last = lines
    loss = [c for c in tree.calls if first <= c.lineno <= last and last_name(c) == "backward"]
    if len(loss) != 1 or not isinstance(loss[0].func, ast.Attribute):
        return because(Obstacle.NO_PLAIN_BACKWARD, first=first, last=last)
    scope = tree.scope_of(call)
    steps = [c for c in calls_in(scope) if _is_step(tree, c)]
    owners = {dotted_name(c.func).rpartition(".")[0] for c in steps}
    if len(owners) != 1:
        return because(Obstacle.SEVERAL_STEPS, optimizers=len(owners))
    if any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(scope)):
        return because(Obstacle.GRADIENTS_READ)
    name, owner = _free_name(tree, _SCALER_NAMES), owners.pop()
    if not name:
        return because(Obstacle.NO_FREE_NAME)
    before = ast.unparse(loss[0].func.value)
    made = f'{name} = torch.amp.GradScaler("{device}", init_scale={scale})'
    edits: list[Edit] = [
        Top(file=file, where="after imports", text=made, why=_SCALED),
        Replace(
            file=file, line=loss[0].lineno, before=before, after=f"{name}.scale({before})",
            why=_SCALED,
        ),
    ]  # fmt: skip
    clips = [c for c in calls_in(scope) if last_name(c).startswith("clip_grad")]
    if clips:
        line = min(tree.statement_of(clip).lineno for clip in clips)
        text = f"{name}.unscale_({owner})"
        edits.append(
            Insert(file=file, line=line, where="before", text=text, why="clipped as they are")
        )
    for step in steps:
        line, before, after = (
            tree.statement_of(step).lineno,
            ast.unparse(step),
            f"{name}.step({owner})",
        )
        edits += [
            Replace(file=file, line=line, before=before, after=after, why=_SCALED),
            Insert(file=file, line=line, where="after", text=f"{name}.update()", why=_SCALED),
        ]
    return tuple(edits)


def _is_step(tree: SourceFile, call: ast.Call) -> bool:
    owner, _, name = dotted_name(call.func).rpartition(".")
    if name != "step" or not owner or any(word in owner.lower() for word in _NO_OPTIMIZERS):
        return False
    return isinstance(tree.statement_of(call), ast.Expr) and not call.args and not call.keywords
