"""What may make training pause, in the user's source: a checkpoint, an evaluation, a figure drawn.

Only calls inside the training loop, or in a function that is called inside it, can pause it again
and again: a loop that writes files before training pauses nothing. Functions are followed by name
through the files that the known ones import.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnose.source.calls import SourceCall, all_calls
from ridgeline.diagnose.source.sources import Source, Sources

Pause = Literal["checkpoint", "evaluation", "figure", "collection", "sleep"]

_CALLS: dict[str, Pause] = {
    "save": "checkpoint",
    "save_pretrained": "checkpoint",
    "save_checkpoint": "checkpoint",
    "save_state": "checkpoint",
    "save_file": "checkpoint",
    "savez": "checkpoint",
    "dump": "checkpoint",
    "savefig": "figure",
    "add_histogram": "figure",
    "add_figure": "figure",
    "collect": "collection",
    "empty_cache": "collection",
    "sleep": "sleep",
}
_ON: dict[str, tuple[str, ...]] = {
    "save": ("torch", "np", "numpy", "dcp", "xm", "safetensors", "checkpoint"),
    "dump": ("pickle", "json", "joblib", "torch"),
    "collect": ("gc",),
    "sleep": ("time",),
}
"""Of these names only calls on these: `image.save` in a dataset is no checkpoint."""
_SLOW = (
    "tolist", "cpu", "dumps", "write", "writelines", "savetxt", "to_csv", "deepcopy", "compress",
)  # fmt: skip
"""Calls that alone are no sign of a pause, but beside one may be most of it: `.tolist()` makes a
Python number of every value, and took most of a checkpoint that ends with `torch.save`."""
_EVALUATES = ("evaluat", "validat", "eval_", "val_", "test_epoch")
_UPDATES = ("optim", "opt", "scaler", "sgd", "adam")
_MODELS = ("model", "net", "network", "module")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
DEEP = 4
"""Calls from the loop to the pause: as deep as such helpers go."""
MOST_FILES = 60
_LIBRARIES = ("site-packages", "dist-packages")


class PauseCall(Struct, frozen=True, kw_only=True):
    kind: Pause
    call: SourceCall
    beside: tuple[SourceCall, ...] = ()
    """Others that are made together with it, any of which may take the time; by line."""
    around: SourceCall | None = None
    """The call in the training loop of the function it stands in; None: it is in the loop itself,
    or the way there is not known."""


class _Call(Struct, frozen=True):
    source: Source
    node: ast.Call
    name: str
    around: str
    """The function it stands in; "" for the module."""


def pause_calls(sources: Sources, files: Iterable[str]) -> tuple[PauseCall, ...]:
    """Checkpoints first, as they are the surest; those in the training loop's file before."""
    known = _with_imports(sources, files)
    calls = [call for source in known for call in _all(source)]
    training = _training(calls)
    if not training:
        return ()
    reached = _reached(calls, training)
    evaluating = {n for n in reached if n.lower().startswith(_EVALUATES)} | _to_eval(calls)
    found = [
        one
        for source in known
        for one in _repeated(source, evaluating, _lines(source, training, reached))
    ]
    order: tuple[Pause, ...] = ("checkpoint", "evaluation", "figure", "sleep", "collection")
    once: dict[tuple[str, int], PauseCall] = {}
    for one in found:
        once.setdefault((one.call.text, one.call.line), one)
    ranked = sorted(once.values(), key=lambda one: order.index(one.kind))
    return tuple(_placed(one, calls, training) for one in ranked)


def _placed(one: PauseCall, calls: Sequence[_Call], training: set[ast.AST]) -> PauseCall:
    """With what is done beside it, and where the loop calls its function."""
    own = next((c for c in calls if _is(c, one.call)), None)
    if own is None or one.kind == "evaluation":
        return one
    beside = [
        made
        for made in all_calls(own.source, (*_CALLS, *_SLOW))
        if _pauses(made) and any(_is(c, made) and _together(own, c, training) for c in calls)
    ]
    beside.sort(key=lambda call: call.line)
    return replace(one, beside=tuple(beside), around=_way(own, calls, training))


def _is(call: _Call, made: SourceCall) -> bool:
    line = call.node.func.end_lineno or call.node.lineno
    return (call.source.file, line, call.name) == (made.file, made.line, made.name)


def _pauses(made: SourceCall) -> bool:
    roots = _ON.get(made.name)
    return roots is None or made.on.split(".")[0] in roots


def _together(own: _Call, other: _Call, training: set[ast.AST]) -> bool:
    """In the same helper; of calls in the training loop itself, in the same branch of it."""
    if own.node is other.node or other.node in ast.walk(own.node):
        return False  # a part of the call
    if own.source is not other.source or own.around != other.around:
        return False
    mine, its = (training.intersection(_loops(call)) for call in (own, other))
    return mine == its and (not mine or _branch(own) is _branch(other))


