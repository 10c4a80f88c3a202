"""Loops over rows, time steps or parameters, written as one call for all."""

import ast

from msgspec import Struct

from ridgeline.source.file import (
    SourceFile,
    dotted_name,
    names_in,
)

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
"""What they do to a row, they do to each row of a tensor with a dimension more."""


def by_row(source: SourceFile, target: ast.expr | None, body: list[ast.AST]) -> bool:
    """Only operators and layers that treat each row alone; nothing compared, masked or decided."""
    if not isinstance(target, ast.Name):
        return False
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Compare | ast.If | ast.IfExp | ast.While | ast.For | ast.MatMult):
            return False
        if isinstance(node, ast.Call) and not _rowwise(source, node):
            return False
    return True


def picked(target: ast.expr, body: list[ast.AST]) -> dict[str, str] | None:
    """{"x[i]": "x"}, of a loop variable used as an index alone and for nothing else; else None."""
    found: dict[str, str] = {}
    uses = taken = 0
    for node in (n for part in body for n in ast.walk(part)):
        uses += _is_variable(node, target)
        if not isinstance(node, ast.Subscript):
            continue
        index = node.slice
        many = index.elts if isinstance(index, ast.Tuple) else [index]
        if any(_is_variable(one, target) for one in many):
            rest = [one for one in many if not _is_variable(one, target)]
            if not all(ast.unparse(one) in (":", "...") for one in rest):
                return None
            taken += 1
            if isinstance(node.ctx, ast.Load):
                found[ast.unparse(node)] = ast.unparse(node.value)
    return found if found and uses == taken else None


def for_all_rows(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """Return the code without the loop, `res = f(x)`, for a loop over `range(n)` that only collects
    `f(x[i])`. Return "" if the loop's body does more, or does not go through whole rows."""
    rows = picked(target, body)
    single = (
        isinstance(over, ast.Call) and dotted_name(over.func) == "range" and len(over.args) == 1
    )
    if not rows or not isinstance(over, ast.Call) or not single or len(body) != 1:
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
    whole = {f"{length}" for all_ in rows.values()
             for length in (f"{all_}.size(0)", f"{all_}.shape[0]", f"len({all_})")}  # fmt: skip
    for row, all_ in rows.items():
        text = text.replace(row, all_ if count in whole else f"{all_}[:{count}]")
    return into + text


def lines_with(target: ast.expr, body: list[ast.AST]) -> tuple[int, ...]:
    """That name the loop's variable."""
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    nodes = [n for part in body for n in ast.walk(part)]
    return tuple(sorted({n.lineno for n in nodes if isinstance(n, ast.Name) and n.id in names}))


def _is_variable(node: ast.AST, target: ast.expr) -> bool:
    return isinstance(node, ast.Name) and isinstance(target, ast.Name) and node.id == target.id


def _rowwise(source: SourceFile, call: ast.Call) -> bool:
    name = dotted_name(call.func)
    if name.rpartition(".")[2] in _ROWWISE or (
        isinstance(call.func, ast.Attribute) and call.func.attr in _ROWWISE
    ):
        return True
    made = [n.value for n in ast.walk(source.module) if isinstance(n, ast.Assign)
            and any(dotted_name(t) == name for t in n.targets)]  # fmt: skip
    return bool(made) and all(
        isinstance(one, ast.Call) and dotted_name(one.func).rpartition(".")[2] in _ROWWISE_LAYERS
        for one in made
    )


_SEQUENCE_LAYERS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}


