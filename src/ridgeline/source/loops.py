"""Loops in the user's source: which loop of a measured function makes the calls that were seen, and
whether a turn of a loop needs the turn before.

A name that the body reads before it writes it comes from the turn before. A sum, a list or a
counter that only grows does not count: a reduction over all turns at once gives the same.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    Comprehension,
    Function,
    Loop,
    SourceFile,
    SourceFiles,
    calls_in,
    dotted_name,
    last_name,
    names_in,
    targets_of,
)

_MODULE_LISTS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_METHODS_OF_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_GROWING = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitOr, ast.BitAnd)
_REDUCTIONS = frozenset({"max", "min", "maximum", "minimum", "cat", "concat", "hstack", "vstack",
                         "add", "logaddexp", "logical_or", "logical_and"})  # fmt: skip
_OVERWRITING = frozenset({"copy_", "zero_", "fill_", "normal_", "uniform_"})
_CHANGING_METHODS = frozenset({"step"})
"""Methods that change an object whose class is not in the file: an environment, a simulator."""


class LoopParts(NamedTuple):
    line: int
    over: ast.expr
    """What the loop goes through; the condition of a `while`."""
    target: ast.expr | None
    """The loop's variable."""
    body: list[ast.AST]


class SourceLoop(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    """The line of its `for` or `while`."""
    parts: LoopParts
    node: ast.AST
    function: str = ""
    """The function that the loop stands in."""
    over: str = ""
    """What the loop goes through, as written; the condition of a `while`."""
    target: str = ""
    text: str = ""
    """The whole loop as written."""
    calls: frozenset[str] = frozenset()
    """The last parts of what its body calls: item, mul_, append."""
    attributes: frozenset[str] = frozenset()
    """Attributes that its body and its head name: grad, data."""
    inner: int = 0
    """The number of loops around it in its function."""
    carried: str = ""
    """A name that each turn takes from the turn before: h in h = cell(x, h)."""
    direct: bool = False
    """Whether `carried` is an argument of the very call that gives it its next value."""
    state: str = ""
    """An object that each turn leaves changed for the next: env in env.step(a)."""
    squares: bool = False
    """Whether its body raises something to a power."""
    works: bool = False
    """Whether its body calls or computes something."""
    collects: bool = False
    """Whether it gathers a result of each turn: a comprehension, or append."""
    over_modules: bool = False
    """Whether it goes through a model's layers, each with weights of its own: it calls its own
    variable, or what it goes through is a list of modules."""

    @property
    def trains(self) -> bool:
        """Whether it is the loop over steps itself."""
        return bool(self.calls & {"backward", "zero_grad"})


class BlockLoop(Struct, frozen=True, kw_only=True):
    """The line at which a model calls its repeated blocks one after the other: the line to
    checkpoint."""

    file: str
    line: int
    function: str
    block: str
    """The loop's name for a block."""
    target: str
    """What the result is assigned to, as written."""
    arguments: str
    """The arguments of the call, as written."""


def loops_at(sources: SourceFiles, place: Place | None) -> tuple[SourceLoop, ...]:
    """Return the loops of the function around a place, the innermost first, without those whose
    body is known not to have run in the traced steps."""
    loops = []
    for source, node in sources.around(place):
        if isinstance(node, Loop | Comprehension) and place is not None:
            body = getattr(node, "body", None)
            if not isinstance(body, list) or source.reached(body[0]):
                loops.append(_source_loop(source, node, source.function_name(place.line)))
    return tuple(sorted(loops, key=lambda loop: (-loop.inner, loop.line)))


def loops_calling(sources: SourceFiles, place: Place | None) -> tuple[SourceLoop, ...]:
    """Return the loops of the same file that call the function of a place: by its name, or, for the
    forward of a module, by the names that modules of its class are assigned to."""
    source = sources.get(place.file) if place is not None else None
    if source is None or place is None or not place.function.isidentifier():
        return ()
    names = _module_names(source, place) if place.function == "forward" else {place.function}
    loops = []
    for scope in (source.module, *source.functions):
        name = scope.name if isinstance(scope, Function) else ""
        nodes = (n for n in source.walk(scope) if isinstance(n, Loop | Comprehension))
        loops += [_source_loop(source, node, name) for node in nodes]
    return tuple(loop for loop in loops if names & loop.calls)


def block_loops(source: SourceFile) -> tuple[BlockLoop, ...]:
    """Return the calls in loops that call what they run over, as in `for block in self.blocks:
    x = block(x)`."""
    return tuple(
        BlockLoop(
            file=source.file, line=node.lineno, function=function.name, block=last_name(node.value),
            target=ast.unparse(node.targets[0]),
            arguments=", ".join(map(ast.unparse, (*node.value.args, *node.value.keywords))),
        )
        for function in source.functions
        for loop in source.walk(function) if isinstance(loop, ast.For)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        and dotted_name(node.value.func) in names_in(loop.target)
    )  # fmt: skip


def loop_parts(node: Loop | Comprehension) -> LoopParts:
    if isinstance(node, ast.While):
        return LoopParts(node.lineno, node.test, None, list(node.body))
    if isinstance(node, ast.For | ast.AsyncFor):
        return LoopParts(node.lineno, node.iter, node.target, list(node.body))
    first = node.generators[0]
    body: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return LoopParts(first.target.lineno, first.iter, first.target, [*body, *first.ifs])


def _module_names(source: SourceFile, place: Place) -> set[str]:
    """Return the names that objects of a class are assigned to: `cell` of `self.cell = Cell(64)`,
    where the place is in Cell.forward."""
    kind = source.class_of(source.scope(place.line))
    return {
        last_name(target)
        for node in source.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        and kind is not None and last_name(node.value) == kind.name
        for target in node.targets
    } - {""}  # fmt: skip


def _source_loop(source: SourceFile, node: Loop | Comprehension, function: str) -> SourceLoop:
    parts = loop_parts(node)
    inside = [n for part in parts.body for n in ast.walk(part)]
    called = {last_name(n) for n in inside if isinstance(n, ast.Call)}
    # attributes of the loop's own variable are new in each turn
    own = names_in(parts.target) if parts.target is not None else set()
    body = [parts.over, *parts.body] if isinstance(node, ast.While) else parts.body
    needed = [name for name in carried(body) if name.partition(".")[0] not in own]
    direct = _in_one_call(inside, needed)
    return SourceLoop(
        file=source.file,
        line=parts.line,
        parts=parts,
        node=node,
        function=function,
        over=ast.unparse(parts.over),
        target=ast.unparse(parts.target) if parts.target is not None else "",
        text=ast.get_source_segment(source.text, node) or "",
        calls=frozenset(called - {""}),
        attributes=frozenset(
            n.attr for n in (*inside, *ast.walk(parts.over)) if isinstance(n, ast.Attribute)
        ),
        inner=source.loops(node),
        carried=next(iter(direct or needed), ""),
        direct=bool(direct),
        state=changes_state(source, node, parts.body),
        squares=any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for n in inside),
        works=any(isinstance(n, ast.Call | ast.BinOp | ast.AugAssign) for n in inside),
        collects=isinstance(node, Comprehension) or "append" in called,
        over_modules=_calls_variable(own, inside) or _is_modules(source, parts.over),
    )