def _branch(call: _Call) -> ast.AST | None:
    """What decides whether it is made."""
    nodes = call.source.parents(call.node)
    return next((node for node in nodes if isinstance(node, (ast.If, *_LOOPS))), None)


def _way(own: _Call, calls: Sequence[_Call], training: set[ast.AST]) -> SourceCall | None:
    """From its function up to the training loop."""
    if not training.isdisjoint(_loops(own)):
        return None
    names = {own.around} - {""}
    for _ in range(DEEP):
        callers = [call for call in calls if call.name in names]
        looped = next((c for c in callers if not training.isdisjoint(_loops(c))), None)
        if looped is not None:
            made = all_calls(looped.source, (looped.name,))
            return next((call for call in made if _is(looped, call)), None)
        names = {call.around for call in callers} - {""}
    return None


def _repeated(source: Source, evaluating: set[str], lines: set[int]) -> Iterator[PauseCall]:
    for call in all_calls(source, tuple(_CALLS)):
        if _pauses(call) and call.line in lines:
            yield PauseCall(kind=_CALLS[call.name], call=call)
    named = [c for c in all_calls(source, tuple(evaluating)) if c.line in lines]
    # by its name, else by what it does, else the line that turns the model over
    named.sort(key=lambda c: (not c.name.lower().startswith(_EVALUATES), c.name == "eval", c.line))
    yield from (PauseCall(kind="evaluation", call=c) for c in named if c.name != "eval" or c.on)


def _lines(source: Source, training: set[ast.AST], reached: set[str]) -> set[int]:
    """Of calls that the training loop comes to again and again."""
    found = [
        call.node.func.end_lineno or call.node.lineno
        for call in _all(source)
        if call.around in reached or not training.isdisjoint(_loops(call))
    ]
    return set(found)


def _to_eval(calls: Sequence[_Call]) -> set[str]:
    """Functions that turn a model to evaluation, without training it; and `eval` itself."""
    trains = {c.around for c in calls if _trains(c)}
    return ({c.around for c in calls if c.name == "eval"} - trains - {""}) | {"eval"}


def _all(source: Source) -> Iterator[_Call]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield _Call(source, node, _name(node), _function_around(source, node))


def _training(calls: Sequence[_Call]) -> set[ast.AST]:
    """Loops around a backward or an update, in them or in a function they call; where there is
    none, around the model's call."""
    for mark in (_trains, _infers):
        marked = {call.around for call in calls if mark(call)} - {""}
        for _ in range(DEEP):
            marked |= {call.around for call in calls if call.name in marked} - {""}
        found = {
            loop for call in calls if mark(call) or call.name in marked for loop in _loops(call)
        }
        if found:
            return found
    return set()


def _reached(calls: Sequence[_Call], training: set[ast.AST]) -> set[str]:
    """Names that the training loop calls, or a function so called in turn."""
    found = {call.name for call in calls if not training.isdisjoint(_loops(call))}
    for _ in range(DEEP):
        found |= {call.name for call in calls if call.around in found}
    return found - {""}


def _loops(call: _Call) -> list[ast.AST]:
    """Of its own function, around it."""
    found: list[ast.AST] = []
    for node in call.source.parents(call.node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(node, _LOOPS):
            found.append(node)
    return found


def _trains(call: _Call) -> bool:
    if call.name == "backward":
        return isinstance(call.node.func, ast.Attribute)
    if call.name != "step" or not isinstance(call.node.func, ast.Attribute):
        return False
    return any(word in ast.unparse(call.node.func.value).lower() for word in _UPDATES)


def _infers(call: _Call) -> bool:
    return call.name.lower() in _MODELS


def _with_imports(sources: Sources, files: Iterable[str]) -> tuple[Source, ...]:
    """The files, and those of the user's own that they import: found beside them, each once."""
    waiting = list(files)
    seen: set[str] = set()
    found: dict[str, Source] = {}
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        source = sources.get(file)
        if source is not None and source.text not in found:
            found[source.text] = source
            if not any(part in source.file for part in _LIBRARIES):
                waiting += _imported(source)
    return tuple(found.values())


def _imported(source: Source) -> Iterator[str]:
    folder = PurePath(source.file).parent
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = folder
            for _ in range(max(node.level - 1, 0)):
                base = base.parent
            if node.module:
                yield from _files(base, node.module)
            for alias in node.names:  # from . import checkpoints
                yield from _files(base, ".".join([*filter(None, [node.module]), alias.name]))


def _files(folder: PurePath, module: str) -> tuple[str, ...]:
    path = folder.joinpath(*module.split("."))
    return (f"{path}.py", str(path / "__init__.py"))


def _function_around(source: Source, node: ast.AST) -> str:
    for at in source.parents(node):
        if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
            return at.name
    return ""


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
