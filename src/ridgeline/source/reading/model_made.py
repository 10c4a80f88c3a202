"""Where the program makes its model and moves it to the device."""

import ast

from msgspec import Struct

from ridgeline.source.reading.sources import Source, Sources

_MOVES = ("to", "cuda")


class ModelMade(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    name: str
    """model"""
    text: str
    """The statement as written: model = Net().to(device)"""


def model_made(sources: Sources, called_at: str) -> ModelMade | None:
    """Of the model called at `file:line`: the last statement of its file that assigns it or moves
    it, best one that moves it."""
    file, _, number = called_at.rpartition(":")
    source = sources.get(file) if file else None
    if source is None or not number.isdigit():
        return None
    for name in _called(source, int(number)):
        made = [n for n in ast.walk(source.tree) if isinstance(n, ast.stmt) and _makes(n, name)]
        if made:
            moving = [node for node in made if _moves(node)]
            best = max(moving or made, key=lambda node: node.lineno)
            function = getattr(source.scope(best.lineno), "name", "")
            text = ast.get_source_segment(source.text, best) or ast.unparse(best)
            return ModelMade(file=file, line=best.lineno, function=function, name=name, text=text)
    return None


def with_memory_format(made: ModelMade, memory_format: str) -> str:
    """The statement with the memory format in its move, or one more that sets it."""
    moved = made.text.rstrip()
    if moved.endswith(")") and ".to(" in moved and not moved.endswith(".to()"):
        return f"{moved[:-1]}, memory_format=torch.{memory_format})"
    return f"{moved}\n{made.name} = {made.name}.to(memory_format=torch.{memory_format})"


def _called(source: Source, line: int) -> list[str]:
    """Names called at a line, the innermost call first: the model in `loss(model(x), y)`."""
    calls = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    calls.sort(key=lambda node: (node.lineno, node.col_offset), reverse=True)
    return [node.func.id for node in calls if isinstance(node.func, ast.Name)]


def _makes(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        return (
            isinstance(func, ast.Attribute)
            and func.attr in _MOVES
            and isinstance(func.value, ast.Name)
            and func.value.id == name
        )
    return False


def _moves(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _MOVES
        for n in ast.walk(node)
    )
