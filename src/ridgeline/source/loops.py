"""Loops in the user's source: which loop of a measured function makes the calls that were seen, and
whether a turn of a loop needs the turn before.

A name that the body reads before it writes it comes from the turn before. A sum, a list or a
counter that only grows does not count: a reduction over all turns at once gives the same.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    Function,
    SourceFile,
    SourceFiles,
    dotted_name,
    last_name,
)

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


def loops_at(sources: SourceFiles, place: Place | None) -> tuple[SourceLoop, ...]:
    """Loops of the function a place names, the innermost first."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return ()
    scope = source.scope(place.line)
    nodes = [node for node in source.walk(scope) if _is_loop(node) and _ran(source, node)]
    found = [_loop(source, node, _function_name(scope)) for node in nodes]
    return tuple(sorted(found, key=lambda loop: (-loop.inner, loop.line)))


def loops_calling(sources: SourceFiles, place: Place | None) -> tuple[SourceLoop, ...]:
    """Loops of the same file that call the function a place names: by its name, or, of a module's
    forward, by the names that modules of its class are given."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None or not place.function.isidentifier():
        return ()
    names = _module_names(source, place) if place.function == "forward" else {place.function}
    found = []
    for scope in ast.walk(source.module):
        if isinstance(scope, (*_FUNCTIONS, ast.Module)):
            loops = (n for n in source.walk(scope) if _is_loop(n))
            found += [_loop(source, node, _function_name(scope)) for node in loops]
    return tuple(loop for loop in found if names & loop.calls)


def _module_names(source: SourceFile, place: Place) -> set[str]:
    """cell, of self.cell = Cell(64), where the place is in Cell.forward."""
    around = source.parents(source.scope(place.line))
    kind = next((p.name for p in around if isinstance(p, ast.ClassDef)), "")
    made = [
        node.targets
        for node in ast.walk(source.module)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value) == kind
    ]
    names = [t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "")
             for targets in made for t in targets]  # fmt: skip
    return {name for name in names if name}


def function_around(source: SourceFile, line: int) -> str:
    return _function_name(source.scope(line))


def node_of(source: SourceFile, loop: SourceLoop) -> ast.AST | None:
    for node in ast.walk(source.module):
        if _is_loop(node):
            line, over, _, _ = _parts(node)
            if line == loop.line and ast.unparse(over) == loop.over:
                return node
    return None


def parts_of(
    source: SourceFile, loop: SourceLoop
) -> tuple[ast.expr, ast.expr | None, list[ast.AST]]:
    """What a loop goes through, its variable and its body."""
    node = node_of(source, loop)
    return _parts(node)[1:] if node is not None else (ast.Constant(value=None), None, [])


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS))


def _ran(source: SourceFile, node: ast.AST) -> bool:
    """Return whether the body of a loop may have run in the traced steps."""
    body = getattr(node, "body", None)
    return source.reached(body[0]) if isinstance(body, list) else True


def _function_name(scope: ast.AST) -> str:
    return scope.name if isinstance(scope, _FUNCTIONS) else ""


def _loop(source: SourceFile, node: ast.AST, function: str) -> SourceLoop:
    line, over, target, body = _parts(node)
    inside = [n for part in body for n in ast.walk(part)]
    called = {last_name(n) for n in inside if isinstance(n, ast.Call)}
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


def _is_modules(source: SourceFile, over: ast.expr) -> bool:
    """model.children(), or a name that the file gives to an nn.ModuleList or nn.Sequential."""
    for node in ast.walk(over):
        if isinstance(node, ast.Call) and last_name(node) in _OF_MODULES:
            return True
    named = {last_name(n) for n in ast.walk(over) if isinstance(n, ast.Name | ast.Attribute)}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value) in _MODULE_LISTS
        and any(last_name(target) in named for target in node.targets)
        for node in ast.walk(source.module)
    )


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


_EventKind = Literal["read", "write", "maybe", "grow", "item", "put"]
_GROWING = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitOr, ast.BitAnd)
_REDUCTIONS = frozenset({"max", "min", "maximum", "minimum", "cat", "concat", "hstack", "vstack",
                         "add", "logaddexp", "logical_or", "logical_and"})  # fmt: skip
_SETS = frozenset({"copy_", "zero_", "fill_", "normal_", "uniform_"})
_STATEFUL = frozenset({"step"})
"""Methods of objects whose class is not in the file: an environment's, a simulator's."""


class _Event(Struct, frozen=True):
    kind: _EventKind
    """Read; written for sure or under a condition; made larger; one item read or written."""
    name: str
    """With its attributes: h, self.s."""
    index: str = ""


def carried(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Names, with their attributes, that a turn takes from the one before, in their order."""
    events = [e for part in body for e in _events(part, sure=True)]
    changed = {e.name for e in events if e.kind in ("write", "maybe")}
    grown = {e.name for e in events if e.kind == "grow"}
    put: dict[str, set[str]] = {}
    for event in events:
        if event.kind == "put":
            put.setdefault(event.name, set()).add(event.index)
    found: dict[str, None] = {}
    written: set[str] = set()
    for event in events:
        name = event.name
        if event.kind == "write":
            written.add(name)
        if event.kind not in ("read", "item") or name in written:
            continue
        other = event.kind == "read" or event.index not in put.get(name, ())
        if name in changed or name in grown or (name in put and other):
            found[name] = None
    return tuple(found)


