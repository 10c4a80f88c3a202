"""Casts that are made again and again: weights cast at each call, activations there and back."""

import ast
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured, read, work_time
from ridgeline.diagnosis.rules._operators import (
    Cast,
    Dims,
    casts,
    dtype_of,
    exposed_casts,
    exposed_work,
    gain_bound,
    share,
    sizes_of,
    spent_ns,
    with_stacks,
)
from ridgeline.diagnosis.rules._user_code import files_of, located_call, user_calls
from ridgeline.records.finding import Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, calls_at
from ridgeline.source.file import SourceFile
from ridgeline.units import percent, seconds, significant

RULE = Rule(id="cast-churn", family="precision", budget="work", needs=("sites",))
MIN_SHARE = 0.02
MIN_ROUND_TRIP_SHARE = 0.05
"""Share of the step from which casts to a wider type and back are reported."""
MIN_UNKNOWN_SHARE = 0.2
"""Share of the step from which casts are reported if nothing tells which tensors are cast."""
MIN_CASTS_PER_WEIGHT = 1.5
"""Casts of a weight in a step from which it counts as cast again. One and a half leaves room for an
activation of the same shape."""
SAVED_SUM_SHARE = 0.6
"""Share of the time of summing float32 gradients that goes if the weight is cast once. The
gradients are then summed in 16 bits, at half the width, and more of them stays in the cache. On an
H200, 52 % of that time went."""
WIDER_OPERATOR_SHARE = 0.5
"""Share of the time of operators between a cast to a wider type and the cast back that goes with
the casts: they move twice the bytes, and on a CPU a product takes twice the time."""
_WRITTEN_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_DTYPE_WORDS = ("float", "half", "double", "dtype")


def look(case: Case) -> Iterator[Finding]:
    every = casts(case)
    again = _recast_weights(case, every)
    finding = _weights_finding(case, again) if again else None
    if finding is not None:
        yield finding
        return
    places = {c.site.place for c in every if c.by_hand and c.site.place is not None}
    written = [
        found
        for place in places
        for found in (_in_loop(case, place, every), _round_trip(case, place, every))
        if found is not None
    ]
    largest = max(written, key=lambda found: found.share, default=None)
    least = MIN_SHARE if largest is not None and largest.in_loop else MIN_ROUND_TRIP_SHARE
    if largest is not None and largest.share >= least:
        yield _written_finding(case, largest)
    elif not case.sites.shapes:
        yield from _unknown_finding(case, every)


class _Weight(Struct, frozen=True):
    """Weights of one shape, with their casts."""

    dims: Dims
    there: tuple[Cast, ...]
    back: tuple[Cast, ...]
    needed: float
    """The number of casts that a step needs."""

    @property
    def calls(self) -> float:
        return sum(c.site.calls for c in self.there)

    @property
    def needless(self) -> float:
        """The share of the casts that is not needed."""
        return max(1 - self.needed / self.calls, 0.0)


def _recast_weights(case: Case, every: Sequence[Cast]) -> list[_Weight]:
    known = _parameters(case)
    # An input of a linear layer that has a weight's shape cannot be told from the weight.
    inputs = {sizes_of(site) for site in case.sites.ops if site.op == "aten::linear"}
    found = []
    for dims in {c.dims for c in every if len(c.dims) >= 2}:
        here = [c for c in every if c.dims == dims]
        there = [c for c in here if c.site.phase != "backward" and (c.narrows or c.by_hand)]
        back = [c for c in here if c.site.phase == "backward"]
        needed = known.get(dims, 0.0) if known else _instances(there)
        least = MIN_CASTS_PER_WEIGHT * needed * (2 if dims in inputs else 1)
        if there and needed and sum(c.site.calls for c in there) >= least:
            found.append(_Weight(dims, tuple(there), tuple(back), needed))
    return found


def _parameters(case: Case) -> dict[Dims, float]:
    """Return for each shape how many parameters get gradients in a step, once for each backward."""
    counted: dict[Dims, float] = {}
    for site in case.sites.ops:
        if site.op.endswith("AccumulateGrad") and not site.op.startswith("autograd::"):
            counted[sizes_of(site)] = counted.get(sizes_of(site), 0.0) + site.calls
    return counted


def _instances(there: Sequence[Cast]) -> float:
    """Return the number of modules that cast this shape inside a product, for a step without
    gradients. Return 0 if it is not known."""
    named = {c.site.module for c in there if c.site.module and not c.by_hand}
    return float(len(named)) if all(c.site.module for c in there) else 0.0


