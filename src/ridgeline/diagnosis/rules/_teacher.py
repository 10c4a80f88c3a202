"""A model that training only asks, and whose gradients are computed all the same.

Nothing in the records says which parameters an optimizer has. But its `zero_grad` drops their
gradients, so that the backward's `AccumulateGrad` puts a new one in place; the gradient of a
parameter that no optimizer has stays for ever, and each backward adds to it (`aten::add_`).
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.op_site import OpSite

_ACCUMULATES = "torch::autograd::AccumulateGrad"
_WEIGHT_AT = {"aten::t": 0, "aten::embedding": 0, "aten::convolution": 1}
"""Operators of a forward that take a weight, and as which argument."""
_BESIDE = ("optimizer", "other")
"""Phases in which parameters are updated, by an optimizer or by hand."""
_Shape = tuple[int, ...]


class Teacher(Struct, frozen=True, kw_only=True):
    module: str
    """Its path, as the trace has it: Sequential_0."""
    weights: int
    """Elements of its weights."""
    sites: tuple[OpSite, ...]
    """Operators of the backward that would be gone."""
    share: float
    """Of the step."""
    most: float
    """The whole backward: it cannot be more."""


def teacher(case: Case) -> Teacher | None:
    """None: there is none, or it cannot be told. With several optimizers one may not have stepped
    in the traced steps, and ranks exchange gradients in buffers of their own."""
    capture = case.capture
    if capture is None or len(capture.optimizers) != 1 or case.ranks > 1 or not case.sites.shapes:
        return None
    kept, fresh = _gradients(case)
    kept -= _updated(case) | fresh
    updated = [m for m, shape in _weights(case) if shape in fresh]
    module = _outermost(_common(m for m, shape in _weights(case) if shape in kept), updated)
    if not fresh or not module:
        return None
    backward = [site for site in case.sites.ops if site.phase == "backward"]
    sites = tuple(s for s in backward if _within(s.module, module) or _adds(s) in kept)
    share, most = _share(case, sites, backward)
    return Teacher(
        module=module, weights=_elements(case, kept), sites=sites, share=share, most=most
    )


def _gradients(case: Case) -> tuple[set[_Shape], set[_Shape]]:
    """Shapes of matrices whose gradients are always added to, and of those put in place."""
    calls: dict[_Shape, float] = {}
    added: dict[_Shape, float] = {}
    for site in case.sites.ops:
        shape = _shape(site, 0)
        if site.op == _ACCUMULATES and len(shape) > 1:
            calls[shape] = calls.get(shape, 0.0) + site.calls
        if (shape := _adds(site)) and len(shape) > 1:
            added[shape] = added.get(shape, 0.0) + site.calls
    kept = {shape for shape in calls if added.get(shape, 0.0) >= calls[shape]}
    return kept, {shape for shape in calls if shape not in added}


def _adds(site: OpSite) -> _Shape:
    """What a gradient is added to; () of any other site."""
    return _shape(site, 0) if site.op == "aten::add_" and site.inside(_ACCUMULATES) else ()


def _updated(case: Case) -> set[_Shape]:
    """Every shape an operator between backward and forward was given, alone or in a list."""
    found: set[_Shape] = set()
    for site in case.sites.ops:
        if site.phase in _BESIDE:
            for dims in site.dims:
                lists = dims if dims and isinstance(dims[0], list | tuple) else [dims]
                found |= {tuple(one) for one in lists}
    return found


def _weights(case: Case) -> Iterator[tuple[str, _Shape]]:
    """(module, shape) of weights in the forward."""
    for site in case.sites.ops:
        if site.phase == "forward" and site.module and site.op in _WEIGHT_AT:
            yield site.module, _shape(site, _WEIGHT_AT[site.op])


def _shape(site: OpSite, at: int) -> _Shape:
    dims = site.dims[at] if len(site.dims) > at else ()
    return tuple(dims) if all(isinstance(size, int) for size in dims) else ()


def _common(modules: Iterable[str]) -> str:
    paths = [module.split(" / ") for module in modules]
    same = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return " / ".join(same)


def _outermost(path: str, updated: list[str]) -> str:
    """The widest module around these weights that has none that are updated; "": there is none."""
    parts = path.split(" / ") if path else []
    around = [" / ".join(parts[: i + 1]) for i in range(len(parts))]
    return next((one for one in around if not any(_within(m, one) for m in updated)), "")


def _within(module: str, outer: str) -> bool:
    return module == outer or module.startswith(f"{outer} / ")


def _elements(case: Case, kept: set[_Shape]) -> int:
    count = 0.0
    for site in case.sites.ops:
        if site.op == _ACCUMULATES and (shape := _shape(site, 0)) in kept:
            size = 1
            for length in shape:
                size *= length
            # a parameter is accumulated once a backward
            count += size * max(round(site.calls), 1)
    return round(count)


def _share(case: Case, sites: Iterable[OpSite], backward: list[OpSite]) -> tuple[float, float]:
    """Of the untraced backward the part that the traced one spends there; on a GPU, whose steps
    wait for more than their backward, what is exposed of it."""
    gone = case.exposed(*sites)
    whole = share_of(case.times, "backward") if case.times.phases else 0.0
    spent = sum(site.host_ns for site in backward)
    if case.on_gpu or not whole or not spent:
        return gone, max(gone, whole)
    return whole * min(sum(site.host_ns for site in sites) / spent, 1.0), whole
