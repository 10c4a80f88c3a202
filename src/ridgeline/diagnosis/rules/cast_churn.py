"""Casts that are made again and again: weights cast at each call, activations there and back."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import (
    At,
    ByHand,
    Cast,
    Dims,
    at_call,
    by_hand,
    calls,
    casts,
    exposed,
    exposed_work,
    gain_bound,
    parameters,
    share,
    with_stacks,
    written_at,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import SourceCall, calls_at
from ridgeline.units import percent, seconds, significant

RULE = Rule(id="cast-churn", family="precision", budget="work", needs=("sites",))
LEAST = 0.02
BY_HAND = 0.05
ANY = 0.2
TWICE = 1.5
"""Casts of a weight in a step, from which on it is cast again: one and a half leaves room for
shapes that an activation shares."""
SUMS = 0.6
"""Of the sums of float32 gradients: cast once, they are summed in 16 bits, at half the width, and
more of them stays in the cache. On an H200 52 % of their time went."""


def look(case: Case) -> Iterator[Finding]:
    every = casts(case)
    again = _weights_again(case, every)
    answered = _again_finding(case, again) if again else None
    if answered is not None:
        yield answered
        return
    written = by_hand(case, every)
    if written is not None and written.share >= (LEAST if written.loop else BY_HAND):
        yield _by_hand_finding(case, written)
    elif not case.sites.shapes:
        yield from _all(case, every)


class _Weight(Struct, frozen=True):
    """Weights of one shape: casts of them, both ways, and how many there need be."""

    dims: Dims
    there: tuple[Cast, ...]
    back: tuple[Cast, ...]
    need: float

    @property
    def calls(self) -> float:
        return sum(c.site.calls for c in self.there)

    @property
    def again(self) -> float:
        """The part of the casts that is not needed."""
        return max(1 - self.need / self.calls, 0.0)


def _weights_again(case: Case, every: Sequence[Cast]) -> list[_Weight]:
    known, fed = parameters(case), _fed(case)
    found = []
    for dims in {c.dims for c in every if len(c.dims) >= 2}:
        here = [c for c in every if c.dims == dims]
        there = [c for c in here if c.site.phase != "backward" and (c.narrows or c.by_hand)]
        back = [c for c in here if c.site.phase == "backward"]
        need = known.get(dims, 0.0) if known else _instances(there)
        least = (2 * TWICE if dims in fed else TWICE) * need
        if there and need and sum(c.site.calls for c in there) >= least:
            found.append(_Weight(dims, tuple(there), tuple(back), need))
    return found


def _fed(case: Case) -> set[Dims]:
    """Shapes of what goes into linear layers: a weight of the same shape cannot be told apart."""
    inputs = [s.dims[0] for s in case.sites.ops if s.op == "aten::linear" and s.dims]
    return {tuple(dims) for dims in inputs if isinstance(dims, list)}


def _instances(there: Sequence[Cast]) -> float:
    """Without gradients: modules that cast this shape inside a product; 0 where none is known."""
    named = {c.site.module for c in there if c.site.module and not c.by_hand}
    return float(len(named)) if all(c.site.module for c in there) else 0.0


def _again_finding(case: Case, again: Sequence[_Weight]) -> Finding | None:
    part, sums = 0.0, 0.0
    for weight in again:
        sites = [c.site for c in (*weight.there, *weight.back)]
        part += weight.again * exposed(case, *sites)
        sums += SUMS * exposed_work(case, *_sums(case, weight.dims))
    if part + sums < LEAST:
        return None
    most = max(again, key=lambda weight: sum(c.ns for c in weight.there))
    site = max(most.there, key=lambda c: c.ns).site
    hand = sum(c.ns for c in most.there if c.by_hand) > sum(c.ns for c in most.there) / 2
    at, call = _written(case, site) if hand else _autocast(case, site)
    who = "the program" if hand else "autocast"
    ns = sum(c.ns for w in again for c in (*w.there, *w.back))
    times = most.calls / most.need
    summed = sum(_ns(case, s) for w in again for s in _sums(case, w.dims))
    also = (
        f", and {seconds(case.work_s(summed))} of float32 sums of their gradients" if summed else ""
    )
    gone = f"{percent(part)} of the step in casts"
    gone += f", {percent(sums)} in sums, at half the width" if summed else ""
    return make_finding(
        RULE,
        claim=f"{who} casts the same weights {significant(times, 2)} times a step: "
        f"{seconds(case.work_s(ns))} of casts{also}",
        share=part + sums,
        bound=gain_bound(case, part + sums),
        place=at.place,
        line=at.line,
        module=site.module,
        confidence="high" if call is not None else "medium",
        evidence=(
            Evidence(
                what="casts of weights",
                text=f"{significant(most.calls)} a step of {_shape(most.dims)}, of which there "
                f"{'is' if most.need == 1 else 'are'} {significant(most.need)}",
                value=most.calls,
            ),
            Evidence(
                what="their time, with gradients cast back",
                text=f"{seconds(case.work_s(ns))} a step",
                value=1e3 * case.work_s(ns),
            ),
            Evidence(what="goes at most", text=gone, value=100 * (part + sums), source="derived"),
        ),
        change=_change(call),
        doubt=with_stacks(
            case, "" if call is not None else "where the cast is made was not found in the source"
        ),
    )


def _ns(case: Case, site: OpSite) -> float:
    return site.device_ns if case.on_gpu else site.host_ns


def _sums(case: Case, dims: Dims) -> tuple[OpSite, ...]:
    """Sums of float32 gradients of a shape in the backward."""
    return tuple(
        site
        for site in case.sites.ops
        if site.op in ("aten::add", "aten::add_")
        and site.phase == "backward"
        and site.types[:1] == ("float",)
        and site.dims[:1]
        and tuple(site.dims[0]) == dims
    )


def _autocast(case: Case, site: OpSite) -> tuple[At, SourceCall | None]:
    """The block that is entered too often: without its cache, else in the innermost loop."""
    written = list(calls_at(case.sources, site.place, ("autocast",)))
    written += [c for c in calls(case, (site,), ("autocast",)) if c not in written]
    uncached = [c for c in written if "cache_enabled=False" in c.text.replace(" ", "")]
    inner = sorted((c for c in written if c.loops), key=lambda c: -c.loops)
    chosen = next(iter(uncached or inner or written), None)
    return (at_call(case, chosen), chosen) if chosen is not None else (At(site.place), None)


def _written(case: Case, site: OpSite) -> tuple[At, SourceCall | None]:
    """The cast itself, in the function that was measured."""
    chosen = next(iter(written_at(case, site.place)), None) if site.place is not None else None
    return (at_call(case, chosen), chosen) if chosen is not None else (At(site.place), None)


def _change(call: SourceCall | None) -> str:
    text = call.text if call is not None else 'torch.autocast("cuda", dtype=torch.bfloat16)'
    if "cache_enabled" in text:
        kept = ", ".join(p for p in text[:-1].split(", ") if "cache_enabled" not in p)
        return f"with {kept}):"
    if call is not None and call.name != "autocast":
        return f"cast = {text}  # once, and kept"
    return f"with {text}:  # once, around the loop and not in it\n    for …:\n        …"


def _by_hand_finding(case: Case, one: ByHand) -> Finding:
    at = at_call(case, one.call)
    times, text = significant(one.calls, 2), one.call.text
    if one.loop:
        often = f"{times} times a step" if one.calls >= 2 else "again in every step"
        claim = f"`{text}` casts the same tensor {often}"
        change = f"cast = {text}  # once, before the loop"
    else:
        claim = f"tensors are cast to {one.through} and back {times} times a step"
        change = (
            f"# leave out {text}, or use an operator that computes in float32 inside:\n"
            "F.rms_norm(x, x.shape[-1:], weight)  # F.layer_norm and F.softmax likewise"
        )
        if one.through == "float64":
            change = f"# leave out {text}: stay in float32"
    return make_finding(
        RULE,
        claim=claim,
        share=one.share,
        place=at.place,
        line=at.line,
        confidence="medium",
        evidence=(
            Evidence(
                what="casts in the forward", text=f"{seconds(case.work_s(one.ns))} a step",
                value=1e3 * case.work_s(one.ns),
            ),
            Evidence(what="written", text=text, source="read"),
        ),
        change=change,
        doubt="" if one.loop else "the function may need the wider type between the two casts",
    )  # fmt: skip


def _all(case: Case, every: Sequence[Cast]) -> Iterator[Finding]:
    """Without shapes nothing tells what is cast: only how much."""
    ns = sum(c.ns for c in every)
    part = share(case, (c.site for c in every), ns)
    if part < ANY:
        return
    most = max(every, key=lambda c: c.ns).site
    yield make_finding(
        RULE,
        claim=f"casts between floating types take {percent(part)} of the step",
        share=part,
        place=most.place,
        module=most.module,
        confidence="low",
        evidence=(
            Evidence(
                what="casts",
                text=f"{seconds(case.work_s(ns))} a step",
                value=1e3 * case.work_s(ns),
            ),
            Evidence(
                what="how many",
                text=f"{significant(sum(c.site.calls for c in every))} a step",
                value=sum(c.site.calls for c in every),
            ),
        ),
        change="# one type throughout: autocast around the whole forward, or the model held in it\n"
        "model = model.to(torch.bfloat16)",
        doubt="what they are of is not known: each weight has to be cast once a step by autocast",
    )


def _shape(dims: Dims) -> str:
    return " × ".join(str(size) for size in dims)
