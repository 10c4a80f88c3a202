"""Attention that is written out in the user's source, rewritten as one call of torch's
`scaled_dot_product_attention`.

A product, a scale, a mask, a softmax, dropout and a second product are followed through one block
of statements. The function is left as it is if anything else happens to the scores or to the
weights. A trial shows that the rewritten function computes the same.
"""

import ast
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.reason_codes import Skip
from ridgeline.source.file import bindings, first_line, last_name
from ridgeline.source.layers import is_causal

_FUNCTIONAL = "torch.nn.functional"
_PRODUCTS = ("matmul", "bmm")
_FAR_BELOW = -1e4
"""Scores masked with less than this leave nothing of a weight in any type."""
_PURE = {
    *("ones", "zeros", "full", "arange", "ones_like", "zeros_like", "full_like", "tril", "triu"),
    *("size", "dim", "view", "reshape", "expand", "unsqueeze", "to", "bool", "type", "float"),
    *("sqrt", "int", "tensor", "float", "logical_not", "masked_fill"),
}
"""Calls that do nothing but return a result."""
_MAX_LINE_WIDTH = 100
_CASTS = ("to", "type_as", "float", "type", "contiguous")
_SCORES = ("bhqd,bhkd->bhqk", "bhid,bhjd->bhij", "bnqd,bnkd->bnqk")
_MIXES = ("bhqk,bhkd->bhqd", "bhij,bhjd->bhid", "bnqk,bnkd->bnqd")


class Fused(Struct, frozen=True, kw_only=True):
    """A file whose function at `line` was rewritten."""

    text: str
    function: str
    line: int
    """The line of its `def` or of its first decorator, as Python counts it."""
    call: str
    """The new statement's call."""
    first: int
    last: int
    """Lines of the old statements."""
    before: str = ""
    after: str = ""
    """The same lines with the new ones in their place; the rest of the file is as it was."""


class _State(Struct):
    """Says what scores or, after the softmax, weights were made of so far."""

    q: str
    k: str
    scale: str = "1.0"
    masks: tuple[str, ...] = ()
    causal: bool = False
    softmax: bool = False
    dropout: str = ""


class _Obstacle(Exception):
    """The function cannot be rewritten."""

    def __init__(self, code: Skip, **facts: Fact) -> None:
        self.reason = Reason(code.value, facts)
        super().__init__(self.reason)


def fused(text: str, line: int) -> Fused | Reason:
    """Rewrite the function that `line` is in, or return why it cannot be rewritten."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return because(Skip.SOURCE_NOT_PARSED, error=error.msg)
    found = _innermost(tree, line)
    if found is None:
        return because(Skip.NO_FUNCTION_AT_LINE)
    name = _functional(text, found)
    if not name:
        return because(Skip.TORCH_NOT_IMPORTED)
    try:
        return _rewritten(text, found, f"{name}.scaled_dot_product_attention")
    except _Obstacle as obstacle:
        return obstacle.reason


def _functional(text: str, function: ast.AST) -> str:
    """Return how the file names torch.nn.functional inside the function; "" if it does not."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    bound = {one.thing: one.name for one in bindings(text) if one.certain and one.name not in own}
    for thing, rest in (
        (_FUNCTIONAL, ""),
        ("torch.nn", ".functional"),
        ("torch", ".nn.functional"),
    ):
        if thing in bound:
            return bound[thing] + rest
    return ""


