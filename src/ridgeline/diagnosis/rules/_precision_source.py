"""Where in the user's source precision is decided: settings, autocast, the model's own call."""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.records.op_site import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.reading.calls import SourceCall, all_calls, line_of
from ridgeline.source.reading.sources import Source

_PRODUCTS = frozenset({
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "scaled_dot_product_attention",
})  # fmt: skip


class At(Struct, frozen=True):
    place: Place | None
    line: int | None = None


def sources(case: Case, sites: Iterable[OpSite] = ()) -> Iterator[Source]:
    """The user's files that are known: of these sites, of the run's records, the script itself."""
    names = [site.place.file for site in sites if site.place is not None]
    if case.capture is not None:
        seen = [one.place for one in case.capture.modules]
        seen += [one.place for one in case.capture.optimizers]
        names += [place.rpartition(":")[0] for place in seen if place]
    if case.run is not None and case.run.target.kind == "script":
        names.append(case.run.target.name)
    read: set[str] = set()
    for name in names:
        source = case.sources.get(name) if name else None
        if source is not None and source.text not in read:  # one file by two names
            read.add(source.text)
            yield source


def calls(case: Case, sites: Iterable[OpSite], names: Collection[str]) -> tuple[SourceCall, ...]:
    """In all of the user's files that are known."""
    return tuple(call for source in sources(case, sites) for call in all_calls(source, names))


def at_call(case: Case, call: SourceCall) -> At:
    return at_line(case, call.file, call.line)


def at_line(case: Case, file: str, line: int) -> At:
    source = case.sources.get(file)
    function = getattr(source.scope(line), "name", "") if source is not None else ""
    return At(Place(file=file, line=line, function=function), line)


def model_call(case: Case, site: OpSite) -> At:
    """Where the model is called: as the run saw it, else the product's own line in the function
    that was measured."""
    modules = case.capture.modules if case.capture is not None else ()
    called = [m for m in modules if m.place and not m.loss and m.parameters]
    if called:
        most = max(called, key=lambda m: m.parameters * (m.calls + m.evaluation_calls))
        file, _, line = most.place.rpartition(":")
        if line.isdigit():
            return at_line(case, _as_measured(case, file, site), int(line))
    place = site.place
    source = case.sources.get(place.file) if place is not None else None
    if place is None or source is None:
        return At(place)
    for wanted in (_is_product, _calls_variable(source)):
        line_found = line_of(case.sources, place, wanted)
        if line_found is not None:
            return At(place, line_found)
    return At(place)


def _as_measured(case: Case, file: str, site: OpSite) -> str:
    """The name a trace has for a file the run names by its whole path."""
    if site.place is None:
        return file
    one, other = case.sources.get(file), case.sources.get(site.place.file)
    same = one is not None and other is not None and one.text == other.text
    return site.place.file if same else file


def statement(case: Case, at: At) -> str:
    """The line's own text, without its comment; "" where it cannot be read or goes on."""
    source = case.sources.get(at.place.file) if at.place is not None else None
    if source is None or at.line is None:
        return ""
    for node in ast.walk(source.tree):
        whole = isinstance(node, ast.Assign | ast.Expr | ast.Return | ast.AugAssign)
        if whole and node.lineno == at.line == node.end_lineno:  # type: ignore[attr-defined]
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


def _calls_variable(source: Source) -> Callable[[ast.AST], bool]:
    """A call of something that was assigned or passed, not defined or imported: of a module."""
    assigned = {
        node.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assigned |= {node.arg for node in ast.walk(source.tree) if isinstance(node, ast.arg)}
    return lambda node: (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in assigned
    )
