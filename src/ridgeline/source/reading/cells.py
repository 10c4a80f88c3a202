"""A loop that calls one of torch's recurrent cells for each step of a sequence, and how to give it
the whole sequence."""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.turns import path

_LAYERS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}


def whole_sequence(
    source: Source, target: ast.expr, over: ast.expr, body: list[ast.AST]
) -> str | None:
    """The two lines to write instead: the layer, and its call. None where there is no such cell, or
    a step's input is made from the step before (a decoder), which no layer of torch does."""
    for assign in (n for n in body if isinstance(n, ast.Assign)):
        call = assign.value
        made = _cell(source, path(call.func)) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or made is None or len(call.args) != 2:
            continue
        written = {n.id for part in body for n in ast.walk(part)
                   if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
        inputs = _sequence(call.args[0], target, over)
        if inputs is None or written & {n.id for n in ast.walk(call.args[0])
                                        if isinstance(n, ast.Name)}:  # fmt: skip
            return None
        return _written(source, made, call, assign.targets[0], inputs, body)
    return None


def _cell(source: Source, name: str) -> ast.Assign | None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and any(path(t) == name for t in node.targets):
            call = node.value
            if isinstance(call, ast.Call) and path(call.func).rpartition(".")[2] in _LAYERS:
                return node
    return None


def _sequence(given: ast.expr, target: ast.expr, over: ast.expr) -> tuple[str, bool] | None:
    """The tensor a step's input is picked from, and whether the batch is its first dimension."""
    step = ast.unparse(target)
    if isinstance(given, ast.Subscript):
        index = ast.unparse(given.slice).strip("()")
        if index in (step, f":, {step}", f":, {step}, :"):
            return ast.unparse(given.value), index != step
    if ast.unparse(given) != step:
        return None
    if not isinstance(over, ast.Call):
        return ast.unparse(over), False
    if isinstance(over.func, ast.Attribute) and over.func.attr == "unbind":
        dimension = [*over.args, *(k.value for k in over.keywords)]
        first = [ast.unparse(one) for one in dimension] == ["1"]
        return (ast.unparse(over.func.value), first) if first or not dimension else None
    if ast.unparse(over.func) in ("enumerate", "zip", "range", "tqdm", "reversed"):
        return None
    return f"torch.stack(tuple({ast.unparse(over)}))", False


def _written(
    source: Source, made: ast.Assign, call: ast.Call, state: ast.expr,
    inputs: tuple[str, bool], body: list[ast.AST],
) -> str:  # fmt: skip
    assert isinstance(made.value, ast.Call)
    cell = ast.unparse(made.value.func)
    kind = cell.rpartition(".")[2]
    layer = cell.removesuffix(kind) + _LAYERS[kind]
    options = [ast.unparse(one) for one in (*made.value.args, *made.value.keywords)]
    options += ["batch_first=True"] if inputs[1] else []
    name = ast.unparse(call.func)
    first = state.elts[0] if isinstance(state, ast.Tuple) and state.elts else state
    begun = call.args[1]
    parts = begun.elts if isinstance(begun, ast.Tuple) else [begun]
    given = ", ".join(f"{ast.unparse(one)}[None]" for one in parts)
    given = f"({given})" if isinstance(begun, ast.Tuple) else given
    kept = _list(body, ast.unparse(first)) or "outputs"
    return (
        f"{ast.unparse(made.targets[0])} = {layer}({', '.join(options)})  "
        f"# line {made.lineno}, instead of {kind}\n"
        f"{kept}, _ = {name}({inputs[0]}, {given})  # instead of the loop: `{kept}` is "
        f"the `{ast.unparse(first)}` of all steps, in one tensor"
    )


def _list(body: list[ast.AST], state: str) -> str:
    """hs, of hs.append(h)."""
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            same = [ast.unparse(one) for one in node.args] == [state]
            if node.func.attr == "append" and same and path(node.func.value):
                return path(node.func.value)
    return ""
