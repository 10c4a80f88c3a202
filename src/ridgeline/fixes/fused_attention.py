"""Attention written out in the user's source, rewritten as one call of torch's
`scaled_dot_product_attention`: a product, a scale, a mask, a softmax, dropout and a second product
are followed through one block of statements. Where anything else happens to the scores or to the
weights it is left alone; that the rewritten function computes the same is for a trial to show.
"""

import ast
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.fixes.attention_parts import (
    dropped,
    far_below,
    number,
    operands,
    taking_part,
    times,
    turned,
    unscaled,
)
from ridgeline.fixes.dead import dead
from ridgeline.source.attention import is_causal
from ridgeline.source.bindings import bindings
from ridgeline.source.file import last_name

_FUNCTIONAL = "torch.nn.functional"
_WIDTH = 100
_CASTS = ("to", "type_as", "float", "type", "contiguous")
_SCORES = ("bhqd,bhkd->bhqk", "bhid,bhjd->bhij", "bnqd,bnkd->bnqk")
_MIXES = ("bhqk,bhkd->bhqd", "bhij,bhjd->bhid", "bnqk,bnkd->bnqd")


class Fused(Struct, frozen=True, kw_only=True):
    """A file whose function at `line` was rewritten."""

    text: str
    function: str
    line: int
    """Of its `def`, or of its first decorator, as Python counts it."""
    call: str
    """The new statement's call."""
    first: int
    last: int
    """Lines of the old statements."""
    before: str = ""
    after: str = ""
    """Those lines, and what stands in their place; the rest of the file is as it was."""


class _State(Struct):
    """Scores or, after the softmax, weights: what they were made of so far."""

    q: str
    k: str
    scale: str = "1.0"
    masks: tuple[str, ...] = ()
    causal: bool = False
    softmax: bool = False
    dropout: str = ""


class _No(Exception):
    """Why it is left alone."""


def fused(text: str, line: int) -> Fused | str:
    """`line`: any of the function's. A sentence where it is left alone."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return f"the source cannot be parsed: {error.msg}"
    found = _innermost(tree, line)
    if found is None:
        return "no function is at that line"
    name = _functional(text, found)
    if not name:
        return "the file does not import torch by that name"
    try:
        return _rewritten(text, found, f"{name}.scaled_dot_product_attention")
    except _No as why:
        return str(why)


def _functional(text: str, function: ast.AST) -> str:
    """How this file names torch.nn.functional, inside that function."""
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
    raise _No("no product, softmax and product follow each other in one block of it")


class _Chain:
    """The statements of one block, as far as the scores go through them."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.given: list[str] = []
        self.states: dict[str, _State] = {}
        self.steps: list[ast.stmt] = []
        """Statements that do nothing but this."""
        self.call = ""
        self.node: ast.expr | None = None
        """The product that ends it."""
        self._lines = text.splitlines()

    def follow(self, statement: ast.stmt) -> bool:
        """Whether this statement ends it."""
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
        pair = operands(node, _MIXES) if isinstance(node, ast.expr) else None
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
        """What this expression is, if it is scores or weights."""
        if isinstance(node, ast.Name):
            return self.states.get(node.id)
        pair = operands(node, _SCORES)
        if pair is not None:
            named = isinstance(node, ast.Call) and last_name(node) == "einsum"
            return self._product(*pair, turned=pair[1] if named else turned(pair[1]))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return None

    def _product(
        self, left: ast.expr, right: ast.expr, *, turned: ast.expr | None
    ) -> _State | None:
        """`turned`: the keys, as they are before the product turns them."""
        if turned is None or self._state(right) is not None or self._state(left) is not None:
            return None
        q, scale = unscaled(left)
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
            raise _No("the weights are changed after the softmax")
        text = ast.unparse(other)
        if isinstance(op, ast.Mult | ast.Div) and not state.masks and not state.causal:
            return replace(state, scale=times(state.scale, op, text))
        if isinstance(op, ast.Add):
            return replace(state, masks=(*state.masks, text), causal=state.causal)
        raise _No("the scores are changed by something that is no scale and no mask")

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
            return replace(state, dropout=dropped(node))
        raise _No(f"{name}() is applied to the {'weights' if state.softmax else 'scores'}")

    def _softmaxed(self, node: ast.Call, at: ast.expr, state: _State) -> _State:
        dims = [k.value for k in node.keywords if k.arg == "dim"]
        dims += [one for one in node.args if one is not at][:1]
        if state.softmax or not dims or number(dims[0]) not in (-1, 3):
            raise _No("its softmax is not over the last dimension")
        return replace(state, softmax=True)

    def _masked(self, state: _State, mask: ast.expr, value: ast.expr, *, left_out: bool) -> _State:
        if state.softmax or not far_below(value):
            raise _No("the scores are filled with something that is no mask")
        if is_causal(self._lines, mask):
            return replace(state, causal=True)
        return replace(
            state, masks=(*state.masks, taking_part(mask) if left_out else ast.unparse(mask))
        )


def _given(state: _State, v: str) -> list[str]:
    if len(state.masks) + state.causal > 1:
        raise _No("several masks are put on one after the other")
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
    """`block`: its statements, up to the one that ends it."""
    last = block[-1]
    steps = [*chain.steps, last]
    inside = {id(node) for step in steps for node in ast.walk(step)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in chain.states and id(node) not in inside:
            raise _No(f"`{node.id}` is used elsewhere, too")
    assert chain.node is not None
    lines = text.encode().splitlines(keepends=True)
    _put(lines, chain.node, chain)
    gone = [*chain.steps, *dead(function, chain.node, chain.call, chain.steps, block[:-1])]
    for step in sorted(gone, key=lambda one: -one.lineno):
        end = step.end_lineno or step.lineno
        if any(other is not step and _overlap(step, other) for other in ast.walk(function)):
            raise _No("two statements share a line")
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
    """In the place of an expression; brackets around it stay. On lines of its own where it is too
    long for one."""
    first, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[end][node.end_col_offset :]
    call = chain.call
    if len((head + call.encode() + tail).decode().rstrip()) > _WIDTH:
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
        and min([node.lineno, *(d.lineno for d in node.decorator_list)])
        <= line
        <= (node.end_lineno or node.lineno)
    ]
    return max(found, key=lambda node: node.lineno, default=None)
