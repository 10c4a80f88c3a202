"""Products in float32 or TF32 where the device runs 16-bit ones at a multiple."""

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import (
    At,
    Product,
    costliest,
    dtype_of,
    gain_bound,
    least_ns,
    likely_ns,
    model_call,
    peak_of,
    plain_products,
    products,
    share,
    sixteen_bit,
    slowed,
    statement,
    with_stacks,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.machine import Ceiling
from ridgeline.records.sites import OpSite
from ridgeline.units import flops, percent, seconds

RULE = Rule(id="autocast-missing", family="precision", budget="work", needs=("sites",))
WORTH = 0.15
"""Of the step, after TF32: likely saved by the products alone."""
STREAMED = 0.5
"""Of the time of operators between products: what their tensors at half the width save at most."""
LIKELY_STREAMED_SHARE = 0.4
"""Share of the time of operators between convolutions that tensors of half the width likely save.
"""
_IN_FLOAT32 = ("softmax", "loss", "layer_norm", "layernorm", "group_norm", "groupnorm")
"""Words in the names of operators that autocast runs in float32."""
REACHED = 0.9
"""Of a datasheet's peak or bandwidth, at most: 0.81 was the most seen of cuBLAS on an H200, and the
rest is room for other devices. A ceiling that was measured is reached whole."""
TOLD = 0.01
"""Of the step: operators between products are in the claim from here on."""
CASTS = 1.5
"""Bytes moved to cast a float32 tensor, or to cast one back, to its size: whole and half."""


def look(case: Case) -> Iterator[Finding]:
    to = sixteen_bit(case)
    if to is None:
        return
    every = products(case)
    wide = [p for p in every if p.arithmetic in ("float32", "tf32")]
    if not wide:
        return
    before = _before(case, wide, every)
    sites = [p.site for p in wide]
    now = sum(p.ns for p in wide)
    gone = sum(before) - _after(case, wide, before, to)
    already = share(case, sites, now - sum(before))
    if share(case, sites, gone) + _streamed(case, wide, every) < WORTH * (1 - already):
        return
    after = sum(_least(case, p, ns, to) for p, ns in zip(wide, before, strict=True))
    bound = _Bound(
        now_ns=now,
        before_ns=sum(before),
        after_ns=after,
        products=share(case, sites, sum(before) - after),
        between=STREAMED * case.exposed(*_between(case, every)),
        already=already,
    )
    yield _finding(case, wide, to, bound)


class _Bound(Struct, frozen=True, kw_only=True):
    """What the share consists of."""

    now_ns: float
    before_ns: float
    """With TF32 on, where it is off."""
    after_ns: float
    """In 16 bits, at least."""
    products: float
    """Of the step: goes with them, at most."""
    between: float
    """Of the step: goes with the halved width of what is between them, at most."""
    already: float
    """Of the step: what TF32 saves."""

    @property
    def share(self) -> float:
        return self.products + self.between


def _least(case: Case, product: Product, before: float, to: Ceiling) -> float:
    least = least_ns(case, product, to.dtype, 0.5)
    counted = product.site.flops and to.source == "datasheet"
    return min(least / REACHED if counted else least, before)


def _before(case: Case, wide: Sequence[Product], every: Sequence[Product]) -> list[float]:
    """What each takes once TF32 is on, where it is off."""
    plain = {id(p) for p in plain_products(case, every)}
    return [likely_ns(case, p, "tf32") if id(p) in plain else p.ns for p in wide]


def _after(case: Case, wide: Sequence[Product], before: Sequence[float], to: Ceiling) -> float:
    """Their time in 16 bits as products go, with a cast of each input; never above `before`."""
    memory = case.device.ceiling("copy") if case.device is not None else None
    total = 0.0
    for product, ns in zip(wide, before, strict=True):
        moved = CASTS * _cast_bytes(product)
        cast = moved / memory.value * 1e9 if memory is not None else 0.0
        total += min(likely_ns(case, product, to.dtype, 0.5) + cast, ns)
    return total


def _cast_bytes(product: Product) -> float:
    """Return the bytes of a product's tensors that autocast casts. A matrix product has three
    tensors: two are cast in the forward, and the gradient of the weight in the backward. Of a
    convolution only the weight is cast, because norms, activations and sums around it keep 16 bits.
    """
    site = product.site
    if product.kind != "convolution":
        return site.bytes * (1 / 3 if site.phase == "backward" else 2 / 3)
    weight = site.dims[2 if "backward" in site.op else 1] if len(site.dims) > 2 else ()
    whole = bool(weight) and all(isinstance(side, int) for side in weight)
    return 4.0 * math.prod(weight) if whole else 0.0


def _streamed(case: Case, wide: Sequence[Product], every: Sequence[Product]) -> float:
    """Return the share of the step that operators between convolutions likely save, because their
    tensors then have half the width. Between matrix products the tensors are mostly float32 again,
    and nothing is counted."""
    convolving = sum(p.ns for p in wide if p.kind == "convolution")
    if 2 * convolving < sum(p.ns for p in wide):
        return 0.0
    narrow = [site for site in _between(case, every) if not _stays_wide(site)]
    return LIKELY_STREAMED_SHARE * case.exposed(*narrow)


def _stays_wide(site: OpSite) -> bool:
    """Return whether autocast runs an operator in float32."""
    names = (site.op, *site.within)
    return any(word in name.lower() for name in names for word in _IN_FLOAT32)


def _between(case: Case, every: Sequence[Product]) -> tuple[OpSite, ...]:
    """float32 operators of forward and backward that are no products."""
    busy = {id(p.site) for p in every}
    return tuple(
        site
        for site in case.sites.ops
        if site.phase in ("forward", "backward")
        and id(site) not in busy
        and dtype_of(site) in ("float32", "")
        and (site.device_ns or not case.on_gpu)
        and not any("HtoD" in k.name or "DtoH" in k.name for k in site.kernels)
    )


def _finding(case: Case, wide: Sequence[Product], to: Ceiling, bound: _Bound) -> Finding:
    at = model_call(case, costliest(wide).site)
    return make_finding(
        RULE,
        claim=_claim(case, wide, to, bound),
        share=bound.share,
        bound=gain_bound(case, bound.share),
        place=at.place,
        line=at.line,
        module=costliest(wide).site.module,
        confidence="low" if slowed(case) else "medium",
        evidence=_evidence(case, wide, to, bound),
        change=_change(case, at, to, _trains(case)),
        doubt=with_stacks(
            case, "results change by rounding: compare losses" if to.dtype == "bfloat16"
            else "float16 needs a gradient scaler in training; compare losses",
        ),
    )  # fmt: skip


def _claim(case: Case, wide: Sequence[Product], to: Ceiling, bound: _Bound) -> str:
    """In times, whose difference is the share: a ratio of two peaks is not what products gain."""
    name = {"tf32": "TF32", "float32": "float32"}[_most(wide)]
    flags = case.capture.flags if case.capture is not None else None
    outside = " outside autocast" if flags is not None and flags.autocast else ""
    taken = case.device_share(bound.now_ns) if case.on_gpu else case.host_share(bound.now_ns)
    on = f"{seconds(case.work_s(bound.before_ns))} with TF32" if bound.already >= TOLD else ""
    now = seconds(case.work_s(bound.now_ns)) + (f", {on}" if on else "")
    wide_open = percent(bound.between / STREAMED)
    half = f"; the {wide_open} between them runs at half the width" if bound.between >= TOLD else ""
    return (
        f"{name} products{outside} take {percent(taken)} of the step: {now}, and "
        f"{seconds(case.work_s(bound.after_ns))} or more in {to.dtype}{half}"
    )


def _most(wide: Sequence[Product]) -> str:
    tf32 = sum(p.ns for p in wide if p.arithmetic == "tf32")
    return "tf32" if 2 * tf32 >= sum(p.ns for p in wide) else "float32"


def _trains(case: Case) -> bool:
    return any(site.phase in ("backward", "optimizer") for site in case.sites.ops)


def _evidence(
    case: Case, wide: Sequence[Product], to: Ceiling, bound: _Bound
) -> tuple[Evidence, ...]:
    between = f", {percent(bound.between)} in operators between them, half of their time"
    beyond = ", beyond what TF32 saves" if bound.already >= TOLD else ""
    told = [
        Evidence(
            what="goes at most",
            text=f"{percent(bound.products)} of the step in products"
            f"{between if bound.between >= TOLD / 10 else ''}{beyond}",
            value=100 * bound.share,
            source="derived",
        )
    ]
    counted = [p for p in wide if p.site.flops]
    if counted:
        rate = sum(p.site.flops for p in counted) / sum(p.ns for p in counted) * 1e9
        own = peak_of(case, _most(wide))
        text = f"{flops(rate)}"
        text += f" of {flops(own.value)}" if own is not None else ""
        text += f"; the {to.dtype} peak is {flops(to.value)} ({to.source})"
        told.append(Evidence(what="their rate", text=text, value=rate))
    flags = case.capture.flags if case.capture is not None else None
    if flags is not None:
        text = ", ".join(flags.autocast) or "not seen around the forward"
        told.append(Evidence(what="autocast", text=text, source="read"))
    return tuple(told)


def _change(case: Case, at: At, to: Ceiling, trains: bool) -> str:
    device = "cuda" if case.on_gpu else "cpu"
    written = statement(case, at) or "loss = criterion(model(inputs), targets)"
    if written.startswith("return "):
        written = "outputs = model(inputs)"
    change = f'with torch.autocast("{device}", dtype=torch.{to.dtype}):\n    {written}'
    if to.dtype == "float16" and trains:
        return (
            'scaler = torch.amp.GradScaler("cuda")  # once, before the loop\n\n'
            f"# in each step:\n{change}\n"
            "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
        )
    return change
