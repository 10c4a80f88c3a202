"""Names that hold a tensor with its autograd graph, by the source of a function.

A name does if it is assigned from a call of a model, or from an expression with such a name in it
that nothing in between takes off the graph. A model is what `.parameters()`, `.train()`, `.eval()`
or `.zero_grad()` is called on in the file, or a part of `self` in the forward of a module.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from ridgeline.source.reading.sources import Source

_MODEL_METHODS = frozenset({
    "parameters", "named_parameters", "train", "eval", "zero_grad", "state_dict", "load_state_dict",
})  # fmt: skip
_MODEL_NAMES = frozenset({"model", "net", "network", "self.model", "self.net"})
"""What nearly everybody calls it, where it comes as an argument."""
_WRAPS = frozenset({"compile", "DistributedDataParallel", "DDP", "DataParallel", "prepare"})
_NUMBERS = frozenset({"float", "int", "bool", "str", "len", "print"})
_TAKEN_OFF = frozenset({"item", "tolist", "numpy", "detach", "detach_", "argmax", "size"})
_QUIET = ("no_grad", "inference_mode")
_ROUNDS = 3
"""Of following assignments: h = model(x); z = h + 1; loss = z.mean()."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class GraphNames:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._models = _models(source)
        self._returning: set[str] = set()
        functions = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
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
            name = _last(value.func)
            builtin = isinstance(value.func, ast.Name)  # x.float() is a tensor, float(x) is none
            if name in (_NUMBERS if builtin else _TAKEN_OFF):
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


def _models(source: Source) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(source.tree):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in _MODEL_METHODS:
            found.add(ast.unparse(method.value))
    for node in ast.walk(source.tree):
        made = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(made, ast.Call) or _last(made.func) not in _WRAPS:
            continue
        if any(ast.unparse(argument) in found | _MODEL_NAMES for argument in made.args):
            assert isinstance(node, ast.Assign)
            found |= {name for target in node.targets for name in _targets(target)}
    return frozenset(found - {"self", "torch", "optimizer", "scheduler", "optim", "opt"})


def _returned(source: Source, function: Function) -> Iterator[ast.AST]:
    for node in source.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _targets(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)


def _last(called: ast.AST) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
