"""Calls in the user's source: where they stand, what they are given, what their result is called,
and the same call with one more argument.

Two kinds of call have a section of their own: those that pause training (a checkpoint, a figure, a
sleep), and those that break a compiled graph. The source says what a line does, but not that it
ran. Which lines ran is known from samples of the running program.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Place
from ridgeline.source.file import (
    SourceFile,
    SourceFiles,
    call_line,
    keyword_value,
    last_name,
    parsed_expression,
)

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
NUMBERS = ("item", "tolist", "float", "int", "bool")
"""Calls that ask a tensor for a number, which Dynamo all names `Tensor.item()`."""
_BUILTIN_NUMBERS = ("float", "int", "bool")


class SourceCall(Struct, frozen=True, kw_only=True):
    file: str
    line: int
    name: str
    """The last part of what is called: item, to, DataLoader."""
    on: str = ""
    """What the name is an attribute of, as written: loss, torch.cuda."""
    text: str = ""
    """The call as written."""
    loops: int = 0
    """The number of loops around the call in its own function."""
    keywords: tuple[str, ...] = ()
    first: str = ""
    """The first positional argument as written; "" if there is none."""
    node: ast.Call | None = None

    @property
    def called(self) -> str:
        """The function that is called, as written: torch.set_num_threads."""
        return f"{self.on}.{self.name}" if self.on else self.name

    def option(self, name: str) -> str:
        """Return the value of a keyword argument as written; "" if the call does not give it."""
        value = keyword_value(self.node, name) if self.node is not None else None
        return ast.unparse(value) if value is not None else ""

    @property
    def argument_names(self) -> frozenset[str]:
        """The names, attributes, keywords and short texts in the arguments: torch, float32 and
        dtype of `x.to(dtype=torch.float32)`."""
        return argument_names(self.node) if self.node is not None else frozenset()

    @property
    def argument_count(self) -> int:
        return len(self.node.args) + len(self.node.keywords) if self.node is not None else 0

    def without(self, *options: str) -> str:
        """Return the call as written, without these keyword arguments."""
        return without_options(self.text, options)


def argument_names(call: ast.Call) -> frozenset[str]:
    """Return the names, attributes, keywords and texts in the arguments of a call."""
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    for node in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute):
                names.add(last_name(part))
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                names.add(part.value)
    return frozenset(names)


def without_options(text: str, options: Collection[str]) -> str:
    """Return a call as written, without the keyword arguments of these names; the text itself if it
    is no call or gives none of them."""
    call = parsed_expression(text)
    if not isinstance(call, ast.Call) or not any(k.arg in options for k in call.keywords):
        return text
    written, shown = text.strip(), call.func
    given = [*call.args, *(k for k in call.keywords if k.arg not in options)]
    kept = (ast.get_source_segment(written, node) or ast.unparse(node) for node in given)
    function = ast.get_source_segment(written, shown) or ast.unparse(shown)
    return f"{function}({', '.join(kept)})"


def calls_at(
    sources: SourceFiles, place: Place | None, names: Collection[str]
) -> tuple[SourceCall, ...]:
    """Return the calls of these names in the function around a place, those in the innermost loop
    first. Calls that are known not to have been made in the traced steps are left out."""
    calls = [
        source_call(source, node)
        for source, node in sources.around(place)
        if isinstance(node, ast.Call) and last_name(node) in names and source.ran(node) is not False
    ]
    return tuple(sorted(calls, key=lambda call: (-call.loops, call.line)))


def line_of(
    sources: SourceFiles, place: Place | None, wanted: Callable[[ast.AST], bool]
) -> int | None:
    """Return the line of a node that `wanted` accepts in the function around a place, the one in
    the innermost loop and then the first; None if there is no such node."""
    lines = [
        (-source.loops(node), node.lineno)
        for source, node in sources.around(place)
        if wanted(node) and source.ran(node) is not False and isinstance(node, ast.expr | ast.stmt)
    ]
    return min(lines)[1] if lines else None


def all_calls(source: SourceFile, names: Collection[str]) -> Iterator[SourceCall]:
    """Yield the calls of these names in the whole file."""
    yield from (source_call(source, call) for call in source.calls if last_name(call) in names)


def source_call(source: SourceFile, node: ast.Call) -> SourceCall:
    return SourceCall(
        file=source.file,
        line=call_line(node),
        name=last_name(node),
        on=ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else "",
        text=source.segment(node),
        loops=source.loops(node),
        keywords=tuple(k.arg for k in node.keywords if k.arg),
        first=ast.unparse(node.args[0]) if node.args else "",
        node=node,
    )


def merge_into_starred(call: ast.Call, options: dict[str, str]) -> tuple[dict[str, str], bool]:
    """Merge options into the `**settings` of a call. The settings may hold an option already, and
    then a keyword beside them would raise. In `**{**settings, "option": value}` the later one
    counts. Return the options that must still be written as keywords, and whether the call was
    changed."""
    starred = [k for k in call.keywords if k.arg is None]
    written = {k.arg for k in call.keywords}
    new = {name: value for name, value in options.items() if name not in written}
    if not starred or not new:
        return options, False
    merged = ast.Dict(
        keys=[*(None for _ in starred), *(ast.Constant(name) for name in new)],
        values=[
            *(k.value for k in starred),
            *(ast.parse(v, mode="eval").body for v in new.values()),
        ],
    )
    call.keywords = [*(k for k in call.keywords if k.arg), ast.keyword(None, merged)]
    return {name: value for name, value in options.items() if name in written}, True


def with_argument(text: str, argument: str) -> str:
    """Return a call as written, with one more argument name=value."""
    name, _, value = argument.partition("=")
    call = parsed_expression(text)
    if isinstance(call, ast.Call) and merge_into_starred(call, {name: value})[1]:
        return ast.unparse(ast.fix_missing_locations(call))
    inner = text.rstrip()[:-1].rstrip().rstrip(",")
    return f"{inner}{'' if inner.endswith('(') else ', '}{argument})"


def assigned_name(sources: SourceFiles, call: SourceCall) -> str:
    """Return the name that a call's result is assigned to: `net` of `net = DDP(…)`; "" if the call
    is a part of something else, or returned."""
    source = sources.get(call.file)
    if source is None or call.node is None:
        return ""
    target = assigned_to(source, call.node)
    return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""


def start_of_statement(sources: SourceFiles, call: SourceCall) -> str:
    """Return how a line begins that replaces the call: `y = `, `return `; "" inside an
    expression."""
    source = sources.get(call.file)
    if source is not None and call.node is not None:
        if isinstance(next(source.parents(call.node)), ast.Return):
            return "return "
        name = assigned_name(sources, call)
        return f"{name} = " if name else ""
    return ""


def assigned_to(source: SourceFile, node: ast.AST) -> ast.expr | None:
    """Return what an expression is assigned to, also as an item of a tuple; None if it is a part of
    something else."""
    parent, outer = [*source.parents(node), None, None][:2]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return parent.targets[0]
    if isinstance(parent, ast.AnnAssign):
        return parent.target
    if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Assign):
        targets = outer.targets[0]
        if isinstance(targets, ast.Tuple) and len(targets.elts) == len(parent.elts):
            return targets.elts[[id(item) for item in parent.elts].index(id(node))]
    return None


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


class BreakingCall(Struct, frozen=True, kw_only=True):
    place: Place
    called: str
    """.item(), float()"""
    text: str
    """The statement as written."""
    without: str = ""
    """The statement with a tensor in the place of the number; "" if Python needs a number."""


def breaking_call(
    sources: SourceFiles, place: Place, names: Collection[str], frames: Sequence[Place]
) -> BreakingCall | None:
    """Return the call of one of these names that breaks the graph at a place. `frames` are
    functions that were compiled by themselves and broke for the same reason."""
    source = sources.get(place.file)
    if source is None:
        return None
    calls = source.calls_on_line(place.line)
    for call in calls:
        if _breaks(call, names):
            return _described(source, call)
    called = {last_name(call) for call in calls} - {""}
    files = dict.fromkeys((place.file, *(frame.file for frame in frames)))
    for other in filter(None, map(sources.get, files)):
        for function in other.functions:
            if function.name in called:
                for node in other.walk(function):
                    if isinstance(node, ast.Call) and _breaks(node, names):
                        return _described(other, node)
    return None


def _breaks(call: ast.Call, names: Collection[str]) -> bool:
    """Return whether a call is a method of these names, or Python's own function of something that
    is no literal."""
    name = last_name(call)
    if isinstance(call.func, ast.Attribute):
        return name in names and name not in _BUILTIN_NUMBERS
    computed = len(call.args) == 1 and not isinstance(call.args[0], ast.Constant)
    return name in names and (computed or name not in NUMBERS)


def _described(source: SourceFile, call: ast.Call) -> BreakingCall:
    name, line, statement = last_name(call), call_line(call), source.statement_of(call)
    compound = hasattr(statement, "body")
    text = source.line(line) if compound else source.written(statement)
    tensor, without = call.args[0] if call.args else None, ""
    if isinstance(call.func, ast.Attribute):
        tensor = call.func.value
    simple = isinstance(statement, ast.Assign | ast.AugAssign)
    if name in ("item", "float", "int") and simple and tensor is not None:
        whole = source.segment(call)
        without = text.replace(whole, source.segment(tensor), 1) if whole in text else ""
    return BreakingCall(
        place=Place(file=source.file, line=line, function=source.function_name(call.lineno)),
        called=f".{name}()" if isinstance(call.func, ast.Attribute) else f"{name}()",
        text=text.partition("  #")[0],
        without=without.partition("  #")[0],
    )
