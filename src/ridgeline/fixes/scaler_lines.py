"""A gradient scaler written into a loop: the loss scaled for its backward, gradients scaled back
before they are clipped, the step taken by the scaler."""

import ast

from ridgeline.fixes.model_lines import backward, call_of
from ridgeline.fixes.scaling import START
from ridgeline.fixes.source_tree import SourceTree, calls, dotted
from ridgeline.records.edit import Edit, Insert, Replace, Top

_NAMES = ("scaler", "grad_scaler", "loss_scaler")
_OTHERS = ("sched", "prof", "lr_", "warmup", "writer", "bar", "env")
"""Of what has a step() and is no optimizer."""
_WHY = "float16 gradients that would be zero are kept"


def scaler_edits(
    file: str, text: str, line: int, device: str, kind: str = ""
) -> tuple[Edit, ...] | str:
    """Why not, where the loop is not plain."""
    found = call_of(text, line, kind)
    if isinstance(found, str):
        return found
    tree, call = found
    lines = backward(text, line, kind)
    if isinstance(lines, str):
        return lines
    loss = [c for c in _within(tree, lines) if dotted_end(c) == "backward"]
    if len(loss) != 1 or not isinstance(loss[0].func, ast.Attribute):
        return f"lines {lines[0]} to {lines[1]} run no backward of a loss alone"
    scope = tree.scope(call)
    steps = [c for c in calls(scope) if _is_step(tree, c)]
    owners = {dotted(c.func).rpartition(".")[0] for c in steps}
    if len(owners) != 1:
        return f"{len(owners)} optimizers step in that function"
    if any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(scope)):
        return "gradients are read in that function, which would be scaled ones"
    used = {node.id for node in ast.walk(tree.module) if isinstance(node, ast.Name)}
    name = next((one for one in _NAMES if one not in used), "")
    if not name:
        return "the program has names for a scaler already"
    before = ast.unparse(loss[0].func.value)
    made = f'{name} = torch.amp.GradScaler("{device}", init_scale={START})'
    return (
        Top(file=file, where="after imports", text=made, why=_WHY),
        Replace(
            file=file, line=loss[0].lineno, before=before, after=f"{name}.scale({before})",
            why=_WHY,
        ),
        *_clipped(file, tree, scope, name, owners.pop()),
        *(edit for step in steps for edit in _stepped(file, tree, step, name)),
    )  # fmt: skip


def _stepped(file: str, tree: SourceTree, step: ast.Call, name: str) -> tuple[Edit, ...]:
    owner = dotted(step.func).rpartition(".")[0]
    before = ast.unparse(step)
    line = tree.statement(step).lineno
    return (
        Replace(file=file, line=line, before=before, after=f"{name}.step({owner})", why=_WHY),
        Insert(file=file, line=line, where="after", text=f"{name}.update()", why=_WHY),
    )


def _clipped(file: str, tree: SourceTree, scope: ast.AST, name: str, owner: str) -> list[Edit]:
    clips = [c for c in calls(scope) if dotted_end(c).startswith("clip_grad")]
    if not clips:
        return []
    line = min(tree.statement(one).lineno for one in clips)
    text = f"{name}.unscale_({owner})"
    return [Insert(file=file, line=line, where="before", text=text, why="clipped as they are")]


def _is_step(tree: SourceTree, call: ast.Call) -> bool:
    owner, _, name = dotted(call.func).rpartition(".")
    if name != "step" or not owner or any(word in owner.lower() for word in _OTHERS):
        return False
    return isinstance(tree.statement(call), ast.Expr) and not call.args and not call.keywords


def _within(tree: SourceTree, lines: tuple[int, int]) -> list[ast.Call]:
    return [c for c in calls(tree.module) if lines[0] <= c.lineno <= lines[1]]


def dotted_end(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
