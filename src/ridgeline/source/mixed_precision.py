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

from msgspec import Struct

from ridgeline.records.edit import Edit, Import, Insert, Replace, Top, Within
from ridgeline.source.file import (
    Function,
    SourceFile,
    calls_in,
    dotted_name,
    last_name,
)
from ridgeline.source.losses import given_to_loss
from ridgeline.source.models import backward, call_of, to_backward
from ridgeline.source.program import ReadText, classes

_LAZY = (
    ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
    ast.Await, ast.NamedExpr,
)  # fmt: skip
"""What may not run what is in it, or run it often."""
_RESULT_NAMES = ("outputs", "predicted", "model_outputs", "outputs_of_model")
_OF_TENSORS = {"T", "mT", "shape", "dtype", "device", "data", "grad", "ndim", "requires_grad"}
_OF_MAPPINGS = {"items", "keys", "values", "get", "to_tuple"}
_BACK = "in float32 again, as before"
Kind = Literal["tensor", "object", "unused"]


class _Cast(Struct, frozen=True, kw_only=True):
    """A model's call that is to run under `header`."""

    file: str
    tree: SourceFile
    call: ast.Call
    header: str
    why: str
    to_loss: frozenset[ast.AST]
    """What stays in 16 bits, since a loss turns it into float32 itself."""


def cast_edits(
    file: str,
    source: ReadText,
    line: int,
    header: str,
    why: str,
    kind: str = "",
    *,
    half: bool = False,
) -> tuple[Edit, ...] | str:
    """Why not, where no edit says it. `half`: what a cross-entropy is given stays in 16 bits."""
    text = source(file) or ""
    found = call_of(text, line, kind)
    if isinstance(found, str):
        return found
    tree, call = found
    to_loss = frozenset(given_to_loss(tree) if half else ())
    cast = _Cast(file=file, tree=tree, call=call, header=header, why=why, to_loss=to_loss)
    edits = _assigned(cast) or _nested(cast)
    if edits is None or _returns_objects(source, file, kind):
        lines = to_backward(text, line, kind)
        if isinstance(lines, str):
            return lines
        edits = (Within(file=file, first=lines[0], last=lines[1], header=header, why=why),)
    return (*edits, Import(file=file, text="import torch"))


def _assigned(cast: _Cast) -> tuple[Edit, ...] | None:
    """`logits = model(x)`, `logits, loss = model(x, y)`, alone on their lines."""
    tree, call = cast.tree, cast.call
    statement = tree.statement_of(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    plain = [one.id for one in names if isinstance(one, ast.Name)]
    if len(statement.targets) > 1 or len(plain) != len(names) or _beside(tree, statement):
        return None
    kinds = [_kind(tree, statement, name) for name in plain]
    if "object" in kinds:
        return None
    last = statement.end_lineno or statement.lineno
    around = Within(
        file=cast.file, first=statement.lineno, last=last, header=cast.header, why=cast.why
    )
    used = [
        name
        for name, one in zip(plain, kinds, strict=True)
        if one == "tensor" and cast.to_loss.isdisjoint(_uses(tree, statement, name))
    ]
    if not used:
        return (around,)
    casts = ", ".join(f"{name}.float()" for name in used)
    back = f"{', '.join(used)} = {casts}"
    return (
        around,
        Insert(file=cast.file, line=statement.lineno, where="after", text=back, why=_BACK),
    )


def _nested(cast: _Cast) -> tuple[Edit, ...] | None:
    """`loss = F.cross_entropy(model(x), y)`: the call before it, its result in its place."""
    tree, call = cast.tree, cast.call
    statement = tree.statement_of(call)
    simple = isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return
    )
    if not simple or _before_on_line(tree, statement) or not _first(tree, call, statement):
        return None
    if isinstance(statement, ast.Assign) and statement.value is call:
        names = [one for one in statement.targets if isinstance(one, ast.Name)]
        alone = len(names) == len(statement.targets) == 1
        if not alone or _kind(tree, statement, names[0].id) == "object":
            return None
    used = {node.id for node in ast.walk(tree.module) if isinstance(node, ast.Name)}
    name = next((one for one in _RESULT_NAMES if one not in used), "")
    if not name:
        return None
    parent = next(tree.parents(call))
    whole: ast.expr = call
    back = "" if call in cast.to_loss else ".float()"
    after = f"{name}{back}"
    called = next(iter(tree.parents(parent)), None)
    if isinstance(parent, ast.Attribute) and not (
        isinstance(called, ast.Call) and called.func is parent
    ):
        whole, after = parent, f"{name}.{parent.attr}"
        after += "" if parent.attr in _OF_TENSORS or "loss" in parent.attr else back
    elif isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        whole, after = parent, f"{name}[{ast.unparse(parent.slice)}]{back}"
    made = f"with {cast.header}:\n    {name} = {ast.unparse(call)}"
    return (
        Insert(file=cast.file, line=statement.lineno, where="before", text=made, why=cast.why),
        Replace(
            file=cast.file, line=call.lineno, before=ast.unparse(whole), after=after,
            why=_BACK if back else "turned into float32 by the loss",
        ),
    )  # fmt: skip


def _first(tree: SourceFile, call: ast.Call, statement: ast.stmt) -> bool:
    """Nothing that could matter runs before it in its statement, and it always runs."""
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


def _kind(tree: SourceFile, made: ast.stmt, name: str) -> Kind:
    """By what its function does with it after that statement."""
    uses = list(_uses(tree, made, name))
    if any(_of_an_object(tree, node) for node in uses):
        return "object"
    return "tensor" if uses else "unused"