def _calls_variable(own: set[str], inside: list[ast.AST]) -> bool:
    """Return whether a loop calls its variable: layer(x), or layers[i](x)."""
    funcs = [call.func for call in inside if isinstance(call, ast.Call)]
    called = [func.slice if isinstance(func, ast.Subscript) else func for func in funcs]
    return any(isinstance(one, ast.Name) and one.id in own for one in called)


def _is_modules(source: SourceFile, over: ast.expr) -> bool:
    """Return whether a loop goes through modules: model.children(), or a name that the file assigns
    an nn.ModuleList or nn.Sequential."""
    if any(last_name(call) in _METHODS_OF_MODULES for call in calls_in(over)):
        return True
    named = {last_name(n) for n in ast.walk(over) if isinstance(n, ast.Name | ast.Attribute)}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value) in _MODULE_LISTS
        and any(last_name(target) in named for target in node.targets)
        for node in source.nodes
    )


def _in_one_call(nodes: list[ast.AST], names: Sequence[str]) -> list[str]:
    """Return the names that are given to the call whose result they are assigned."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            written = {ast.unparse(n) for t in node.targets for n in ast.walk(t)}
            given = [a for c in calls_in(node.value)
                     for a in (*c.args, *(k.value for k in c.keywords))]  # fmt: skip
            read = {ast.unparse(n) for a in given for n in ast.walk(a)}
            found += [name for name in names if name in written & read]
    return found


class _Event(Struct, frozen=True):
    """Says what one part of a loop's body does with a name."""

    kind: Literal["read", "write", "maybe", "grow", "item", "put"]
    """`maybe` is a write under a condition, `grow` makes larger, `item` reads one item, `put`
    writes one."""
    name: str
    """The name with its attributes: h, self.s."""
    index: str = ""