def changes_state(source: SourceFile, node: ast.AST, body: Iterable[ast.AST]) -> str:
    """The object, made before the loop, that a method called in the body leaves changed for the
    next turn: env in env.step(a). "" where none is known to."""
    parts = list(body)
    own = {e.name for part in parts for e in _events(part, sure=True) if e.kind == "write"}
    target = getattr(node, "target", None)  # for env in envs: each turn has one of its own
    own |= {dotted_name(n) for n in ast.walk(target)} if isinstance(target, ast.AST) else set()
    imported = _definitions(source).imported
    for part in parts:
        for call in ast.walk(part):
            if not isinstance(call, ast.Call):
                continue
            called = dotted_name(call.func)
            root = called.partition(".")[0]
            if called and root not in imported and root not in own and _leaves(source, node, call):
                return called.rpartition(".")[0] or called
    return ""


def _leaves(source: SourceFile, node: ast.AST, call: ast.Call) -> bool:
    called = dotted_name(call.func)
    on, _, method = called.rpartition(".")
    made = _class_of(source, called)
    if made is not None:  # the object itself is called
        return any(_mutates(source, made, name, set()) for name in ("forward", "__call__"))
    if not on:
        return False
    if on == "self":
        kind = next((p for p in source.parents(node) if isinstance(p, ast.ClassDef)), None)
    else:
        kind = _class_of(source, on)
    if kind is not None:
        return _mutates(source, kind, method, set())
    kinds = _definitions(source).kinds.values()
    having = [k for k in kinds if any(isinstance(f, Function) and f.name == method
                                      for f in k.body)]  # fmt: skip
    if having:
        return any(_mutates(source, k, method, set()) for k in having)
    return method in _STATEFUL


