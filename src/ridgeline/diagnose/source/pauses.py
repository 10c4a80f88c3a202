"""What may make training pause, in the user's source: a checkpoint, an evaluation, a figure drawn.

Only calls inside a loop, or in a function that is called inside one, can pause it again and again.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

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
_EVALUATES = ("evaluat", "validat", "eval_", "val_", "test_epoch")


class PauseCall(Struct, frozen=True, kw_only=True):
    kind: Pause
    call: SourceCall


def pause_calls(sources: Sources, files: Iterable[str]) -> tuple[PauseCall, ...]:
    """Checkpoints first, as they are the surest; those in the training loop's file before."""
    found: list[PauseCall] = []
    for file in files:
        source = sources.get(file)
        if source is not None:
            found += _repeated(source)
    order: tuple[Pause, ...] = ("checkpoint", "evaluation", "figure", "sleep", "collection")
    once = {(one.call.text, one.call.line): one for one in found}
    return tuple(sorted(once.values(), key=lambda one: order.index(one.kind)))


def _repeated(source: Source) -> Iterator[PauseCall]:
    looped = _called_in_loops(source)
    for call in all_calls(source, tuple(_CALLS)):
        roots = _ON.get(call.name)
        if roots is not None and call.on.split(".")[0] not in roots:
            continue
        if call.loops or _function_around(source, call.line) in looped:
            yield PauseCall(kind=_CALLS[call.name], call=call)
    for call in all_calls(source, tuple(looped)):
        if call.loops and call.name.lower().startswith(_EVALUATES):
            yield PauseCall(kind="evaluation", call=call)


def _called_in_loops(source: Source) -> set[str]:
    """Names of functions that a loop of this file calls, or that such a function calls in turn."""
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    named = [(node, _name(node)) for node in calls]
    found = {name for node, name in named if source.loops(node)}
    for _ in range(3):  # as deep as such helpers go
        found |= {name for node, name in named if _function_around(source, node.lineno) in found}
    return found


def _function_around(source: Source, line: int) -> str:
    return getattr(source.scope(line), "name", "")


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
