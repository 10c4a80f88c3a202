"""The user's files that a run or a trace names, and places, calls and statements in them."""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import ModuleSeen
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls, line_of
from ridgeline.source.file import SourceFile

_PRODUCTS = frozenset({
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "scaled_dot_product_attention",
})  # fmt: skip
"""Functions that multiply matrices, by the last part of their names."""


def place_at(text: str) -> Place | None:
    """Return the place that `train.py:12` names, or None if the text names no line."""
    file, _, line = text.rpartition(":")
    return Place(file=file, line=int(line)) if file and line.isdigit() else None


def source_of(case: Case, place: Place | None) -> SourceFile | None:
    return case.sources.get(place.file) if place is not None else None


def located(case: Case, file: str, line: int) -> Place:
    """Return a line of a file with the name of the function around it."""
    source = case.sources.get(file)
    function = source.function_name(line) if source is not None else ""
    return Place(file=file, line=line, function=function)


def located_call(case: Case, call: SourceCall | None) -> Place | None:
    return located(case, call.file, call.line) if call is not None else None


def files_of(sites: Iterable[OpSite]) -> list[str]:
    return [site.place.file for site in sites if site.place is not None]


def user_files(case: Case) -> Iterator[str]:
    """Yield the script, then the files of modules, optimizers and loaders, then those of operators.
    A file may come up more than once."""
    if case.run is not None and case.run.target.kind == "script":
        yield case.run.target.name
        yield str(Path(case.run.environment.folder) / case.run.target.name)
    if case.capture is not None:
        places = [module.place for module in case.capture.modules]
        places += [optimizer.place for optimizer in case.capture.optimizers]
        places += [loader.place for loader in case.capture.loaders]
        yield from (place.rpartition(":")[0] for place in places if place)
    yield from files_of(case.sites.ops)


def user_sources(case: Case, first: Iterable[str] = ()) -> tuple[SourceFile, ...]:
    """Return the user's files that can be read, each once even if it has two names; those named in
    `first` come first."""
    found: dict[str, SourceFile] = {}
    for file in (*first, *user_files(case)):
        source = case.sources.get(file)
        if source is not None:
            found.setdefault(source.text, source)
    return tuple(found.values())


def user_calls(
    case: Case, names: Collection[str], first: Iterable[str] = ()
) -> tuple[SourceCall, ...]:
    """Return the calls of these names anywhere in the user's files."""
    return tuple(call for source in user_sources(case, first) for call in all_calls(source, names))


def as_traced(case: Case, file: str) -> str:
    """Return the name that the trace has for a file: the trace leaves out the search path."""
    ends = [name for name in files_of(case.sites.ops) if file.endswith(f"/{name.lstrip('./')}")]
    return max(ends, key=len, default=file)


def models(case: Case) -> list[ModuleSeen]:
    """Return the modules that were called and whose call has a place, without losses. The one with
    the most parameters and calls comes first."""
    seen = case.capture.modules if case.capture is not None else ()
    called = [module for module in seen if module.place and module.parameters and not module.loss]
    return sorted(called, key=lambda m: -m.parameters * max(m.calls + m.evaluation_calls, 1))


def model_call(case: Case, site: OpSite | None = None) -> Place | None:
    """Return where the model is called, as the run saw it. For a trace alone, return the line of
    the product, or of the call of a module, in the function of `site`."""
    for module in models(case):
        if (place := place_at(module.place)) is not None:
            return located(case, as_traced(case, place.file), place.line)
    place = site.place if site is not None else None
    source = source_of(case, place)
    if place is None or source is None:
        return place
    for wanted in (_is_product, _calls_variable(source)):
        line = line_of(case.sources, place, wanted)
        if line is not None:
            return replace(place, line=line)
    return place


def statement_at(case: Case, place: Place | None) -> str:
    """Return the statement on a line without its comment. Return "" if it cannot be read or takes
    more than one line."""
    source = source_of(case, place)
    if source is None or place is None:
        return ""
    for node in ast.walk(source.module):
        whole = isinstance(node, ast.Assign | ast.Expr | ast.Return | ast.AugAssign)
        if whole and node.lineno == place.line == node.end_lineno:  # type: ignore[attr-defined]
            return ast.get_source_segment(source.text, node) or ""
    return ""


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        own = isinstance(called.value, ast.Name) and called.value.id == "self"
        return called.attr in _PRODUCTS or own
    return isinstance(called, ast.Name) and called.id in _PRODUCTS


def _calls_variable(source: SourceFile) -> Callable[[ast.AST], bool]:
    """Return a test for calls of something that was assigned or passed, not defined or imported: of
    a module."""
    names = {
        node.id
        for node in ast.walk(source.module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names |= {node.arg for node in ast.walk(source.module) if isinstance(node, ast.arg)}
    return lambda node: (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    )