def _of_an_object(tree: SourceFile, node: ast.Name) -> bool:
    """It is used as no tensor is: by a field, an index, unpacked."""
    parent, *rest = tree.parents(node)
    match parent:
        case ast.Attribute():
            called = bool(rest) and isinstance(rest[0], ast.Call) and rest[0].func is parent
            return parent.attr in _OF_MAPPINGS or not (called or parent.attr in _OF_TENSORS)
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
    """Until the name is given to something else."""
    scope = tree.scope_of(made)
    after = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name)
        and node.id == name
        and tree.statement_of(node) is not made
        and (node.lineno, node.col_offset) > (made.lineno, made.col_offset)
    ]
    for node in sorted(after, key=lambda one: (one.lineno, one.col_offset)):
        if isinstance(node.ctx, ast.Load):
            yield node
        elif tree.block_of(tree.statement_of(node)) is tree.block_of(made):
            # the value of `x = f(x)` is read before the name is given away
            own = tree.statement_of(node)
            yield from (
                n for n in after if tree.statement_of(n) is own and isinstance(n.ctx, ast.Load)
            )
            return


def _returns_objects(source: ReadText, file: str, kind: str) -> bool:
    """The class is the user's own, and its forward returns a list or a mapping."""
    for _, node in classes(source, file, kind) if kind else ():
        for method in node.body:
            if isinstance(method, Function) and method.name == "forward":
                values = [n.value for n in ast.walk(method) if isinstance(n, ast.Return)]
                return any(isinstance(one, ast.Dict | ast.List) for one in values)
    return False


def _beside(tree: SourceFile, statement: ast.stmt) -> bool:
    """Another statement is on its lines."""
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    owner = next(tree.parents(statement))
    return getattr(owner, "lineno", 0) in lines or any(
        one is not statement and (one.lineno in lines or one.end_lineno in lines)
        for one in tree.block_of(statement)
    )


def _before_on_line(tree: SourceFile, statement: ast.stmt) -> bool:
    """Another statement, or the header of its block, begins its line."""
    owner = next(tree.parents(statement))
    if getattr(owner, "lineno", 0) == statement.lineno:
        return True
    return any(
        one is not statement and one.end_lineno == statement.lineno
        and one.col_offset < statement.col_offset
        for one in tree.block_of(statement)
    )  # fmt: skip


_SCALER_NAMES = ("scaler", "grad_scaler", "loss_scaler")
_OTHERS = ("sched", "prof", "lr_", "warmup", "writer", "bar", "env")
"""Of what has a step() and is no optimizer."""
_WHY = "float16 gradients that would be zero are kept"


def scaler_edits(
    file: str, text: str, line: int, device: str, scale: float, kind: str = ""
) -> tuple[Edit, ...] | str:
    """Why not, where the loop is not plain."""
    found = call_of(text, line, kind)
    if isinstance(found, str):
        return found
    tree, call = found
    lines = backward(text, line, kind)
    if isinstance(lines, str):
        return lines
    loss = [c for c in _within(tree, lines) if last_name(c) == "backward"]
    if len(loss) != 1 or not isinstance(loss[0].func, ast.Attribute):
        return f"lines {lines[0]} to {lines[1]} run no backward of a loss alone"
    scope = tree.scope_of(call)
    steps = [c for c in calls_in(scope) if _is_step(tree, c)]
    owners = {dotted_name(c.func).rpartition(".")[0] for c in steps}
    if len(owners) != 1:
        return f"{len(owners)} optimizers step in that function"
    if any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(scope)):
        return "gradients are read in that function, which would be scaled ones"
    used = {node.id for node in ast.walk(tree.module) if isinstance(node, ast.Name)}
    name = next((one for one in _SCALER_NAMES if one not in used), "")
    if not name:
        return "the program has names for a scaler already"
    before = ast.unparse(loss[0].func.value)
    made = f'{name} = torch.amp.GradScaler("{device}", init_scale={scale})'
    return (
        Top(file=file, where="after imports", text=made, why=_WHY),
        Replace(
            file=file, line=loss[0].lineno, before=before, after=f"{name}.scale({before})",
            why=_WHY,
        ),
        *_clipped(file, tree, scope, name, owners.pop()),
        *(edit for step in steps for edit in _stepped(file, tree, step, name)),
    )  # fmt: skip


def _stepped(file: str, tree: SourceFile, step: ast.Call, name: str) -> tuple[Edit, ...]:
    owner = dotted_name(step.func).rpartition(".")[0]
    before = ast.unparse(step)
    line = tree.statement_of(step).lineno
    return (
        Replace(file=file, line=line, before=before, after=f"{name}.step({owner})", why=_WHY),
        Insert(file=file, line=line, where="after", text=f"{name}.update()", why=_WHY),
    )


def _clipped(file: str, tree: SourceFile, scope: ast.AST, name: str, owner: str) -> list[Edit]:
    clips = [c for c in calls_in(scope) if last_name(c).startswith("clip_grad")]
    if not clips:
        return []
    line = min(tree.statement_of(one).lineno for one in clips)
    text = f"{name}.unscale_({owner})"
    return [Insert(file=file, line=line, where="before", text=text, why="clipped as they are")]


def _is_step(tree: SourceFile, call: ast.Call) -> bool:
    owner, _, name = dotted_name(call.func).rpartition(".")
    if name != "step" or not owner or any(word in owner.lower() for word in _OTHERS):
        return False
    return isinstance(tree.statement_of(call), ast.Expr) and not call.args and not call.keywords


def _within(tree: SourceFile, lines: tuple[int, int]) -> list[ast.Call]:
    return [c for c in calls_in(tree.module) if lines[0] <= c.lineno <= lines[1]]