def _weights_finding(case: Case, again: Sequence[_Weight]) -> Finding | None:
    part, sums = 0.0, 0.0
    for weight in again:
        sites = [c.site for c in (*weight.there, *weight.back)]
        part += weight.needless * exposed_casts(case, *sites)
        sums += SAVED_SUM_SHARE * exposed_work(case, *_gradient_sums(case, weight.dims))
    if part + sums < MIN_SHARE:
        return None
    most = max(again, key=lambda weight: sum(c.ns for c in weight.there))
    site = max(most.there, key=lambda c: c.ns).site
    by_hand = sum(c.ns for c in most.there if c.by_hand) > sum(c.ns for c in most.there) / 2
    call = next(iter(_written_casts(case, site.place)), None) if by_hand else _autocast(case, site)
    ns = sum(c.ns for w in again for c in (*w.there, *w.back))
    summed = sum(spent_ns(case, _gradient_sums(case, w.dims)) for w in again)
    also, halved = "", ""
    if summed:
        also = f", and {seconds(case.work_s(summed))} of float32 sums of their gradients"
        halved = f", {percent(sums)} in sums, at half the width"
    shape = " × ".join(map(str, most.dims))
    are = "is" if most.needed == 1 else "are"
    text = f"{significant(most.calls)} a step of {shape}, of which there {are} "
    return make_finding(
        RULE,
        claim=f"{'the program' if by_hand else 'autocast'} casts the same weights "
        f"{significant(most.calls / most.needed, 2)} times a step: "
        f"{seconds(case.work_s(ns))} of casts{also}",
        share=part + sums,
        bound=gain_bound(case, part + sums),
        place=located_call(case, call) or site.place,
        module=site.module,
        confidence="high" if call is not None else "medium",
        evidence=(
            measured("casts of weights", text + significant(most.needed), most.calls),
            work_time(case, "their time, with gradients cast back", ns),
            derived(
                "goes at most", f"{percent(part)} of the step in casts{halved}", 100 * (part + sums)
            ),
        ),
        change=_cast_once(call),
        doubt=with_stacks(
            case, "" if call is not None else "where the cast is made was not found in the source"
        ),
    )


def _gradient_sums(case: Case, dims: Dims) -> tuple[OpSite, ...]:
    """Return the sums of float32 gradients of a shape in the backward."""
    return tuple(
        site
        for site in case.sites.ops
        if site.op in ("aten::add", "aten::add_")
        and site.phase == "backward"
        and site.types[:1] == ("float",)
        and sizes_of(site) == dims
    )


def _autocast(case: Case, site: OpSite) -> SourceCall | None:
    """Return the `autocast` that is entered too often: one without its cache, else the one in the
    innermost loop."""
    written = list(calls_at(case.sources, site.place, ("autocast",)))
    written += [c for c in user_calls(case, ("autocast",), files_of([site])) if c not in written]
    uncached = [c for c in written if c.option("cache_enabled") == "False"]
    inner = sorted((c for c in written if c.loops), key=lambda c: -c.loops)
    return next(iter(uncached or inner or written), None)


def _written_casts(case: Case, place: Place | None) -> list[SourceCall]:
    """Return the casts written in a function, those in the innermost loop first."""
    return [call for call in calls_at(case.sources, place, _WRITTEN_CASTS) if _is_cast(call)]


def _is_cast(call: SourceCall) -> bool:
    """Return whether a call casts: `.to` and `.type` also move, and cast only if given a type."""
    if call.name not in ("to", "type"):
        return True
    return any(word in name.lower() for name in call.argument_names for word in _DTYPE_WORDS)


def _cast_once(call: SourceCall | None) -> str:
    if call is not None and call.option("cache_enabled"):
        return f"with {call.without('cache_enabled')}:"
    text = call.text if call is not None else 'torch.autocast("cuda", dtype=torch.bfloat16)'
    if call is not None and call.name != "autocast":
        return f"cast = {text}  # once, and kept"
    return f"with {text}:  # once, around the loop and not in it\n    for …:\n        …"


class _Written(Struct, frozen=True):
    """Casts of one function that can be left out."""

    share: float
    ns: float
    calls: float
    """How often a step makes them; for casts there and back, how many pairs."""
    call: SourceCall
    widest: str = ""
    """The type that tensors are cast to before they are cast back. "" for the cast of one tensor in
    every turn of a loop."""

    @property
    def in_loop(self) -> bool:
        return not self.widest


def _in_loop(case: Case, place: Place, every: Sequence[Cast]) -> _Written | None:
    """Return the casts of a tensor that stays the same in every turn of a loop."""
    source, written = case.sources.get(place.file), _written_casts(case, place)
    if source is None:
        return None
    calls = [c for c in written if _is_constant(source, c)]
    # A cast that runs once a step may be any of those written: all must be of the same tensor.
    always = len(calls) == len(written) and all(_is_constant(source, c, -1) for c in calls)
    here = [
        c
        for c in _forward(every, place)
        if c.by_hand and (always or c.site.calls >= 2)
    ]  # fmt: skip
    if not calls or not here:
        return None
    most = max(here, key=lambda c: c.ns)
    part = sum((1 - (not always) / c.site.calls) * exposed_casts(case, c.site) for c in here)
    part += exposed_casts(case, *_backward(every, place, {c.dims for c in here}))
    return _Written(part, sum(c.ns for c in here), most.site.calls, calls[0])


