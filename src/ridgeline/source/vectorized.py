"""Loops over rows, time steps or parameters, written as one call for all."""

import ast

from msgspec import Struct

from ridgeline.source.file import (
    SourceFile,
    calls_in,
    dotted_name,
    keyword_value,
    last_name,
    names_in,
    targets_of,
)
from ridgeline.source.loops import loop_parts

_ROWWISE = frozenset({
    "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "hardtanh", "exp",
    "log", "log1p", "expm1", "sin", "cos", "sqrt", "rsqrt", "square", "abs", "neg", "erf", "sign",
    "reciprocal", "mul", "add", "sub", "div", "clamp", "float", "half", "bfloat16", "to", "detach",
    "clone", "contiguous", "dropout", "append",
})  # fmt: skip
_ROWWISE_LAYERS = frozenset({
    "Linear", "LayerNorm", "RMSNorm", "Embedding", "Identity", "Dropout", "ReLU", "GELU", "SiLU",
    "Tanh", "Sigmoid", "Softplus", "ELU", "LeakyReLU",
})  # fmt: skip
"""Layers that treat each row of a tensor alone, whatever its other dimensions."""
_SEQUENCE_LAYERS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}
_SAME_VALUES = ("data", "detach", "float")
"""Attributes and methods that leave the numbers of a tensor as they are."""
_ORDER = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def by_row(source: SourceFile, target: ast.expr | None, body: list[ast.AST]) -> bool:
    """Return whether a loop's body means the same with whole tensors in the place of rows: it has
    only operators and layers that treat each row alone, and compares, masks and decides nothing."""
    deciding = ast.Compare | ast.If | ast.IfExp | ast.While | ast.For | ast.MatMult
    nodes = [n for part in body for n in ast.walk(part)]
    return isinstance(target, ast.Name) and not any(
        isinstance(n, deciding) or (isinstance(n, ast.Call) and not _is_rowwise(source, n))
        for n in nodes
    )


def _is_rowwise(source: SourceFile, call: ast.Call) -> bool:
    if last_name(call) in _ROWWISE:
        return True
    made = [node.value for node in _assignments(source, dotted_name(call.func))]
    return bool(made) and all(
        isinstance(value, ast.Call) and last_name(value) in _ROWWISE_LAYERS for value in made
    )


def _assignments(source: SourceFile, name: str) -> list[ast.Assign]:
    """Return the statements of a file that assign to a dotted name."""
    return [n for n in source.nodes if isinstance(n, ast.Assign)
            and any(dotted_name(target) == name for target in n.targets)]  # fmt: skip