def carried(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the names, with their attributes, that a turn takes from the one before, in the order
    of the source."""
    events = [e for part in body for e in _events(part, sure=True)]
    changed = {e.name for e in events if e.kind in ("write", "maybe", "grow")}
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
        if name in changed or (name in put and other):
            found[name] = None
    return tuple(found)


def changes_state(source: SourceFile, node: ast.AST, body: Iterable[ast.AST]) -> str:
    """Return the object, made before the loop, that a method called in the body leaves changed for
    the next turn: `env` in env.step(a); "" if no such object is known."""
    parts = list(body)
    own = {e.name for part in parts for e in _events(part, sure=True) if e.kind == "write"}
    target = getattr(node, "target", None)  # for env in envs: each turn has one of its own
    own |= {dotted_name(n) for n in ast.walk(target)} if isinstance(target, ast.AST) else set()
    not_state = own | _definitions(source).imported
    for call in (call for part in parts for call in calls_in(part)):
        called = dotted_name(call.func)
        if called and called.partition(".")[0] not in not_state and _leaves(source, node, called):
            return called.rpartition(".")[0] or called
    return ""


def _leaves(source: SourceFile, node: ast.AST, called: str) -> bool:
    """Return whether a call of that name leaves its object changed."""
    definitions = _definitions(source)
    owner, _, method = called.rpartition(".")
    made = definitions.made.get(called)
    if made is not None:  # the object itself is called
        return any(_mutates(made, name, set()) for name in ("forward", "__call__"))
    if not owner:
        return False
    kind = source.class_of(node) if owner == "self" else definitions.made.get(owner)
    if kind is not None:
        return _mutates(kind, method, set())
    kinds = [k for k in definitions.classes.values() if _method_of(k, method) is not None]
    if kinds:
        return any(_mutates(k, method, set()) for k in kinds)
    return method in _CHANGING_METHODS


def _method_of(kind: ast.ClassDef, name: str) -> Function | None:
    return next((f for f in kind.body if isinstance(f, Function) and f.name == name), None)


def _mutates(kind: ast.ClassDef, method: str, seen: set[str]) -> bool:
    """Return whether a method makes an attribute of its object from that attribute's own value, or
    calls a method of the object that does."""
    function = _method_of(kind, method)
    if function is None or method in seen or not function.args.args:
        return False
    seen.add(method)
    own = function.args.args[0].arg + "."
    if any(name.startswith(own) for name in carried(function.body)):
        return True
    calls = [dotted_name(call.func) for call in calls_in(function)]
    return any(_mutates(kind, c.removeprefix(own), seen) for c in calls if c.startswith(own))


class _Definitions(NamedTuple):
    imported: frozenset[str]
    classes: dict[str, ast.ClassDef]
    made: dict[str, ast.ClassDef]
    """The class of the object that a name is assigned first."""


@lru_cache(maxsize=4)
def _definitions(source: SourceFile) -> _Definitions:
    classes = {n.name: n for n in source.nodes if isinstance(n, ast.ClassDef)}
    made: dict[str, ast.ClassDef] = {}
    for node in (n for n in source.nodes if isinstance(n, ast.Assign)):
        for target, value in _pairs(node):
            kind = classes.get(last_name(value)) if isinstance(value, ast.Call) else None
            if kind is not None:
                made.setdefault(dotted_name(target), kind)
    imported = frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    return _Definitions(imported, classes, made)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _events(node: ast.AST, *, sure: bool) -> Iterator[_Event]:
    """Yield what a statement does with names, in the order in which Python does it."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        yield from _assigned(targets_of(node), node.value, sure)
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
    """Return what a name is made larger by: `x` of total + x, max(total, x) or cat([total, x]);
    None for any other value."""
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
    if isinstance(value, ast.Call) and last_name(value) in _REDUCTIONS:
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
    """Yield what an expression reads; `self.s` reads self too."""
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
        yield from _method_call(node, node.func)
        return
    for child in ast.iter_child_nodes(node):
        yield from _reads(child)


def _method_call(call: ast.Call, called: ast.Attribute) -> Iterator[_Event]:
    """x.sum() reads x; x.add_(y) makes x larger; x.copy_(y) overwrites it."""
    on, name = dotted_name(called.value), called.attr
    changes = bool(on) and name.endswith("_") and not name.endswith("__")
    if not changes or name == "lerp_":
        yield from _reads(called.value)
    for part in (*call.args, *(k.value for k in call.keywords)):
        yield from _reads(part)
    if changes and name in _OVERWRITING:
        yield _Event("write", on)
    elif changes:
        yield _Event("maybe" if name == "lerp_" else "grow", on)
