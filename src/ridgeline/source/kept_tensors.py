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
from msgspec.structs import replace

from ridgeline.source.file import (
    Function,
    SourceFile,
    last_name,
    parameters,
)

_PUTS = frozenset({"append", "extend", "add", "appendleft", "insert", "put", "setdefault"})
_LETS_GO = frozenset({"clear", "pop", "popleft", "popitem", "remove", "get"})
_TENSORS = frozenset({"detach", "clone", "cpu", "cuda", "to", "half", "float", "bfloat16"})
"""Methods whose result is a tensor: what a line stores that calls one of them is a tensor too."""
_NO_TENSORS = frozenset({
    "item", "tolist", "float", "int", "len", "round", "time", "perf_counter", "monotonic", "str",
    "Linear", "Conv2d", "format", "join", "sum", "min", "max", "process_time",
})  # fmt: skip
_TRAINS = frozenset({"backward", "step", "fit"})
_COUNTS = frozenset({"range", "enumerate", "trange"})
_BOUNDED = frozenset({"maxlen", "maxsize"})


class Kept(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str = ""
    container: str
    """history, self.cache"""
    value: str
    """What is kept, as written."""
    graph: bool = False
    """With its autograd graph."""
    guessed: bool = False
    """Whether it is a tensor the source does not say: a name that comes from elsewhere."""
    unseen: bool = False
    """Whether the line would have been seen if it had run in the traced steps, and was not: it runs
    now and then, or never."""
    spent: bool = False
    """A loss whose backward runs: what stays of its graph is small."""
    how: str = "append"
    """append, sum, key"""
    renewed: bool = False
    """Made anew in a loop further out: it lets go at the end of each epoch."""
    temporary: bool = False
    """Whether the container is a local variable of a function that trains nothing: it is gone when
    the function returns."""
    limited: bool = False
    """Whether a dataset's `__getitem__` fills the container: it never has more entries than there
    are samples."""
    text: str = ""
    """The line, as written."""
    detached: str = ""
    """The line with what is kept taken off its graph; "" where that is not on one line."""


def kept(source: SourceFile) -> tuple[Kept, ...]:
    """Those with a graph first, then those that never let go, then by line."""
    names, training = GraphNames(source), _training_functions(source)
    found = []
    for node in ast.walk(source.module):
        for container, value, how in _storing(node):
            one = _judged(source, names, training, node, container, value, how)
            if one is not None:
                found.append(replace(one, unseen=source.ran(node) is False))
    order = sorted(found, key=lambda k: (k.unseen, not k.graph, k.guessed, k.renewed, k.line))
    return tuple(order)


def _storing(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _PUTS and node.args:
            yield node.func.value, node.args[-1], "append"
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield node.target, node.value, "sum"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
            yield target.value, value, "key"
        else:
            for added in _added(value, ast.unparse(target)):
                yield target, added, "sum"


def _judged(
    source: SourceFile,
    names: "GraphNames",
    training: frozenset[str],
    node: ast.AST,
    container: ast.expr,
    value: ast.expr,
    how: str,
) -> Kept | None:
    function = next((p for p in source.parents(node) if isinstance(p, Function)), None)
    scope: ast.AST = function if function is not None else source.module
    where = ast.unparse(container)
    outlives = where.startswith("self.") or _is_global(source, function, where)
    if not outlives and (not source.loops(node) or getattr(scope, "name", "") == "forward"):
        return None  # what a forward collects goes with it
    if _lets_go(source, where, outlives):
        return None
    renewed = _renewed(source, node, scope, where)
    if renewed is None:
        return None
    graph = names.holds(value, scope) and not names.quiet(node)
    if not graph and how == "sum":
        return None  # a sum of numbers or of detached tensors takes no more memory
    sure = graph or _is_tensor(value, names.names(scope))
    if not sure and not _may_be_tensor(source, value, scope):
        return None
    line = getattr(node, "lineno", 0)
    return Kept(
        file=source.file, line=line, function=function.name if function is not None else "",
        container=where, value=ast.unparse(value), graph=graph, how=how, text=source.line(line),
        renewed=renewed, guessed=not sure, spent=ast.unparse(value) in names.losses(scope),
        temporary=function is not None and not outlives and function.name not in training,
        limited=how == "key" and getattr(scope, "name", "") == "__getitem__",
        detached=_detached(source, line, [v for v in _parts(value) if names.holds(v, scope)]),
    )  # fmt: skip


def _training_functions(source: SourceFile) -> frozenset[str]:
    """Return the names of the functions that run training steps: those that call `backward()`,
    `step()` or a function with "train" in its name, and those that call one of these functions."""
    functions = [node for node in ast.walk(source.module) if isinstance(node, Function)]
    calls = {
        function.name: {last_name(n) for n in ast.walk(function) if isinstance(n, ast.Call)}
        for function in functions
    }
    found: set[str] = set()
    while True:
        more = {
            name
            for name, called in calls.items()
            if name not in found and any(_is_training_call(one) or one in found for one in called)
        }
        if not more:
            return frozenset(found)
        found |= more


def _is_training_call(name: str) -> bool:
    """Return whether a call of this name trains. `train` alone does not: it switches a module's
    mode."""
    return name in _TRAINS or ("train" in name.lower() and name != "train")


def _parts(value: ast.expr) -> list[ast.expr]:
    """The tensors of a value that is a tuple, a list or a dictionary of them; else itself."""
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
    """A name of the module, used in a function: it lives as long as the program."""
    if function is None:
        return False
    own = [n for n in source.walk(function) if isinstance(n, ast.Assign | ast.AnnAssign)]
    if any(where in _assigned_names(n) for n in own) or where in parameters(function):
        return False
    return any(
        where in _assigned_names(n)
        for n in source.module.body
        if isinstance(n, ast.Assign | ast.AnnAssign)
    )


def _lets_go(source: SourceFile, where: str, outlives: bool) -> bool:
    """Whether something takes out of the container, bounds it, or (of one that outlives its
    function) makes it anew elsewhere."""
    for node in ast.walk(source.module):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in _LETS_GO:
            if ast.unparse(method.value) == where:
                return True
        elif isinstance(node, ast.Delete):
            if any(ast.unparse(target).startswith(where) for target in node.targets):
                return True
        elif isinstance(node, ast.Assign | ast.AnnAssign) and where in _assigned_names(node):
            function = next((p for p in source.parents(node) if isinstance(p, Function)), None)
            elsewhere = function is not None and function.name not in ("__init__", "setup")
            if _bounded(node.value) or (outlives and elsewhere and not _is_sum(node, where)):
                return True
    return False


def _renewed(source: SourceFile, node: ast.AST, scope: ast.AST, where: str) -> bool | None:
    """Whether the container is made anew in a loop around the line; None: in the innermost one."""
    loops = [p for p in source.parents(node) if isinstance(p, ast.For | ast.While | ast.AsyncFor)]
    found = False
    for other in source.walk(scope):
        if other is node or not isinstance(other, ast.Assign | ast.AnnAssign):
            continue
        if where not in _assigned_names(other) or _is_sum(other, where):
            continue
        around = set(source.parents(other))
        if loops and loops[0] in around:
            return None
        found = found or any(loop in around for loop in loops)
    return found


def _is_sum(node: ast.Assign | ast.AnnAssign, where: str) -> bool:
    """total = total + loss"""
    return bool(_added(node.value, where))


def _added(value: ast.expr | None, where: str) -> list[ast.expr]:
    """Return the terms that a sum adds to the name it begins with: `loss` in total + loss, `loss`
    and `penalty` in total + loss + penalty. Return nothing for another expression."""
    found: list[ast.expr] = []
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        found.append(value.right)
        value = value.left
    return found if value is not None and ast.unparse(value) == where else []


def _bounded(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(k.arg in _BOUNDED for k in value.keywords)


def _is_tensor(value: ast.expr, names: frozenset[str]) -> bool:
    """Without a graph: a tensor taken off it, or copied."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("item", "tolist"):
                return False
            if node.func.attr in _TENSORS:
                return True
    return isinstance(value, ast.Name) and value.id in names


def _may_be_tensor(source: SourceFile, value: ast.expr, scope: ast.AST) -> bool:
    """A name that is given to the function, or comes from a call that makes no number."""
    if isinstance(value, ast.Tuple | ast.List):
        return any(_may_be_tensor(source, one, scope) for one in value.elts)
    if not isinstance(value, ast.Name):
        return False
    if isinstance(scope, Function) and value.id in parameters(scope):
        return True
    for node in source.walk(scope):
        if isinstance(node, ast.Assign) and value.id in _assigned_names(node):
            made = node.value
            if isinstance(made, ast.Call) and last_name(made) not in _NO_TENSORS:
                return True
        elif isinstance(node, ast.For) and value.id in ast.unparse(node.target):
            return not isinstance(node.iter, ast.Call) or last_name(node.iter) not in _COUNTS
    return False


def _assigned_names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [ast.unparse(target) for target in targets]


_MODEL_METHODS = frozenset({
    "parameters", "named_parameters", "train", "eval", "zero_grad", "state_dict", "load_state_dict",
})  # fmt: skip
_MODEL_NAMES = frozenset({"model", "net", "network", "self.model", "self.net"})
"""What nearly everybody calls it, where it comes as an argument."""
_WRAPS = frozenset({"compile", "DistributedDataParallel", "DDP", "DataParallel", "prepare"})
_TO_NUMBERS = frozenset({"float", "int", "bool", "str", "len", "print"})
_TAKEN_OFF = frozenset({"item", "tolist", "numpy", "detach", "detach_", "argmax", "size"})
_QUIET = ("no_grad", "inference_mode")
_ROUNDS = 3
"""Of following assignments: h = model(x); z = h + 1; loss = z.mean()."""


class GraphNames:
    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._models = _models(source)
        self._returning: set[str] = set()
        functions = [n for n in ast.walk(source.module) if isinstance(n, Function)]
        for _ in range(2):  # a function that returns what another one returned
            for function in functions:
                if any(self.holds(value, function) for value in _returned(source, function)):
                    self._returning.add(function.name)

    def holds(self, value: ast.AST, scope: ast.AST) -> bool:
        """Whether an expression keeps a graph alive."""
        return self._keeps(value, self.names(scope), scope)

    def names(self, scope: ast.AST) -> frozenset[str]:
        """Of a function: those with a graph, and what backward is called on."""
        nodes = list(self._source.walk(scope))
        found = set(_backward_on(nodes))
        for _ in range(_ROUNDS):
            for node in nodes:
                if isinstance(node, ast.Assign) and self._keeps(node.value, found, scope):
                    found |= {name for target in node.targets for name in _targets(target)}
        return frozenset(found)

    def model_calls(self, scope: ast.AST) -> list[ast.Call]:
        """Calls of a model in a function, in the order of the source."""
        nodes = self._source.walk(scope)
        return [n for n in nodes if isinstance(n, ast.Call) and self._is_model(n.func, scope)]

    def losses(self, scope: ast.AST) -> frozenset[str]:
        """What backward is called on and lets go of its graph."""
        if "retain_graph" in self._source.text:
            return frozenset()
        return frozenset(_backward_on(self._source.walk(scope)))

    def quiet(self, node: ast.AST) -> bool:
        """Under no_grad or inference_mode, as a block or a decorator."""
        for above in self._source.parents(node):
            if isinstance(above, ast.With | ast.AsyncWith):
                said = [ast.unparse(item.context_expr) for item in above.items]
            elif isinstance(above, Function):
                said = [ast.unparse(decorator) for decorator in above.decorator_list]
            else:
                continue
            if any(word in text for text in said for word in _QUIET):
                return True
            if isinstance(above, Function):
                return False
        return False

    def _keeps(self, value: ast.AST, names: Collection[str], scope: ast.AST) -> bool:
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            builtin = isinstance(value.func, ast.Name)  # x.float() is a tensor, float(x) is none
            if name in (_TO_NUMBERS if builtin else _TAKEN_OFF):
                return False
            if self._is_model(value.func, scope) or name in self._returning:
                return not self.quiet(value)
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
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "backward" and not node.args:
            yield ast.unparse(node.func.value)
        elif node.func.attr in ("backward", "scale") and node.args:  # accelerator's, a scaler's
            yield ast.unparse(node.args[0])


def _models(source: SourceFile) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(source.module):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in _MODEL_METHODS:
            found.add(ast.unparse(method.value))
    for node in ast.walk(source.module):
        made = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(made, ast.Call) or last_name(made.func) not in _WRAPS:
            continue
        if any(ast.unparse(argument) in found | _MODEL_NAMES for argument in made.args):
            assert isinstance(node, ast.Assign)
            found |= {name for target in node.targets for name in _targets(target)}
    return frozenset(found - {"self", "torch", "optimizer", "scheduler", "optim", "opt"})


def _returned(source: SourceFile, function: Function) -> Iterator[ast.AST]:
    for node in source.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _targets(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)