def picked(target: ast.expr, body: list[ast.AST]) -> dict[str, str] | None:
    """Return {"x[i]": "x"} for a loop variable that is used as an index and for nothing else; else
    None."""

    def is_variable(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and isinstance(target, ast.Name) and node.id == target.id

    rows: dict[str, str] = {}
    uses = indices = 0
    for node in (n for part in body for n in ast.walk(part)):
        uses += is_variable(node)
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        rest = [part for part in parts if not is_variable(part)]
        if len(rest) < len(parts):
            if any(ast.unparse(part) not in (":", "...") for part in rest):
                return None
            indices += 1
            if isinstance(node.ctx, ast.Load):
                rows[ast.unparse(node)] = ast.unparse(node.value)
    return rows if rows and uses == indices else None


def for_all_rows(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """Return the code without the loop, `res = f(x)`, for a loop over `range(n)` that only collects
    `f(x[i])`. Return "" if the loop's body does more, or does not go through whole rows."""
    rows = picked(target, body)
    if not rows or not isinstance(over, ast.Call) or len(body) != 1:
        return ""
    if dotted_name(over.func) != "range" or len(over.args) != 1:
        return ""
    into, value = "", body[0]
    if isinstance(value, ast.Expr) and isinstance(value.value, ast.Call):
        call = value.value
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
            return ""
        into, value = f"{ast.unparse(call.func.value)} = ", call.args[0]
    if not isinstance(value, ast.expr):
        return ""
    text, count = ast.unparse(value), ast.unparse(over.args[0])
    forms = ("{}.size(0)", "{}.shape[0]", "len({})")
    lengths = {form.format(tensor) for tensor in rows.values() for form in forms}
    for row, tensor in rows.items():
        text = text.replace(row, tensor if count in lengths else f"{tensor}[:{count}]")
    return into + text


def lines_with(target: ast.expr, body: list[ast.AST]) -> tuple[int, ...]:
    """Return the lines of a loop's body that name the loop's variable."""
    names = names_in(target)
    nodes = [n for part in body for n in ast.walk(part)]
    return tuple(sorted({n.lineno for n in nodes if isinstance(n, ast.Name) and n.id in names}))


def whole_sequence(
    source: SourceFile, target: ast.expr, over: ast.expr, body: list[ast.AST]
) -> str | None:
    """Return the two lines to write instead of a loop that calls one of torch's recurrent cells for
    each step of a sequence: the layer, and its call. Return None if there is no such cell, or if a
    step's input is made from the step before (a decoder), which no layer of torch does."""
    for assign in (n for n in body if isinstance(n, ast.Assign)):
        call = assign.value
        made = _cell_made(source, dotted_name(call.func)) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or made is None or len(call.args) != 2:
            continue
        written = {n.id for part in body for n in ast.walk(part)
                   if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
        inputs = _sequence(call.args[0], target, over)
        if inputs is None or written & names_in(call.args[0]):
            return None
        return _layer_call(made, call, assign.targets[0], inputs, body)
    return None


def _cell_made(source: SourceFile, name: str) -> ast.Assign | None:
    """Return the first statement that assigns a recurrent cell to a name."""
    for node in _assignments(source, name):
        if isinstance(node.value, ast.Call) and last_name(node.value) in _SEQUENCE_LAYERS:
            return node
    return None


def _sequence(given: ast.expr, target: ast.expr, over: ast.expr) -> tuple[str, bool] | None:
    """Return the tensor that a step's input is picked from, and whether the batch is its first
    dimension."""
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


def _layer_call(
    made: ast.Assign, call: ast.Call, state: ast.expr, inputs: tuple[str, bool], body: list[ast.AST]
) -> str:
    assert isinstance(made.value, ast.Call)
    cell = ast.unparse(made.value.func)
    kind = last_name(made.value)
    options = [ast.unparse(one) for one in (*made.value.args, *made.value.keywords)]
    options += ["batch_first=True"] if inputs[1] else []
    first = state.elts[0] if isinstance(state, ast.Tuple) and state.elts else state
    state_name = ast.unparse(first)
    begun = call.args[1]
    parts = begun.elts if isinstance(begun, ast.Tuple) else [begun]
    given = ", ".join(f"{ast.unparse(one)}[None]" for one in parts)
    given = f"({given})" if isinstance(begun, ast.Tuple) else given
    lists = [  # hs, of hs.append(h)
        dotted_name(c.func.value) for part in body for c in calls_in(part)
        if isinstance(c.func, ast.Attribute) and c.func.attr == "append"
        and [ast.unparse(one) for one in c.args] == [state_name]
    ]  # fmt: skip
    kept = next(filter(None, lists), "outputs")
    return (
        f"{ast.unparse(made.targets[0])} = {cell.removesuffix(kind)}{_SEQUENCE_LAYERS[kind]}"
        f"({', '.join(options)})  # line {made.lineno}, instead of {kind}\n"
        f"{kept}, _ = {ast.unparse(call.func)}({inputs[0]}, {given})  # instead of the loop: "
        f"`{kept}` is the `{state_name}` of all steps, in one tensor"
    )


class _Update(Struct, frozen=True):
    """One tensor's update: slow = keeps * slow + takes * fast."""

    slow: ast.expr
    fast: ast.expr
    keeps: str = ""
    """0.99; "" if all of its own value is kept."""
    takes: str = ""
    """0.01; "" if all of the other is added."""
    copies: bool = False
    """Whether nothing of its own value is left."""


def all_at_once(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """Return one call for all updates of one tensor after the other; "" if the body is not such an
    update alone."""
    statements = [s for s in body if not isinstance(s, ast.Pass)]
    update = _update(statements[0], names_in(target)) if len(statements) == 1 else None
    if update is None:
        return ""
    slow = _list_of_all(update.slow, over, target)
    fast = _list_of_all(update.fast, over, target)
    if update.copies:
        return f"torch._foreach_copy_({slow}, {fast})"
    alpha = f", alpha={update.takes}" if update.takes else ""
    if not update.keeps:
        return f"torch._foreach_add_({slow}, {fast}{alpha})"
    if _sum_to_one(update.keeps, update.takes):
        # counts of batches are among a state's tensors, which lerp does not take
        whole = "  # integer buffers left out" if "state_dict()" in fast else ""
        return f"torch._foreach_lerp_({slow}, {fast}, {update.takes}){whole}"
    return (
        f"slow = {slow}\ntorch._foreach_mul_(slow, {update.keeps})\n"
        f"torch._foreach_add_(slow, {fast}{alpha})"
    )


def _update(statement: ast.AST, own: set[str]) -> _Update | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _in_place(statement.value, own)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        into = statement.targets[0]
        return _sum(into, statement.value, own) if isinstance(into, ast.Subscript) else None
    return None


def _in_place(call: ast.Call, own: set[str]) -> _Update | None:
    """slow.mul_(a).add_(fast, alpha=b), slow.lerp_(fast, b), slow.copy_(a * slow + b * fast)."""
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    slow, name, first = call.func.value, call.func.attr, call.args[0]
    if name == "lerp_":
        weight = [*call.args[1:], *(k.value for k in call.keywords)]
        if len(weight) != 1 or names_in(weight[0]) & own:
            return None
        takes = ast.unparse(weight[0])
        return _Update(slow, first, keeps=f"1 - {takes}", takes=takes)
    if name == "copy_":
        summed = isinstance(first, ast.BinOp)
        return _sum(slow, first, own) if summed else _Update(slow, first, copies=True)
    if name != "add_":
        return None
    alpha = keyword_value(call, "alpha")
    factor, fast = (alpha, first) if alpha is not None else _scaled(first, own)
    keeps = ""
    if isinstance(slow, ast.Call) and isinstance(slow.func, ast.Attribute):
        if slow.func.attr != "mul_" or len(slow.args) != 1 or names_in(slow.args[0]) & own:
            return None
        keeps, slow = ast.unparse(slow.args[0]), slow.func.value
    return _Update(slow, fast, keeps=keeps, takes=ast.unparse(factor) if factor else "")


def _sum(into: ast.expr, value: ast.expr, own: set[str]) -> _Update | None:
    """into = a * into + b * fast."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    parts = [_scaled(side, own) for side in (value.left, value.right)]
    same = [_bare(part) == _bare(into) for _, part in parts]
    if same.count(True) != 1:
        return None
    (keeps, _), (takes, fast) = parts if same[0] else parts[::-1]
    return _Update(
        into,
        fast,
        keeps=ast.unparse(keeps) if keeps is not None else "",
        takes=ast.unparse(takes) if takes is not None else "",
    )


def _scaled(node: ast.expr, own: set[str]) -> tuple[ast.expr | None, ast.expr]:
    """Return the factor, which is the same in each turn, and the tensor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor, tensor in ((node.left, node.right), (node.right, node.left)):
            if not names_in(factor) & own:
                return factor, tensor
    return None, node


def _bare(node: ast.expr) -> str:
    """Return the text without .data and .detach(), which are the same numbers."""
    while True:
        call = isinstance(node, ast.Call) and not node.args
        inner = node.func if isinstance(node, ast.Call) and call else node
        if not isinstance(inner, ast.Attribute) or inner.attr not in _SAME_VALUES:
            return ast.unparse(node)
        node = inner.value


def _sum_to_one(keeps: str, takes: str) -> bool:
    try:
        return abs(float(keeps) + float(takes) - 1) < 1e-9
    except ValueError:
        plain = {text.strip("()").replace(" ", "") for text in (keeps, takes)}
        return any(f"1-{one}" in plain or f"1.0-{one}" in plain for one in plain)


def _list_of_all(each: ast.expr, over: ast.expr, target: ast.expr) -> str:
    """Return the list of all tensors that `each` stands for in one turn: what a zip goes through, a
    dictionary's values, else a comprehension."""
    names = [dotted_name(t) for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
    name, head = _bare(each), ast.unparse(over)
    if isinstance(over, ast.Call) and dotted_name(over.func) == "zip" and name in names:
        given = over.args[names.index(name)]
        text = ast.unparse(given)
        return text if isinstance(given, ast.Name) else f"list({text})"
    if names[1:] == [name] and head.endswith(".items()"):
        return f"list({head.removesuffix('items()')}values())"
    if names[1:] == [name] and head.endswith("named_parameters()"):
        return f"list({head.removesuffix('named_parameters()')}parameters())"
    used = ast.unparse(each)
    by_key = isinstance(target, ast.Tuple) and head.endswith(".items()") and name not in names
    if by_key and names[1] not in names_in(each):
        return f"[{used} for {names[0]} in {head.removesuffix('.items()')}]"
    return f"[{used} for {ast.unparse(target).strip('()')} in {head}]"


def parameters_of(source: SourceFile, line: int) -> str:
    """Return what a function goes through for its gradients, as written: `params` of for p in
    params: p.grad; "" if it does not say."""
    for node in source.walk(source.scope(line)):
        if isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp):
            _, over, target, body = loop_parts(node)
            read = {dotted_name(n) for part in body for n in ast.walk(part)}
            if target is not None and any(f"{name}.grad" in read for name in names_in(target)):
                while (
                    isinstance(over, ast.Call)
                    and dotted_name(over.func) in ("enumerate", "list", "tqdm")
                    and over.args
                ):
                    over = over.args[0]
                return ast.unparse(over).replace("named_parameters()", "parameters()")
    return ""


def limit_of(source: SourceFile, line: int, norming: ast.AST | None) -> str:
    """Return the number or name that the norm is compared with, or that is divided by it: `limit`
    of limit / norm."""
    scope = source.scope(line)
    norms = _made_from(source, scope, norming)
    found: list[tuple[int, int, str]] = []
    for node in source.walk(scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            pairs, weight = [(node.left, node.right)], 0
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDER):
            sides = (node.left, node.comparators[0])
            pairs, weight = [sides, sides[::-1]], 1
        else:
            continue
        for limit, norm in pairs:
            if (
                _is_plain(limit)
                and not _dotted_names(limit) & norms
                and _dotted_names(norm) & norms
            ):
                found.append((weight, node.lineno, ast.unparse(limit)))
    return min(found)[2] if found else ""


def clamped_to(body: list[ast.AST]) -> str:
    """Return the upper limit that a loop's body clamps to: 5.0 of gradient.clamp_(-5.0, 5.0)."""
    for call in (call for part in body for call in calls_in(part)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("clamp_", "clip_", "clamp"):
            limit = keyword_value(call, "max") or (call.args[-1] if call.args else None)
            return ast.unparse(limit) if limit is not None else ""
    return ""


def _made_from(source: SourceFile, scope: ast.AST, norming: ast.AST | None) -> set[str]:
    """Return the names that the loop over gradients leaves, and those made from them."""
    names: set[str] = set()
    for node in ast.walk(norming) if norming is not None else ():
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets_of(node)
        names |= {dotted_name(target) for target in targets}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names |= {dotted_name(node.func.value)} if node.func.attr == "append" else set()
    names -= {""}
    for node in source.walk(scope):
        if isinstance(node, ast.Assign):
            inside = norming is not None and any(n is norming for n in ast.walk(node.value))
            if inside or _dotted_names(node.value) & names:
                names |= {dotted_name(target) for target in node.targets} - {""}
    return names


def _dotted_names(node: ast.AST) -> set[str]:
    return {dotted_name(n) for n in ast.walk(node)} - {""}


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and node.value > 0
    return bool(dotted_name(node))
