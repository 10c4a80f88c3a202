"""Casts written in the user's source that need not be: there and back, or of the same tensor in
every turn of a loop."""

import ast
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._precision import dtype_of
from ridgeline.diagnosis.rules._precision_casts import Cast, Dims, exposed
from ridgeline.records.op_site import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.reading.calls import SourceCall, calls_at
from ridgeline.source.reading.sources import Source

WRITTEN = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
WIDER = 0.5
"""Of the operators between a cast to a wider type and the cast back: twice the bytes, and on a CPU
twice the time of a product."""
_WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_TYPES = ("float", "half", "double", "dtype")


class ByHand(Struct, frozen=True):
    """Casts of one function that could be left out."""

    share: float
    ns: float
    calls: float
    """Times a step: of pairs where they go there and back."""
    call: SourceCall
    place: Place
    loop: bool = False
    """The same tensor in every turn of a loop; else there and back."""
    through: str = ""
    """The type a pair goes to and comes back from."""


def by_hand(case: Case, every: Sequence[Cast]) -> ByHand | None:
    """The costliest function with such casts; only where its source shows them."""
    places = {c.site.place for c in every if c.by_hand and c.site.place is not None}
    found = [
        one
        for place in places
        for one in (_loop(case, place, every), _back_and_forth(case, place, every))
        if one is not None
    ]
    return max(found, key=lambda one: one.share, default=None)


def written_at(case: Case, place: Place) -> list[SourceCall]:
    """Casts written in a function, those in the innermost loop first."""
    return [call for call in calls_at(case.sources, place, WRITTEN) if is_cast(call)]


def is_cast(call: SourceCall) -> bool:
    """`.to` and `.type` also move; only with a type in the brackets are they casts."""
    arguments = call.text.rpartition("(")[2]
    return call.name not in ("to", "type") or any(word in arguments for word in _TYPES)


def _loop(case: Case, place: Place, every: Sequence[Cast]) -> ByHand | None:
    source, written = case.sources.get(place.file), written_at(case, place)
    calls = [c for c in written if source and _constant(source, c)]
    # once a step may be any of the casts written: all of them have to be of the same tensor
    always = len(calls) == len(written) and all(source and _constant(source, c, -1) for c in calls)
    here = [c for c in every if c.site.place == place and c.by_hand
            and c.site.phase != "backward" and (always or c.site.calls >= 2)]  # fmt: skip
    if not calls or not here:
        return None
    most = max(here, key=lambda c: c.ns)
    part = sum((1 - (not always) / c.site.calls) * exposed(case, c.site) for c in here)
    part += exposed(case, *_backward(every, place, {c.dims for c in here}))
    ns = sum(c.ns for c in here)
    return ByHand(part, ns, most.site.calls, calls[0], place, loop=True)


def _constant(source: Source, call: SourceCall, which: int = 0) -> bool:
    """What is cast is not assigned in the loop around it: the innermost, or (-1) the outermost."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.get_source_segment(source.text, node) == call.text:
            loops = [p for p in source.parents(node) if isinstance(p, ast.For | ast.While)]
            if loops and (node.func.end_lineno or node.lineno) == call.line:
                return bool(call.on) and not _assigned(loops[which], call.on)
    return False


def _assigned(loop: ast.AST, name: str) -> bool:
    """`name`, as written, or what it is part of is stored to in the loop."""
    stored = {
        ast.unparse(node)
        for node in ast.walk(loop)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
    }
    parts = {ast.unparse(n) for n in ast.walk(ast.parse(name)) if isinstance(n, ast.expr)}
    return bool(stored & parts) or "(" in name


def _back_and_forth(case: Case, place: Place, every: Sequence[Cast]) -> ByHand | None:
    here = [c for c in every if c.site.place == place and c.site.phase != "backward"]
    pairs: list[Cast] = []
    for c in here:
        there = _WIDTH.get(c.before, 0) < _WIDTH.get(c.after, 0)
        if c.by_hand and there and len(c.dims) > 1:
            back = [b for b in here if b.dims == c.dims and b.before == c.after
                    and b.after == c.before]  # fmt: skip
            if back:
                pairs += [c, *(b for b in back if b not in pairs)]
    written = written_at(case, place)
    if not pairs or not written:
        return None
    sizes = {c.dims for c in pairs}
    wide = {c.after for c in pairs if _WIDTH[c.after] > _WIDTH[c.before]}
    part = exposed(case, *(c.site for c in pairs), *_backward(every, place, sizes))
    part += WIDER * case.exposed(*_between(case, place, sizes, wide))
    times = sum(c.site.calls for c in pairs if c.after in wide)
    call = min(written, key=lambda c: c.line)
    through = max(wide, key=lambda name: _WIDTH[name])
    return ByHand(part, sum(c.ns for c in pairs), times, call, place, through=through)


def _backward(every: Sequence[Cast], place: Place, sizes: set[Dims]) -> list[OpSite]:
    return [c.site for c in every if c.site.place == place and c.site.phase == "backward"
            and c.dims in sizes]  # fmt: skip


def _between(case: Case, place: Place, sizes: set[Dims], wide: set[str]) -> list[OpSite]:
    """Operators of the function on tensors of these shapes, in the wider type."""
    return [
        site
        for site in case.sites.ops
        if site.place == place
        and site.op not in ("aten::_to_copy", "aten::copy_")
        and dtype_of(site) in wide
        and any(isinstance(dims, list) and tuple(map(str, dims)) in _texts(sizes)
                for dims in site.dims)
    ]  # fmt: skip


def _texts(sizes: set[Dims]) -> set[tuple[str, ...]]:
    return {tuple(map(str, dims)) for dims in sizes}