def _is_constant(source: SourceFile, call: SourceCall, which: int = 0) -> bool:
    """Return whether the cast tensor is not assigned in the loop around the call: the innermost
    loop, or the outermost if `which` is -1."""
    parents = source.parents(call.node) if call.node is not None else ()
    loops = [p for p in parents if isinstance(p, ast.For | ast.While)]
    return bool(loops and call.on) and not _is_assigned(loops[which], call.on)


def _is_assigned(loop: ast.AST, name: str) -> bool:
    """Return whether the loop stores to `name`, as written, or to a part of it."""
    stored = {
        ast.unparse(node)
        for node in ast.walk(loop)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
    }
    parts = {ast.unparse(n) for n in ast.walk(ast.parse(name)) if isinstance(n, ast.expr)}
    return bool(stored & parts) or "(" in name


def _round_trip(case: Case, place: Place, every: Sequence[Cast]) -> _Written | None:
    """Return the casts of a function to a wider type and back."""
    here = _forward(every, place)
    pairs: list[Cast] = []
    for c in here:
        widens = _WIDTH.get(c.before, 0) < _WIDTH.get(c.after, 0)
        if c.by_hand and widens and len(c.dims) > 1:
            back = [b for b in here if (b.dims, b.before, b.after) == (c.dims, c.after, c.before)]
            if back:
                pairs += [c, *(b for b in back if b not in pairs)]
    written = _written_casts(case, place)
    if not pairs or not written:
        return None
    sizes = {c.dims for c in pairs}
    wide = {c.after for c in pairs if _WIDTH[c.after] > _WIDTH[c.before]}
    part = exposed_casts(case, *(c.site for c in pairs), *_backward(every, place, sizes))
    part += WIDER_OPERATOR_SHARE * case.exposed(*_between(case, place, sizes, wide))
    times = sum(c.site.calls for c in pairs if c.after in wide)
    call = min(written, key=lambda c: c.line)
    widest = max(wide, key=lambda name: _WIDTH[name])
    return _Written(part, sum(c.ns for c in pairs), times, call, widest)


def _forward(every: Sequence[Cast], place: Place) -> list[Cast]:
    return [c for c in every if c.site.place == place and c.site.phase != "backward"]


def _backward(every: Sequence[Cast], place: Place, sizes: set[Dims]) -> list[OpSite]:
    return [
        c.site
        for c in every
        if c.site.place == place and c.site.phase == "backward" and c.dims in sizes
    ]


def _between(case: Case, place: Place, sizes: set[Dims], wide: set[str]) -> list[OpSite]:
    """Return the operators of a function on tensors of these shapes in the wider type."""
    return [
        site
        for site in case.sites.ops
        if site.place == place
        and site.op not in ("aten::_to_copy", "aten::copy_")
        and dtype_of(site) in wide
        and any(sizes_of(site, index) in sizes for index in range(len(site.dims)))
    ]


def _written_finding(case: Case, found: _Written) -> Finding:
    times, text = significant(found.calls, 2), found.call.text
    if found.in_loop:
        often = f"{times} times a step" if found.calls >= 2 else "again in every step"
        claim = f"`{text}` casts the same tensor {often}"
        change = f"cast = {text}  # once, before the loop"
    elif found.widest == "float64":
        claim = f"tensors are cast to float64 and back {times} times a step"
        change = f"# leave out {text}: stay in float32"
    else:
        claim = f"tensors are cast to {found.widest} and back {times} times a step"
        change = (
            f"# leave out {text}, or use an operator that computes in float32 inside:\n"
            "F.rms_norm(x, x.shape[-1:], weight)  # F.layer_norm and F.softmax likewise"
        )
    return make_finding(
        RULE,
        claim=claim,
        share=found.share,
        place=located_call(case, found.call),
        confidence="medium",
        evidence=(work_time(case, "casts in the forward", found.ns), read("written", text)),
        change=change,
        doubt="" if found.in_loop else "the function may need the wider type between the two casts",
    )


def _unknown_finding(case: Case, every: Sequence[Cast]) -> Iterator[Finding]:
    """Yield a finding without shapes: they tell how much is cast, but not what."""
    ns = sum(c.ns for c in every)
    part = share(case, (c.site for c in every), ns)
    if part < MIN_UNKNOWN_SHARE:
        return
    most = max(every, key=lambda c: c.ns).site
    calls = sum(c.site.calls for c in every)
    yield make_finding(
        RULE,
        claim=f"casts between floating types take {percent(part)} of the step",
        share=part,
        place=most.place,
        module=most.module,
        confidence="low",
        evidence=(
            work_time(case, "casts", ns),
            measured("how many", f"{significant(calls)} a step", calls),
        ),
        change="# one type throughout: autocast around the whole forward, or the model held in it\n"
        "model = model.to(torch.bfloat16)",
        doubt="which tensors are cast is not known: autocast has to cast each weight once a step",
    )
