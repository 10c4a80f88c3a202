"""Whether a turn of a loop needs the one before: names, attributes and objects it leaves changed.

A name that the body reads before it writes it comes from the turn before. A sum, a list or a
counter that only grows does not count: a reduction over all turns at once gives the same.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from ridgeline.source.reading.sources import Source

Kind = Literal["read", "write", "maybe", "grow", "item", "put"]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_GROWING = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitOr, ast.BitAnd)
_REDUCTIONS = frozenset({"max", "min", "maximum", "minimum", "cat", "concat", "hstack", "vstack",
                         "add", "logaddexp", "logical_or", "logical_and"})  # fmt: skip
_SETS = frozenset({"copy_", "zero_", "fill_", "normal_", "uniform_"})
_STATEFUL = frozenset({"step"})
"""Methods of objects whose class is not in the file: an environment's, a simulator's."""


class _Event(Struct, frozen=True):
    kind: Kind
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


def changes_state(source: Source, node: ast.AST, body: Iterable[ast.AST]) -> str:
    """The object, made before the loop, that a method called in the body leaves changed for the
    next turn: env in env.step(a). "" where none is known to."""
    parts = list(body)
    own = {e.name for part in parts for e in _events(part, sure=True) if e.kind == "write"}
    target = getattr(node, "target", None)  # for env in envs: each turn has one of its own
    own |= {path(n) for n in ast.walk(target)} if isinstance(target, ast.AST) else set()
    imported = _known(source).imported
    for part in parts:
        for call in ast.walk(part):
            if not isinstance(call, ast.Call):
                continue
            called = path(call.func)
            root = called.partition(".")[0]
            if called and root not in imported and root not in own and _leaves(source, node, call):
                return called.rpartition(".")[0] or called
    return ""


def _leaves(source: Source, node: ast.AST, call: ast.Call) -> bool:
    called = path(call.func)
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
    kinds = _known(source).kinds.values()
    having = [k for k in kinds if any(isinstance(f, _FUNCTIONS) and f.name == method
                                      for f in k.body)]  # fmt: skip
    if having:
        return any(_mutates(source, k, method, set()) for k in having)
    return method in _STATEFUL


def _mutates(source: Source, kind: ast.ClassDef, method: str, seen: set[str]) -> bool:
    """It makes an attribute of its object from that attribute's own value, or a method it calls on
    the object does."""
    function = next((f for f in kind.body if isinstance(f, _FUNCTIONS) and f.name == method), None)
    if function is None or method in seen or not function.args.args:
        return False
    seen.add(method)
    own = function.args.args[0].arg + "."
    if any(name.startswith(own) for name in carried(function.body)):
        return True
    calls = [path(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    return any(
        _mutates(source, kind, name.removeprefix(own), seen)
        for name in calls
        if name.startswith(own)
    )


def _class_of(source: Source, name: str) -> ast.ClassDef | None:
    """Of the file, where a name is given an object of it: env = Env(), self.cell = Cell(9)."""
    return _known(source).made.get(name)


class _Known(Struct, frozen=True):
    imported: frozenset[str]
    kinds: dict[str, ast.ClassDef]
    made: dict[str, ast.ClassDef]
    """By the name that an object of the class is given first."""


@lru_cache(maxsize=4)
def _known(source: Source) -> _Known:
    """Read once a file, not for each call in its loops."""
    nodes = list(ast.walk(source.tree))
    kinds = {n.name: n for n in nodes if isinstance(n, ast.ClassDef)}
    made: dict[str, ast.ClassDef] = {}
    for node in (n for n in nodes if isinstance(n, ast.Assign)):
        for target, value in _pairs(node):
            called = path(value.func) if isinstance(value, ast.Call) else ""
            kind = kinds.get(called.rpartition(".")[2])
            if kind is not None:
                made.setdefault(path(target), kind)
    imported = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    names = frozenset((a.asname or a.name).partition(".")[0] for a in imported)
    return _Known(names, kinds, made)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def path(node: ast.AST) -> str:
    """A name with its attributes, as written; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    before = path(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


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
    elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield from _reads(node)


def _assigned(targets: Sequence[ast.expr], value: ast.expr | None, sure: bool) -> Iterator[_Event]:
    own = path(targets[0]) if len(targets) == 1 else ""
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
            if path(side) == own:
                return [other]
            alike = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub)
            summed = alike and isinstance(value.op, ast.Add | ast.Sub)
            inner = _gathered(side, own) if summed else None
            if inner is not None:
                return [*inner, other]
    if isinstance(value, ast.Call) and path(value.func).rpartition(".")[2] in _REDUCTIONS:
        first = value.args[0] if value.args else None
        given = first.elts if isinstance(first, ast.List | ast.Tuple) else value.args
        if any(path(one) == own for one in given):
            return [one for one in given if path(one) != own]
    return None


def _grown(target: ast.expr) -> Iterator[_Event]:
    if isinstance(target, ast.Subscript):
        yield from _reads(target.slice)  # one item of its own
        yield _Event("put", path(target.value), ast.unparse(target.slice))
    else:
        yield _Event("grow", path(target))


def _writes(target: ast.expr, sure: bool) -> Iterator[_Event]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _writes(one, sure)
    elif isinstance(target, ast.Starred):
        yield from _writes(target.value, sure)
    elif isinstance(target, ast.Subscript):
        yield from _reads(target.slice)
        yield _Event("put", path(target.value), ast.unparse(target.slice))
    elif path(target):
        yield _Event("write" if sure else "maybe", path(target))


def _reads(node: ast.AST) -> Iterator[_Event]:
    """Of an expression; `self.s` reads self too."""
    name = path(node)
    if name:
        parts = name.split(".")
        yield from (_Event("read", ".".join(parts[: n + 1])) for n in range(len(parts)))
        return
    if isinstance(node, ast.Subscript) and path(node.value):
        whole = path(node.value)
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
    on, name = path(called.value), called.attr
    changes = bool(on) and name.endswith("_") and not name.endswith("__")
    if not changes or name == "lerp_":
        yield from _reads(called.value)
    for part in (*call.args, *(k.value for k in call.keywords)):
        yield from _reads(part)
    if changes and name in _SETS:
        yield _Event("write", on)
    elif changes:
        yield _Event("maybe" if name == "lerp_" else "grow", on)