def whole_sequence(
    source: SourceFile, target: ast.expr, over: ast.expr, body: list[ast.AST]
) -> str | None:
    """The two lines to write instead: the layer, and its call. None where there is no such cell, or
    a step's input is made from the step before (a decoder), which no layer of torch does."""
    for assign in (n for n in body if isinstance(n, ast.Assign)):
        call = assign.value
        made = _cell_made(source, dotted_name(call.func)) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or made is None or len(call.args) != 2:
            continue
        written = {n.id for part in body for n in ast.walk(part)
                   if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
        inputs = _sequence(call.args[0], target, over)
        if inputs is None or written & {n.id for n in ast.walk(call.args[0])
                                        if isinstance(n, ast.Name)}:  # fmt: skip
            return None
        return _layer_call(source, made, call, assign.targets[0], inputs, body)
    return None


def _cell_made(source: SourceFile, name: str) -> ast.Assign | None:
    for node in ast.walk(source.module):
        if isinstance(node, ast.Assign) and any(dotted_name(t) == name for t in node.targets):
            call = node.value
            if (
                isinstance(call, ast.Call)
                and dotted_name(call.func).rpartition(".")[2] in _SEQUENCE_LAYERS
            ):
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


def _layer_call(
    source: SourceFile, made: ast.Assign, call: ast.Call, state: ast.expr,
    inputs: tuple[str, bool], body: list[ast.AST],
) -> str:  # fmt: skip
    assert isinstance(made.value, ast.Call)
    cell = ast.unparse(made.value.func)
    kind = cell.rpartition(".")[2]
    layer = cell.removesuffix(kind) + _SEQUENCE_LAYERS[kind]
    options = [ast.unparse(one) for one in (*made.value.args, *made.value.keywords)]
    options += ["batch_first=True"] if inputs[1] else []
    name = ast.unparse(call.func)
    first = state.elts[0] if isinstance(state, ast.Tuple) and state.elts else state
    begun = call.args[1]
    parts = begun.elts if isinstance(begun, ast.Tuple) else [begun]
    given = ", ".join(f"{ast.unparse(one)}[None]" for one in parts)
    given = f"({given})" if isinstance(begun, ast.Tuple) else given
    kept = _collecting_list(body, ast.unparse(first)) or "outputs"
    return (
        f"{ast.unparse(made.targets[0])} = {layer}({', '.join(options)})  "
        f"# line {made.lineno}, instead of {kind}\n"
        f"{kept}, _ = {name}({inputs[0]}, {given})  # instead of the loop: `{kept}` is "
        f"the `{ast.unparse(first)}` of all steps, in one tensor"
    )


def _collecting_list(body: list[ast.AST], state: str) -> str:
    """hs, of hs.append(h)."""
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            same = [ast.unparse(one) for one in node.args] == [state]
            if node.func.attr == "append" and same and dotted_name(node.func.value):
                return dotted_name(node.func.value)
    return ""


_SAME = ("data", "detach", "float")


class _Update(Struct, frozen=True):
    slow: ast.expr
    """What is updated."""
    fast: ast.expr
    """What it is updated with."""
    keeps: str = ""
    """Of its own value: 0.99; "" for all of it."""
    takes: str = ""
    """Of the other: 0.01; "" for all of it."""
    copies: bool = False
    """Nothing of its own is left."""


def all_at_once(over: ast.expr, target: ast.expr, body: list[ast.AST]) -> str:
    """ "" where the body is not such an update alone."""
    statements = [s for s in body if not isinstance(s, ast.Pass)]
    update = _update(statements[0], names_in(target)) if len(statements) == 1 else None
    if update is None:
        return ""
    slow = _list_of_all(update.slow, over, target)
    fast = _list_of_all(update.fast, over, target)
    if update.copies:
        return f"torch._foreach_copy_({slow}, {fast})"
    if not update.keeps:
        alpha = f", alpha={update.takes}" if update.takes else ""
        return f"torch._foreach_add_({slow}, {fast}{alpha})"
    if _adds_up(update.keeps, update.takes):
        # counts of batches are among a state's tensors, which lerp does not take
        whole = "  # integer buffers left out" if "state_dict()" in fast else ""
        return f"torch._foreach_lerp_({slow}, {fast}, {update.takes}){whole}"
    alpha = f", alpha={update.takes}" if update.takes else ""
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
    if name == "copy_" and isinstance(first, ast.BinOp):
        return _sum(slow, first, own)
    if name == "copy_":
        return _Update(slow, first, copies=True)
    if name != "add_":
        return None
    alpha = next((k.value for k in call.keywords if k.arg == "alpha"), None)
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
    """The factor, which is the same in each turn, and the tensor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor, tensor in ((node.left, node.right), (node.right, node.left)):
            if not names_in(factor) & own:
                return factor, tensor
    return None, node


def _bare(node: ast.expr) -> str:
    """Without .data and .detach(), which are the same numbers."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            inner: ast.expr = node.func
        else:
            inner = node
        if not isinstance(inner, ast.Attribute) or inner.attr not in _SAME:
            return ast.unparse(node)
        node = inner.value


def _adds_up(keeps: str, takes: str) -> bool:
    try:
        return abs(float(keeps) + float(takes) - 1) < 1e-9
    except ValueError:
        plain = {text.strip("()").replace(" ", "") for text in (keeps, takes)}
        return any(f"1-{one}" in plain or f"1.0-{one}" in plain for one in plain)


def _list_of_all(each: ast.expr, over: ast.expr, target: ast.expr) -> str:
    """The list of all: what a zip goes through, a dictionary's values, else a comprehension."""
    names = (
        [dotted_name(t) for t in target.elts]
        if isinstance(target, ast.Tuple)
        else [dotted_name(target)]
    )
    name = _bare(each)
    called = dotted_name(over.func).rpartition(".")[2] if isinstance(over, ast.Call) else ""
    if isinstance(over, ast.Call) and called == "zip" and name in names:
        given = ast.unparse(over.args[names.index(name)])
        return f"list({given})" if not isinstance(over.args[names.index(name)], ast.Name) else given
    head = ast.unparse(over)
    if names[1:] == [name] and head.endswith(".items()"):
        return f"list({head.removesuffix('items()')}values())"
    if names[1:] == [name] and head.endswith("named_parameters()"):
        return f"list({head.removesuffix('named_parameters()')}parameters())"
    used = ast.unparse(each)
    first = isinstance(target, ast.Tuple) and head.endswith(".items()") and name not in names
    if first and names[1] not in names_in(each):
        return f"[{used} for {names[0]} in {head.removesuffix('.items()')}]"
    return f"[{used} for {ast.unparse(target).strip('()')} in {head}]"


_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp)
_ORDER = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def parameters_of(source: SourceFile, line: int) -> str:
    """What a function at a line goes through for its gradients, as written: `params`, of for p in
    params: p.grad; "" where it does not say."""
    for node in source.walk(source.scope(line)):
        if isinstance(node, ast.For):
            target, over, body = node.target, node.iter, list[ast.AST](node.body)
        elif isinstance(node, _COMPREHENSIONS):
            first = node.generators[0]
            target, over, body = first.target, first.iter, [node.elt, *first.ifs]
        else:
            continue
        names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        read = {dotted_name(n) for part in body for n in ast.walk(part)}
        if any(f"{name}.grad" in read for name in names):
            return _plain(over)
    return ""


def _plain(over: ast.expr) -> str:
    """Without what hands out a number or a name with each parameter."""
    if (
        isinstance(over, ast.Call)
        and dotted_name(over.func) in ("enumerate", "list", "tqdm")
        and over.args
    ):
        return _plain(over.args[0])
    return ast.unparse(over).replace("named_parameters()", "parameters()")


def limit_of(source: SourceFile, line: int, norming: ast.AST | None) -> str:
    """The number or name the norm is compared with, or is divided into: limit, of limit / norm."""
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
    """5.0, of gradient.clamp_(-5.0, 5.0)."""
    for call in (n for part in body for n in ast.walk(part) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("clamp_", "clip_", "clamp"):
            most = [k.value for k in call.keywords if k.arg == "max"] or call.args[-1:]
            return ast.unparse(most[0]) if most else ""
    return ""


def _made_from(source: SourceFile, scope: ast.AST, norming: ast.AST | None) -> set[str]:
    """Names the loop over gradients leaves, and those made from them."""
    names: set[str] = set()
    for node in ast.walk(norming) if norming is not None else ():
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {dotted_name(target) for target in targets}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
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
