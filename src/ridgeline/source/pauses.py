"""What kind of work a line does during a pause of training: a checkpoint, a figure, a sleep.

The source says what a line does, but not that it ran. Which lines ran is known from samples of the
running program.
"""

import ast
from typing import Literal

from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, calls_at, source_call
from ridgeline.source.file import SourceFiles

PauseKind = Literal["checkpoint", "figure", "collection", "sleep", "conversion", "other"]

_KINDS: dict[str, PauseKind] = {
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
    "tolist": "conversion",
}
_CALLED_ON: dict[str, tuple[str, ...]] = {
    "save": ("torch", "np", "numpy", "dcp", "xm", "safetensors", "checkpoint"),
    "dump": ("pickle", "json", "joblib", "torch"),
    "collect": ("gc",),
    "sleep": ("time",),
}
"""What these names must be called on: `image.save` in a dataset is no checkpoint."""
_EVALUATION_NAMES = ("evaluat", "validat", "eval_", "val_", "test_epoch")


def kind_of(call: SourceCall | None) -> PauseKind:
    if call is None or call.name not in _KINDS:
        return "other"
    roots = _CALLED_ON.get(call.name)
    return _KINDS[call.name] if roots is None or call.on.split(".")[0] in roots else "other"


def call_on_line(sources: SourceFiles, place: Place, callee: str = "") -> SourceCall | None:
    """Return the call that a line makes: the call of `callee` if it is known, else one that usually
    takes long, else the only or the outermost one. Return None if the source does not tell."""
    source = sources.get(place.file)
    if source is None:
        return None
    nodes = source.calls_on_line(place.line)
    calls = [source_call(source, node) for node in nodes]
    called = [call for call in calls if callee and call.name == callee]
    slow = [call for call in calls if kind_of(call) != "other"]
    if called or slow:
        return (called or slow)[0]
    inside = {id(part) for node in nodes for part in ast.walk(node) if part is not node}
    outermost = [call for call in calls if id(call.node) not in inside]
    return outermost[0] if len(outermost) == 1 else None


def evaluates(sources: SourceFiles, place: Place) -> bool:
    """Return whether a function is an evaluation: by its name, or because it calls `eval()` on a
    model and trains nothing. A frozen teacher model that every step calls is no evaluation."""
    if place.function.rpartition(".")[2].lower().startswith(_EVALUATION_NAMES):
        return True
    trains = calls_at(sources, place, ("backward", "zero_grad"))
    return not trains and any(call.on for call in calls_at(sources, place, ("eval",)))