def _mutates(source: SourceFile, kind: ast.ClassDef, method: str, seen: set[str]) -> bool:
    """It makes an attribute of its object from that attribute's own value, or a method it calls on
    the object does."""
    function = next((f for f in kind.body if isinstance(f, Function) and f.name == method), None)
    if function is None or method in seen or not function.args.args:
        return False
    seen.add(method)
    own = function.args.args[0].arg + "."
    if any(name.startswith(own) for name in carried(function.body)):
        return True
    calls = [dotted_name(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    return any(
        _mutates(source, kind, name.removeprefix(own), seen)
        for name in calls
        if name.startswith(own)
    )


def _class_of(source: SourceFile, name: str) -> ast.ClassDef | None:
    """Of the file, where a name is given an object of it: env = Env(), self.cell = Cell(9)."""
    return _definitions(source).made.get(name)


class _Definitions(Struct, frozen=True):
    imported: frozenset[str]
    kinds: dict[str, ast.ClassDef]
    made: dict[str, ast.ClassDef]
    """By the name that an object of the class is given first."""


@lru_cache(maxsize=4)
def _definitions(source: SourceFile) -> _Definitions:
    """Read once a file, not for each call in its loops."""
    nodes = list(ast.walk(source.module))
    kinds = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
    made: dict[str, ast.ClassDef] = {}
    for node in (n for n in nodes if isinstance(n, ast.Assign)):
        for target, value in _pairs(node):
            called = dotted_name(value.func) if isinstance(value, ast.Call) else ""
            kind = kinds.get(called.rpartition(".")[2])
            if kind is not None:
                made.setdefault(dotted_name(target), kind)
    imported = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    names = frozenset((a.asname or a.name).partition(".")[0] for a in imported)
    return _Definitions(names, kinds, made)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _events(node: ast.AST, *, sure: bool) -> Iterator[_Event]:
    """In the order in which Python does them."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
        yield from _assigned(targets, node.value, sure)
    elif isinstance(node, ast.AugAssign):
        yield from _reads(node.value)
        if not isinstance(node.value, ast.Constant):  # else a counter
            yield from _grown(node.target)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _reads(node.iter)
        yield from _writes(node.target, sure)
        for part in (*node.body, *node.orelse):
            yield from _events(part, sure=sure)
    elif isinstance(node, ast.If | ast.While | ast.Try):
        yield from _reads(node.test) if not isinstance(node, ast.Try) else ()
        handlers = [s for h in node.handlers for s in h.body] if isinstance(node, ast.Try) else []
        for part in (*node.body, *handlers, *node.orelse):
            yield from _events(part, sure=False)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield from _reads(item.context_expr)
        for part in node.body:
            yield from _events(part, sure=sure)
    elif not isinstance(node, Function | ast.ClassDef):
        yield from _reads(node)


def _assigned(targets: Sequence[ast.expr], value: ast.expr | None, sure: bool) -> Iterator[_Event]:
    own = dotted_name(targets[0]) if len(targets) == 1 else ""
    parts = _gathered(value, own) if own and value is not None else None
    if parts is not None:
        for part in parts:
            yield from _reads(part)
        yield _Event("grow", own)
        return
    if value is not None:
        yield from _reads(value)
    for target in targets:
        yield from _writes(target, sure)


def _gathered(value: ast.expr, own: str) -> list[ast.expr] | None:
    """What a name is made larger by: of total + x, max(total, x) or cat([total, x])."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _GROWING):
        sides = [value.left, value.right]
        for side, other in (sides, sides[::-1]):
            if dotted_name(side) == own:
                return [other]
            alike = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub)
            summed = alike and isinstance(value.op, ast.Add | ast.Sub)
            inner = _gathered(side, own) if summed else None
            if inner is not None:
                return [*inner, other]
    if isinstance(value, ast.Call) and dotted_name(value.func).rpartition(".")[2] in _REDUCTIONS:
        first = value.args[0] if value.args else None
        given = first.elts if isinstance(first, ast.List | ast.Tuple) else value.args
        if any(dotted_name(one) == own for one in given):
            return [one for one in given if dotted_name(one) != own]
    return None


def _grown(target: ast.expr) -> Iterator[_Event]:
    if isinstance(target, ast.Subscript):
        yield from _reads(target.slice)  # one item of its own
        yield _Event("put", dotted_name(target.value), ast.unparse(target.slice))
    else:
        yield _Event("grow", dotted_name(target))


def _writes(target: ast.expr, sure: bool) -> Iterator[_Event]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _writes(one, sure)
    elif isinstance(target, ast.Starred):
        yield from _writes(target.value, sure)
    elif isinstance(target, ast.Subscript):
        yield from _reads(target.slice)
        yield _Event("put", dotted_name(target.value), ast.unparse(target.slice))
    elif dotted_name(target):
        yield _Event("write" if sure else "maybe", dotted_name(target))


def _reads(node: ast.AST) -> Iterator[_Event]:
    """Of an expression; `self.s` reads self too."""
    name = dotted_name(node)
    if name:
        parts = name.split(".")
        yield from (_Event("read", ".".join(parts[: n + 1])) for n in range(len(parts)))
        return
    if isinstance(node, ast.Subscript) and dotted_name(node.value):
        whole = dotted_name(node.value)
        before = whole.rpartition(".")[0]
        if before:
            yield from _reads(node.value.value if isinstance(node.value, ast.Attribute) else node)
        yield _Event("item", whole, ast.unparse(node.slice))
        yield from _reads(node.slice)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _method(node, node.func)
        return
    for child in ast.iter_child_nodes(node):
        yield from _reads(child)


def _method(call: ast.Call, called: ast.Attribute) -> Iterator[_Event]:
    """x.sum() reads x; x.add_(y) makes it larger, x.copy_(y) another."""
    on, name = dotted_name(called.value), called.attr
    changes = bool(on) and name.endswith("_") and not name.endswith("__")
    if not changes or name == "lerp_":
        yield from _reads(called.value)
    for part in (*call.args, *(k.value for k in call.keywords)):
        yield from _reads(part)
    if changes and name in _SETS:
        yield _Event("write", on)
    elif changes:
        yield _Event("maybe" if name == "lerp_" else "grow", on)


class BlockLoop(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    function: str
    block: str
    """The loop's name for a block."""
    target: str
    """What the result is assigned to, as written."""
    arguments: str
    """As written."""


def block_loops(source: SourceFile) -> tuple[BlockLoop, ...]:
    """`for block in self.blocks: x = block(x)`: loops of a method that call what they run over."""
    found = []
    for function in ast.walk(source.module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for loop in source.walk(function):
            if isinstance(loop, ast.For):
                names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
                found += _block_calls(source, function.name, loop, names)
    return tuple(found)


def _block_calls(
    source: SourceFile, function: str, loop: ast.For, names: set[str]
) -> list[BlockLoop]:
    found = []
    for node in ast.walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        called = node.value.func
        if isinstance(called, ast.Name) and called.id in names and node.value.args:
            arguments = [ast.unparse(argument) for argument in node.value.args]
            arguments += [ast.unparse(keyword) for keyword in node.value.keywords]
            found.append(
                BlockLoop(
                    file=source.file, line=node.lineno, function=function, block=called.id,
                    target=ast.unparse(node.targets[0]), arguments=", ".join(arguments),
                )
            )  # fmt: skip
    return found