def _rewritten(text: str, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Fused:
    for block in _blocks(function):
        chain = _Chain(text, name)
        for statement in block:
            if chain.follow(statement):
                return _spliced(text, function, chain, [*block[: block.index(statement) + 1]])
    raise _Obstacle(Skip.NO_ATTENTION_CHAIN)


class _Chain:
    """The scores of one block of statements, followed from the first product to the last."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.given: list[str] = []
        self.states: dict[str, _State] = {}
        self.steps: list[ast.stmt] = []
        """Statements that only work on the scores."""
        self.call = ""
        self.node: ast.expr | None = None
        """The last product."""
        self._lines = text.splitlines()

    def follow(self, statement: ast.stmt) -> bool:
        """Return whether the statement holds the last product."""
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            state = self.states.get(statement.target.id)
            if state is not None:
                self._hold(statement.target.id, self._with(state, statement.op, statement.value))
                self.steps.append(statement)
            return False
        if not isinstance(value, ast.expr):
            return False
        ends = next((node for node in ast.walk(value) if self._ends(node)), None)
        if ends is not None:
            return True
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            state = self._state(value)
            if isinstance(target, ast.Name) and state is not None:
                self._hold(target.id, state)
                self.steps.append(statement)
        return False

    def _hold(self, name: str, state: _State) -> None:
        self.states[name] = state

    def _ends(self, node: ast.AST) -> bool:
        pair = _operands(node, _MIXES) if isinstance(node, ast.expr) else None
        if pair is None:
            return False
        state = self._state(pair[0])
        if state is None or not state.softmax:
            return False
        self.node = node if isinstance(node, ast.expr) else None
        self.given = _given(state, ast.unparse(pair[1]))
        self.call = f"{self.name}({', '.join(self.given)})"
        return True

    def _state(self, node: ast.expr) -> _State | None:
        """Return what the expression is if it is scores or weights."""
        if isinstance(node, ast.Name):
            return self.states.get(node.id)
        pair = _operands(node, _SCORES)
        if pair is not None:
            named = isinstance(node, ast.Call) and last_name(node) == "einsum"
            return self._product(*pair, turned=pair[1] if named else _turned(pair[1]))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return None

    def _product(
        self, left: ast.expr, right: ast.expr, *, turned: ast.expr | None
    ) -> _State | None:
        """Return the scores that a product makes. `turned` holds the keys before they are
        transposed."""
        if turned is None or self._state(right) is not None or self._state(left) is not None:
            return None
        q, scale = _unscaled(left)
        return _State(q=ast.unparse(q), k=ast.unparse(turned), scale=scale)

    def _binary(self, node: ast.BinOp) -> _State | None:
        left, right = self._state(node.left), self._state(node.right)
        if left is not None and right is None:
            return self._with(left, node.op, node.right)
        if right is not None and left is None and isinstance(node.op, ast.Mult | ast.Add):
            return self._with(right, node.op, node.left)
        return None

    def _with(self, state: _State, op: ast.operator, other: ast.expr) -> _State:
        if state.softmax:
            raise _Obstacle(Skip.WEIGHTS_CHANGED)
        text = ast.unparse(other)
        if isinstance(op, ast.Mult | ast.Div) and not state.masks and not state.causal:
            return replace(state, scale=_times(state.scale, op, text))
        if isinstance(op, ast.Add):
            return replace(state, masks=(*state.masks, text), causal=state.causal)
        raise _Obstacle(Skip.SCORES_CHANGED)

    def _called(self, node: ast.Call) -> _State | None:
        name, on = (
            last_name(node),
            node.func.value if isinstance(node.func, ast.Attribute) else None,
        )
        given = [*([on] if on is not None else []), *node.args]
        holding = [(one, state) for one in given if (state := self._state(one)) is not None]
        if len(holding) != 1:
            return None
        at, state = holding[0]
        if name == "softmax":
            return self._softmaxed(node, at, state)
        if name in _CASTS and at is on:
            return state
        if name.startswith("masked_fill") and at is on and len(node.args) == 2:
            return self._masked(state, node.args[0], node.args[1], left_out=True)
        if name == "where" and len(node.args) == 3 and at is node.args[1]:
            return self._masked(state, node.args[0], node.args[2], left_out=False)
        if "drop" in name.lower() and state.softmax and not state.dropout:
            return replace(state, dropout=_dropped(node))
        raise _Obstacle(Skip.ATTENTION_CALL, function=name, to_weights=state.softmax)

    def _softmaxed(self, node: ast.Call, at: ast.expr, state: _State) -> _State:
        dims = [k.value for k in node.keywords if k.arg == "dim"]
        dims += [one for one in node.args if one is not at][:1]
        if state.softmax or not dims or _number(dims[0]) not in (-1, 3):
            raise _Obstacle(Skip.SOFTMAX_DIMENSION)
        return replace(state, softmax=True)

    def _masked(self, state: _State, mask: ast.expr, value: ast.expr, *, left_out: bool) -> _State:
        if state.softmax or not _far_below(value):
            raise _Obstacle(Skip.SCORES_FILLED)
        if is_causal(self._lines, mask):
            return replace(state, causal=True)
        return replace(
            state, masks=(*state.masks, _taking_part(mask) if left_out else ast.unparse(mask))
        )


def _given(state: _State, v: str) -> list[str]:
    if len(state.masks) + state.causal > 1:
        raise _Obstacle(Skip.SEVERAL_MASKS)
    given = [state.q, state.k, v]
    given += [f"attn_mask={mask}" for mask in state.masks]
    given += ["is_causal=True"] if state.causal else []
    given += [f"dropout_p={state.dropout}"] if state.dropout else []
    given.append(f"scale={state.scale}")
    return given


def _spliced(
    text: str,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    chain: _Chain,
    block: Sequence[ast.stmt],
) -> Fused:
    """Return the file with the call in the place of the chain. `block` holds the statements up to
    the one with the last product."""
    last = block[-1]
    steps = [*chain.steps, last]
    inside = {id(node) for step in steps for node in ast.walk(step)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in chain.states and id(node) not in inside:
            raise _Obstacle(Skip.SCORES_USED_ELSEWHERE, name=node.id)
    assert chain.node is not None
    lines = text.encode().splitlines(keepends=True)
    _put(lines, chain.node, chain)
    gone = [*chain.steps, *_unread(function, chain.node, chain.call, chain.steps, block[:-1])]
    for step in sorted(gone, key=lambda one: -one.lineno):
        end = step.end_lineno or step.lineno
        if any(other is not step and _overlap(step, other) for other in ast.walk(function)):
            raise _Obstacle(Skip.SHARED_LINE)
        del lines[step.lineno - 1 : end]
    new = b"".join(lines).decode()
    ast.parse(new)
    first, end = min(step.lineno for step in (*gone, last)), last.end_lineno or last.lineno
    old = text.encode().splitlines()
    kept = b"".join(lines).splitlines()[first - 1 :]
    after = kept[: len(kept) - (len(old) - end)]
    decorated = [one.lineno for one in function.decorator_list]
    return Fused(
        text=new,
        function=function.name,
        line=min([*decorated, function.lineno]),
        call=chain.call,
        first=first,
        last=end,
        before=b"\n".join(old[first - 1 : end]).decode(),
        after=b"\n".join(after).decode(),
    )


def _put(lines: list[bytes], node: ast.expr, chain: _Chain) -> None:
    """Put the call in the place of an expression and leave brackets around it. A call that is too
    long for the line is split over several."""
    first, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[end][node.end_col_offset :]
    call = chain.call
    if len((head + call.encode() + tail).decode().rstrip()) > _MAX_LINE_WIDTH:
        opened = lines[first].decode()
        indent = opened[: len(opened) - len(opened.lstrip(" \t"))]
        operands, *rest = [", ".join(chain.given[:3]), *chain.given[3:]]
        rows = [f"{indent}    {one}," for one in (operands, *rest)]
        call = "\n".join([f"{chain.name}(", *rows, f"{indent})"])
    lines[first : end + 1] = [head + call.encode() + tail, *([b""] * (end - first))]


def _overlap(step: ast.stmt, other: ast.AST) -> bool:
    if not isinstance(other, ast.stmt) or isinstance(other, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    ends = step.end_lineno or step.lineno
    return step.lineno <= other.lineno <= ends


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _innermost(tree: ast.AST, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and first_line(node) <= line <= (node.end_lineno or node.lineno)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _operands(node: ast.AST, sums: Sequence[str]) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return None
    if (
        last_name(node) == "einsum"
        and len(node.args) == 3
        and isinstance(node.args[0], ast.Constant)
    ):
        told = str(node.args[0].value).replace(" ", "")
        return (node.args[1], node.args[2]) if told in sums else None
    if last_name(node) not in _PRODUCTS:
        return None
    if len(node.args) == 2:
        return node.args[0], node.args[1]
    on = node.func.value if isinstance(node.func, ast.Attribute) else None
    return (on, node.args[0]) if on is not None and len(node.args) == 1 else None


def _turned(node: ast.expr) -> ast.expr | None:
    """Return what is transposed for the product; None if nothing is."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        numbers = [_number(one) for one in node.args]
        if node.func.attr in ("transpose", "swapaxes") and sorted(map(str, numbers)) in (
            ["-1", "-2"], ["2", "3"], ["1", "2"],
        ):  # fmt: skip
            return node.func.value
        if node.func.attr == "permute" and numbers in ([0, 1, 3, 2], [0, 2, 1]):
            return node.func.value
    return None


def _unscaled(node: ast.expr) -> tuple[ast.expr, str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return node.left, _times("1.0", node.op, ast.unparse(node.right))
    return node, "1.0"


def _times(scale: str, op: ast.operator, other: str) -> str:
    if isinstance(op, ast.Div):
        return f"{scale} / ({other})"
    return f"({other})" if scale == "1.0" else f"{scale} * ({other})"


def _taking_part(mask: ast.expr) -> str:
    """Return the mask of what takes part, as the fused operator wants it, from the mask of what is
    left out, as masked_fill gets it."""
    if isinstance(mask, ast.Compare) and len(mask.ops) == 1 and isinstance(mask.ops[0], ast.Eq):
        return f"{ast.unparse(mask.left)} != {ast.unparse(mask.comparators[0])}"
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return ast.unparse(mask.operand)
    return f"~({ast.unparse(mask)})"


def _dropped(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("self."):
        return f"{ast.unparse(node.func)}.p if self.training else 0.0"
    named = {k.arg: k.value for k in node.keywords}
    p = named.get("p", node.args[1] if len(node.args) > 1 else None)
    training = named.get("training", node.args[2] if len(node.args) > 2 else None)
    rate = ast.unparse(p) if p is not None else "0.5"
    return f"{rate} if {ast.unparse(training)} else 0.0" if training is not None else rate


def _far_below(node: ast.expr) -> bool:
    text = ast.unparse(node).replace(" ", "")
    if "inf" in text.lower() and "-" in text:
        return True
    if ".min" in text and "finfo" in text:
        return True
    value = _number(node)
    return value is not None and value <= _FAR_BELOW


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, int | float) else None


def _unread(
    function: ast.AST,
    gone: ast.AST,
    instead: str,
    steps: Sequence[ast.stmt],
    block: Sequence[ast.stmt],
) -> list[ast.stmt]:
    """Return the statements of `block` that only `gone` and `steps` read: a mask, a scale.
    `instead` is the code in their place."""
    found: list[ast.stmt] = []
    kept = _reads(ast.parse(instead, mode="eval"))
    while True:
        away = {id(node) for one in (gone, *steps, *found) for node in ast.walk(one)}
        left = {n for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in away}
        read = {n.id for n in left if isinstance(n.ctx, ast.Load)} | kept
        lost = {name for one in (gone, *steps, *found) for name in _reads(one)}
        more = [
            one
            for one in block
            if one not in steps
            and one not in found
            and (name := _assigned_name(one)) in lost - read
            and sum(n.id == name for n in left) == 1
            and _pure(one)
            and not any(other is not one and _shares(one, other) for other in block)
        ]
        if not more:
            return found
        found += more


def _assigned_name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _pure(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
        if isinstance(node, ast.Call) and last_name(node) not in _PURE:
            return False
    return True


def _reads(node: ast.AST) -> set[str]:
    return {n.id for n in _name_nodes(node) if isinstance(n.ctx, ast.Load)}


def _name_nodes(node: ast.AST) -> Iterator[ast.Name]:
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Name))


def _shares(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether the two statements share a line."""
    first, last = one.lineno, one.end_lineno or one.lineno
    return first <= (other.end_lineno or other.lineno) and other.lineno <= last
