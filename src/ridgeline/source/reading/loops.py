"""Loops in the user's source: which loop of a measured function makes the calls that were seen."""

import ast

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.reading.sources import Source, Sources
from ridgeline.source.reading.turns import carried, changes_state

_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MODULE_LISTS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_OF_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})


class SourceLoop(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    """Of its `for` or `while`."""
    function: str = ""
    """The function it stands in."""
    over: str = ""
    """What it goes through, as written; the condition of a `while`."""
    target: str = ""
    text: str = ""
    """As written, a line or more."""
    calls: frozenset[str] = frozenset()
    """Last parts of what its body calls: item, mul_, append."""
    attributes: frozenset[str] = frozenset()
    """Attributes its body and its head name: grad, data."""
    inner: int = 0
    """Loops around it in its function."""
    carried: str = ""
    """A name that each turn takes from the turn before: h in h = cell(x, h)."""
    direct: bool = False
    """It is an argument of the very call that gives it its next value."""
    state: str = ""
    """An object that each turn leaves changed for the next: env in env.step(a)."""
    squares: bool = False
    """Its body raises something to a power."""
    works: bool = False
    """Its body calls or computes something."""
    collects: bool = False
    """It gathers a result of each turn: a comprehension, or append."""
    over_modules: bool = False
    """It goes through a model's layers, each with weights of its own: it calls its own variable, or
    what it goes through is a list of modules."""

    @property
    def trains(self) -> bool:
        """It is the loop over steps itself."""
        return bool(self.calls & {"backward", "zero_grad"})


def loops_at(sources: Sources, place: Place | None) -> tuple[SourceLoop, ...]:
    """Loops of the function a place names, the innermost first."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return ()
    scope = source.scope(place.line)
    nodes = [node for node in source.walk(scope) if _is_loop(node) and _ran(source, node)]
    found = [_loop(source, node, _name(scope)) for node in nodes]
    return tuple(sorted(found, key=lambda loop: (-loop.inner, loop.line)))


def loops_calling(sources: Sources, place: Place | None) -> tuple[SourceLoop, ...]:
    """Loops of the same file that call the function a place names: by its name, or, of a module's
    forward, by the names that modules of its class are given."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None or not place.function.isidentifier():
        return ()
    names = _module_names(source, place) if place.function == "forward" else {place.function}
    found = []
    for scope in ast.walk(source.tree):
        if isinstance(scope, (*_FUNCTIONS, ast.Module)):
            loops = (n for n in source.walk(scope) if _is_loop(n))
            found += [_loop(source, node, _name(scope)) for node in loops]
    return tuple(loop for loop in found if names & loop.calls)


def _module_names(source: Source, place: Place) -> set[str]:
    """cell, of self.cell = Cell(64), where the place is in Cell.forward."""
    around = source.parents(source.scope(place.line))
    kind = next((p.name for p in around if isinstance(p, ast.ClassDef)), "")
    made = [
        node.targets
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _called(node.value) == kind
    ]
    names = [t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "")
             for targets in made for t in targets]  # fmt: skip
    return {name for name in names if name}


def function_around(source: Source, line: int) -> str:
    return _name(source.scope(line))


def node_of(source: Source, loop: SourceLoop) -> ast.AST | None:
    for node in ast.walk(source.tree):
        if _is_loop(node):
            line, over, _, _ = _parts(node)
            if line == loop.line and ast.unparse(over) == loop.over:
                return node
    return None


def parts_of(source: Source, loop: SourceLoop) -> tuple[ast.expr, ast.expr | None, list[ast.AST]]:
    """What a loop goes through, its variable and its body."""
    node = node_of(source, loop)
    return _parts(node)[1:] if node is not None else (ast.Constant(value=None), None, [])


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS))


def _ran(source: Source, node: ast.AST) -> bool:
    """Return whether the body of a loop may have run in the traced steps."""
    body = getattr(node, "body", None)
    return source.reached(body[0]) if isinstance(body, list) else True


def _name(scope: ast.AST) -> str:
    return scope.name if isinstance(scope, _FUNCTIONS) else ""


def _loop(source: Source, node: ast.AST, function: str) -> SourceLoop:
    line, over, target, body = _parts(node)
    inside = [n for part in body for n in ast.walk(part)]
    called = {_called(n) for n in inside if isinstance(n, ast.Call)}
    named = [n.attr for n in (*inside, *ast.walk(over)) if isinstance(n, ast.Attribute)]
    needed = _needed(node, body)
    direct = _in_one_call(inside, needed)
    return SourceLoop(
        file=source.file,
        line=line,
        function=function,
        over=ast.unparse(over),
        target=ast.unparse(target) if target is not None else "",
        text=ast.get_source_segment(source.text, node) or "",
        calls=frozenset(called - {""}),
        attributes=frozenset(named),
        inner=source.loops(node),
        carried=next(iter(direct or needed), ""),
        direct=bool(direct),
        state=changes_state(source, node, body),
        squares=any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for n in inside),
        works=any(isinstance(n, ast.Call | ast.BinOp | ast.AugAssign) for n in inside),
        collects=isinstance(node, _COMPREHENSIONS) or "append" in called,
        over_modules=_calls_variable(target, inside) or _is_modules(source, over),
    )


def _calls_variable(target: ast.expr | None, inside: list[ast.AST]) -> bool:
    """layer(x), for layer in …; or layers[i](x), for i in …"""
    if target is None:
        return False
    own = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    for call in inside:
        if not isinstance(call, ast.Call):
            continue
        called = call.func.slice if isinstance(call.func, ast.Subscript) else call.func
        if isinstance(called, ast.Name) and called.id in own:
            return True
    return False


def _is_modules(source: Source, over: ast.expr) -> bool:
    """model.children(), or a name that the file gives to an nn.ModuleList or nn.Sequential."""
    for node in ast.walk(over):
        if isinstance(node, ast.Call) and _called(node) in _OF_MODULES:
            return True
    named = {_last(n) for n in ast.walk(over) if isinstance(n, ast.Name | ast.Attribute)}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _called(node.value) in _MODULE_LISTS
        and any(_last(target) in named for target in node.targets)
        for node in ast.walk(source.tree)
    )


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parts(node: ast.AST) -> tuple[int, ast.expr, ast.expr | None, list[ast.AST]]:
    """Its line, what it goes through, its variable and its body."""
    if isinstance(node, ast.For | ast.AsyncFor):
        return node.lineno, node.iter, node.target, list(node.body)
    if isinstance(node, ast.While):
        return node.lineno, node.test, None, list(node.body)
    assert isinstance(node, _COMPREHENSIONS)
    first = node.generators[0]
    body: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return first.target.lineno, first.iter, first.target, [*body, *first.ifs]


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _needed(node: ast.AST, body: list[ast.AST]) -> tuple[str, ...]:
    """Names a turn takes from the one before; attributes of the loop's variable are its own."""
    _, over, target, _ = _parts(node)
    own = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)} if target is not None else ()
    found = carried([over, *body] if isinstance(node, ast.While) else body)
    return tuple(name for name in found if name.partition(".")[0] not in own)


def _in_one_call(nodes: list[ast.AST], names: tuple[str, ...]) -> list[str]:
    """Those given to the call that they are assigned the result of."""
    found = []
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        written = {ast.unparse(n) for t in node.targets for n in ast.walk(t)}
        calls = [call for call in ast.walk(node.value) if isinstance(call, ast.Call)]
        given = [a for c in calls for a in (*c.args, *(k.value for k in c.keywords))]
        read = {ast.unparse(n) for a in given for n in ast.walk(a)}
        found += [name for name in names if name in written & read]
    return found
