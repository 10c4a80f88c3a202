"""Lines that keep a tensor of every step: appended to a list, added to a sum, put under a new key;
and the names that hold a tensor with its autograd graph.

A line is named only if nothing in the source lets go again: a list made anew in the same loop,
`.clear()`, a deque with `maxlen` are no leak. A name holds a graph if it is assigned from a call of
a model, or from an expression with such a name in it that nothing in between takes off the graph. A
model is what `.parameters()`, `.train()`, `.eval()` or `.zero_grad()` is called on in the file, or
a part of `self` in the forward of a module.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from ridgeline.source.file import (
    Function,
    Loop,
    SourceFile,
    calls_in,
    last_name,
    parameters,
    targets_of,
)

_STORING = frozenset({"append", "extend", "add", "appendleft", "insert", "put", "setdefault"})
_RELEASING = frozenset({"clear", "pop", "popleft", "popitem", "remove", "get"})
_TENSOR_METHODS = frozenset({"detach", "clone", "cpu", "cuda", "to", "half", "float", "bfloat16"})
"""Methods whose result is a tensor."""
_NO_TENSORS = frozenset({
    "item", "tolist", "float", "int", "len", "round", "time", "perf_counter", "monotonic", "str",
    "Linear", "Conv2d", "format", "join", "sum", "min", "max", "process_time",
})  # fmt: skip
"""Calls whose result is no tensor of the step."""
_TRAINING = frozenset({"backward", "step", "fit"})
_COUNTING = frozenset({"range", "enumerate", "trange"})
_BOUNDS = frozenset({"maxlen", "maxsize"})
_MODEL_METHODS = frozenset({
    "parameters", "named_parameters", "train", "eval", "zero_grad", "state_dict", "load_state_dict",
})  # fmt: skip
_MODEL_NAMES = frozenset({"model", "net", "network", "self.model", "self.net"})
"""Usual names of a model, for one that comes as an argument."""
_WRAPPERS = frozenset({"compile", "DistributedDataParallel", "DDP", "DataParallel", "prepare"})
_TO_NUMBERS = frozenset({"float", "int", "bool", "str", "len", "print"})
_OFF_GRAPH = frozenset({"item", "tolist", "numpy", "detach", "detach_", "argmax", "size"})
_NO_GRAD = ("no_grad", "inference_mode")
_MAX_FOLLOWED_ASSIGNMENTS = 3
"""Assignments in a row that are followed: h = model(x); z = h + 1; loss = z.mean()."""


class Kept(Struct, frozen=True, kw_only=True):
    """A line that keeps a tensor."""

    file: str
    line: int
    function: str = ""
    container: str
    """history, self.cache"""
    value: str
    """What is kept, as written."""
    graph: bool = False
    """Whether the tensor is kept with its autograd graph."""
    guessed: bool = False
    """Whether the source does not show that the value is a tensor: its name comes from
    elsewhere."""
    unseen: bool = False
    """Whether the line would have been seen if it had run in the traced steps, and was not: it runs
    now and then, or never."""
    spent: bool = False
    """Whether the value is a loss whose backward runs: little of its graph stays."""
    how: str = "append"
    """append, sum, key"""
    renewed: bool = False
    """Whether the container is made anew in a loop further out: it lets go at the end of each
    epoch."""
    temporary: bool = False
    """Whether the container is a local variable of a function that trains nothing: it is gone when
    the function returns."""
    read_later: bool = False
    """Whether the container is read as a whole behind the loop that fills it: joined, saved or
    returned."""
    limited: bool = False
    """Whether a dataset's `__getitem__` fills the container: it never has more entries than there
    are samples."""
    text: str = ""
    """The line, as written."""
    detached: str = ""
    """The line with what is kept taken off its graph; "" if the value is not on one line."""


def kept(source: SourceFile) -> tuple[Kept, ...]:
    """Return the lines of a file that keep a tensor: those with a graph first, then those that
    never let go, then by line."""
    names, training = GraphNames(source), _training_functions(source)
    lines = [
        line
        for node in source.nodes
        for container, value, how in _stored(node)
        if (line := _judged(source, names, training, node, container, value, how)) is not None
    ]
    lines.sort(key=lambda k: (k.unseen, not k.graph, k.guessed, k.renewed, k.line))
    return tuple(lines)


def _stored(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield the container, the value and the way in which a node stores."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _STORING and node.args:
            yield node.func.value, node.args[-1], "append"
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield node.target, node.value, "sum"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
            yield target.value, value, "key"
        else:
            for term in _terms_added(value, ast.unparse(target)):
                yield target, term, "sum"


def _judged(
    source: SourceFile,
    names: "GraphNames",
    training: frozenset[str],
    node: ast.AST,
    container: ast.expr,
    value: ast.expr,
    how: str,
) -> Kept | None:
    function = source.function_of(node)
    scope = function or source.module
    where, own = ast.unparse(container), function.name if function is not None else ""
    outlives = where.startswith("self.") or _is_global(source, function, where)
    if not outlives and (not source.loops(node) or own == "forward"):
        return None  # what a forward collects goes with it
    if _is_released(source, where, outlives):
        return None
    renewed = _is_renewed(source, node, scope, where)
    if renewed is None:
        return None
    graph = names.holds(value, scope) and not names.is_under_no_grad(node)
    if not graph and how == "sum":
        return None  # a sum of numbers or of detached tensors takes no more memory
    sure = graph or _is_tensor(value, names.names(scope))
    if not sure and not _may_be_tensor(source, value, scope):
        return None
    line = getattr(node, "lineno", 0)
    return Kept(
        file=source.file, line=line, function=own, container=where, value=ast.unparse(value),
        graph=graph, how=how, text=source.line(line), renewed=renewed, guessed=not sure,
        spent=ast.unparse(value) in names.losses(scope), unseen=source.ran(node) is False,
        read_later=_is_read_later(source, node, scope, where),
        temporary=bool(own) and not outlives and own not in training,
        limited=how == "key" and own == "__getitem__",
        detached=_detached(source, line, [v for v in _parts(value) if names.holds(v, scope)]),
    )  # fmt: skip


def _training_functions(source: SourceFile) -> frozenset[str]:
    """Return the names of the functions that run training steps: those that call `backward()`,
    `step()` or a function with "train" in its name, and those that call one of these functions.
    `train` alone does not count: it switches a module's mode."""
    calls = {f.name: {last_name(call) for call in calls_in(f)} for f in source.functions}
    found: set[str] = set()
    while True:
        more = {
            name
            for name, called in calls.items()
            if name not in found
            and any(
                one in _TRAINING or one in found or ("train" in one.lower() and one != "train")
                for one in called
            )
        }
        if not more:
            return frozenset(found)
        found |= more


def _parts(value: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple, a list or a dictionary; else the value itself."""
    if isinstance(value, ast.Tuple | ast.List):
        return [part for one in value.elts for part in _parts(one)]
    if isinstance(value, ast.Dict):
        return [part for one in value.values for part in _parts(one)]
    return [value]


def _detached(source: SourceFile, line: int, values: list[ast.expr]) -> str:
    if not values or any(v.lineno != line or v.end_lineno != line for v in values):
        return ""
    text = source.lines[line - 1].encode()  # columns of the tree are bytes
    for value in sorted(values, key=lambda v: -v.col_offset):
        end = value.end_col_offset or 0
        was = text[value.col_offset : end]
        if not isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            was = b"(" + was + b")"
        text = text[: value.col_offset] + was + b".detach()" + text[end:]
    return text.decode(errors="replace").strip()


def _is_global(source: SourceFile, function: Function | None, where: str) -> bool:
    """Return whether a name used in a function is one of the module: it lives as long as the
    program."""
    if function is None or where in parameters(function):
        return False
    if any(where in _assigned_names(node) for node in source.walk(function)):
        return False
    return any(where in _assigned_names(node) for node in source.module.body)


def _is_released(source: SourceFile, where: str, outlives: bool) -> bool:
    """Return whether something takes out of the container, bounds it, or makes a container that
    outlives its function anew elsewhere."""
    for node in source.nodes:
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in _RELEASING:
            if ast.unparse(method.value) == where:
                return True
        elif isinstance(node, ast.Delete):
            if any(ast.unparse(target).startswith(where) for target in node.targets):
                return True
        elif isinstance(node, ast.Assign | ast.AnnAssign) and where in _assigned_names(node):
            made, function = node.value, source.function_of(node)
            if isinstance(made, ast.Call) and any(k.arg in _BOUNDS for k in made.keywords):
                return True
            elsewhere = function is not None and function.name not in ("__init__", "setup")
            if outlives and elsewhere and not _terms_added(made, where):
                return True
    return False


def _is_renewed(source: SourceFile, node: ast.AST, scope: ast.AST, where: str) -> bool | None:
    """Return whether the container is made anew in a loop around the line; None if it is in the
    innermost one."""
    loops = [p for p in source.parents(node) if isinstance(p, Loop)]
    renewed = False
    for other in source.walk(scope):
        if other is node or where not in _assigned_names(other):
            continue
        if isinstance(other, ast.Assign | ast.AnnAssign) and not _terms_added(other.value, where):
            around = set(source.parents(other))
            if loops and loops[0] in around:
                return None
            renewed = renewed or not around.isdisjoint(loops)
    return renewed


def _is_read_later(source: SourceFile, node: ast.AST, scope: ast.AST, where: str) -> bool:
    """Return whether the whole container is used behind the loops around the line; its length alone
    does not count."""
    loops = [p for p in source.parents(node) if isinstance(p, Loop)]
    end = max((getattr(loop, "end_lineno", 0) or 0 for loop in loops), default=0)
    for other in source.walk(scope):
        if not isinstance(other, ast.Call | ast.Return | ast.For) or other.lineno <= end:
            continue
        if isinstance(other, ast.Call):
            read: list[ast.expr | None] = [] if last_name(other) == "len" else [*other.args]
        else:
            read = [other.iter if isinstance(other, ast.For) else other.value]
        if any(part is not None and ast.unparse(part) == where for part in read):
            return True
    return False


def _terms_added(value: ast.expr | None, where: str) -> list[ast.expr]:
    """Return the terms that a sum adds to the name it begins with: `loss` in total + loss, `loss`
    and `penalty` in total + loss + penalty. Return nothing for another expression."""
    terms: list[ast.expr] = []
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        terms.append(value.right)
        value = value.left
    return terms if value is not None and ast.unparse(value) == where else []


def _is_tensor(value: ast.expr, names: frozenset[str]) -> bool:
    """Return whether a value is a tensor without a graph: taken off it, or copied."""
    for call in calls_in(value):
        if isinstance(call.func, ast.Attribute):
            if call.func.attr in ("item", "tolist"):
                return False
            if call.func.attr in _TENSOR_METHODS:
                return True
    return isinstance(value, ast.Name) and value.id in names


def _may_be_tensor(source: SourceFile, value: ast.expr, scope: ast.AST) -> bool:
    """Return whether a value is a name that is given to the function, or that comes from a call
    that makes no number."""
    if isinstance(value, ast.Tuple | ast.List):
        return any(_may_be_tensor(source, one, scope) for one in value.elts)
    if not isinstance(value, ast.Name):
        return False
    if isinstance(scope, Function) and value.id in parameters(scope):
        return True
    for node in source.walk(scope):
        if isinstance(node, ast.Assign) and value.id in _assigned_names(node):
            if isinstance(node.value, ast.Call) and last_name(node.value) not in _NO_TENSORS:
                return True
        elif isinstance(node, ast.For) and value.id in ast.unparse(node.target):
            return not isinstance(node.iter, ast.Call) or last_name(node.iter) not in _COUNTING
    return False


def _assigned_names(node: ast.AST) -> list[str]:
    return [ast.unparse(target) for target in targets_of(node)]


class GraphNames:
    """The names of a file that hold a tensor with its autograd graph."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._models = _models(source)
        self._returning: set[str] = set()
        for _ in range(2):  # a function that returns what another one returned
            for function in source.functions:
                returns = [n for n in source.walk(function) if isinstance(n, ast.Return)]
                if any(n.value is not None and self.holds(n.value, function) for n in returns):
                    self._returning.add(function.name)

    def holds(self, value: ast.AST, scope: ast.AST) -> bool:
        """Return whether an expression keeps a graph alive."""
        return self._keeps(value, self.names(scope), scope)

    def names(self, scope: ast.AST) -> frozenset[str]:
        """Return the names of a function that hold a graph, and what backward is called on."""
        nodes = list(self._source.walk(scope))
        found = set(_backward_on(nodes))
        for _ in range(_MAX_FOLLOWED_ASSIGNMENTS):
            for node in nodes:
                if isinstance(node, ast.Assign) and self._keeps(node.value, found, scope):
                    found |= {name for target in node.targets for name in _target_names(target)}
        return frozenset(found)

    def model_calls(self, scope: ast.AST) -> list[ast.Call]:
        """Return the calls of a model in a function, in the order of the source."""
        nodes = self._source.walk(scope)
        return [n for n in nodes if isinstance(n, ast.Call) and self._is_model(n.func, scope)]

    def losses(self, scope: ast.AST) -> frozenset[str]:
        """Return what backward is called on, which lets go of its graph."""
        if "retain_graph" in self._source.text:
            return frozenset()
        return frozenset(_backward_on(self._source.walk(scope)))

    def is_under_no_grad(self, node: ast.AST) -> bool:
        """Return whether a node is under no_grad or inference_mode, as a block or a decorator."""
        for above in self._source.parents(node):
            contexts: list[ast.expr] = []
            if isinstance(above, ast.With | ast.AsyncWith):
                contexts = [item.context_expr for item in above.items]
            elif isinstance(above, Function):
                contexts = above.decorator_list
            if any(word in ast.unparse(context) for context in contexts for word in _NO_GRAD):
                return True
            if isinstance(above, Function):
                return False
        return False

    def _keeps(self, value: ast.AST, names: Collection[str], scope: ast.AST) -> bool:
        if isinstance(value, ast.Call):
            name = last_name(value)
            builtin = isinstance(value.func, ast.Name)  # x.float() is a tensor, float(x) is none
            if name in (_TO_NUMBERS if builtin else _OFF_GRAPH):
                return False
            if self._is_model(value.func, scope) or name in self._returning:
                return not self.is_under_no_grad(value)
        if isinstance(value, ast.Attribute) and value.attr in ("shape", "data", "dtype", "device"):
            return False
        if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in names:
            return True
        if isinstance(value, ast.Compare | ast.Lambda | ast.JoinedStr):
            return False
        return any(self._keeps(child, names, scope) for child in ast.iter_child_nodes(value))

    def _is_model(self, called: ast.AST, scope: ast.AST) -> bool:
        if isinstance(called, ast.Subscript):  # model[0](x), self.blocks[i](x): a part of a model
            called = called.value
        text = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
        if text in self._models or text in _MODEL_NAMES:
            return True
        return getattr(scope, "name", "") == "forward" and text.startswith("self.")


def _backward_on(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "backward" and not node.args:
                yield ast.unparse(node.func.value)
            elif node.func.attr in ("backward", "scale") and node.args:  # accelerator's, a scaler's
                yield ast.unparse(node.args[0])


def _models(source: SourceFile) -> frozenset[str]:
    found = {
        ast.unparse(call.func.value)
        for call in source.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in _MODEL_METHODS
    }
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            given = {ast.unparse(argument) for argument in node.value.args}
            if last_name(node.value) in _WRAPPERS and given & (found | _MODEL_NAMES):
                found |= {name for target in node.targets for name in _target_names(target)}
    return frozenset(found - {"self", "torch", "optimizer", "scheduler", "optim", "opt"})


def _target_names(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _target_names(one)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)
