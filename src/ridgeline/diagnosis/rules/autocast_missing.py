"""Products in float32 or TF32 on a device that runs 16-bit products several times as fast."""

import math
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._operators import (
    Product,
    costliest,
    dtype_of,
    flop_rate,
    gain_bound,
    least_ns,
    likely_ns,
    peak_of,
    plain_products,
    products,
    share,
    sixteen_bit,
    slowed,
    with_stacks,
)
from ridgeline.diagnosis.rules._user_code import autocast, fix_code, model_call, statement_at
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.machine import Ceiling
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.units import flops, percent, seconds

RULE = Rule(id="autocast-missing", family="precision", budget="work", needs=("sites",))
MIN_LIKELY_SHARE = 0.15
"""Share of the step, once TF32 is on, that must likely be saved before autocast is advised."""
MAX_STREAMED_SHARE = 0.5
"""Share of the time of operators between products that tensors of half the width save at most."""
LIKELY_STREAMED_SHARE = 0.4
"""Share of the time of operators between convolutions that tensors of half the width likely save.
"""
_IN_FLOAT32 = ("softmax", "loss", "layer_norm", "layernorm", "group_norm", "groupnorm")
"""Words in the names of operators that autocast runs in float32."""
MAX_PEAK_SHARE = 0.9
"""Largest share of a datasheet's peak or bandwidth that a product may reach. cuBLAS on an H200
reached 0.81 at most; the rest is room for other devices. A measured ceiling may be reached whole.
"""
MIN_CLAIMED_SHARE = 0.01
"""Share of the step from which operators between products, or TF32, appear in the claim."""
CAST_TRAFFIC = 1.5
"""Bytes that a cast of a float32 tensor to 16 bits moves, as a multiple of the tensor's size."""


def look(case: Case) -> Iterator[Finding]:
    to = sixteen_bit(case)
    every = products(case)
    wide = [p for p in every if p.arithmetic in ("float32", "tf32")]
    if to is None or not wide:
        return
    plain = {id(p) for p in plain_products(case, every)}
    # What each product takes once TF32 is on.
    before = [likely_ns(case, p, "tf32") if id(p) in plain else p.ns for p in wide]
    sites = [p.site for p in wide]
    now, with_tf32 = sum(p.ns for p in wide), sum(before)
    by_tf32 = share(case, sites, now - with_tf32)
    likely = share(case, sites, with_tf32 - _likely_after(case, wide, before, to))
    if likely + _likely_streamed(case, wide, every) < MIN_LIKELY_SHARE * (1 - by_tf32):
        return
    after = sum(_least(case, p, ns, to) for p, ns in zip(wide, before, strict=True))
    in_products = share(case, sites, with_tf32 - after)
    streamed = MAX_STREAMED_SHARE * case.exposed(*_between(case, every))
    most = costliest(wide)
    place = model_call(case, most.site)
    half = ""
    if streamed >= MIN_CLAIMED_SHARE:
        between = percent(streamed / MAX_STREAMED_SHARE)
        half = f"; the {between} between them runs at half the width"
    tf32 = f", {seconds(case.work_s(with_tf32))} with TF32" if by_tf32 >= MIN_CLAIMED_SHARE else ""
    flags = case.capture.flags if case.capture is not None else None
    outside = " outside autocast" if flags is not None and flags.autocast else ""
    name = "TF32" if _main_arithmetic(wide) == "tf32" else "float32"
    taken = case.device_share(now) if case.on_gpu else case.host_share(now)
    yield make_finding(
        RULE,
        claim=f"{name} products{outside} take {percent(taken)} of the step: "
        f"{seconds(case.work_s(now))}{tf32}, and {seconds(case.work_s(after))} or more in "
        f"{to.dtype}{half}",
        share=in_products + streamed,
        bound=_bound(case, share(case, sites, now - after) + streamed),
        place=place,
        module=most.site.module,
        confidence="low" if slowed(case) else "medium",
        evidence=_evidence(case, wide, to, in_products, streamed, by_tf32),
        fix="autocast" if to.dtype == "bfloat16" else "autocast-fp16",
        change=_change(case, place, to),
        doubt=with_stacks(
            case,
            "results change by rounding: compare losses"
            if to.dtype == "bfloat16"
            else "float16 needs a gradient scaler in training; compare losses",
        ),
    )


def _bound(case: Case, part: float) -> float:
    """Return the bound. Autocast alone also gains what TF32 would, which the finding's share leaves
    to that switch: where GPT-2 in float32 became 2.5 × as fast, TF32 was most of it."""
    return gain_bound(case, part) or gain_without(part)


def _least(case: Case, product: Product, before: float, to: Ceiling) -> float:
    least = least_ns(case, product, to.dtype, 0.5)
    counted = product.site.flops and to.source == "datasheet"
    return min(least / MAX_PEAK_SHARE if counted else least, before)


def _likely_after(
    case: Case, wide: Sequence[Product], before: Sequence[float], to: Ceiling
) -> float:
    """Return the products' likely time in 16 bits with the casts of their inputs. No product takes
    longer than before."""
    memory = case.device.ceiling("copy") if case.device is not None else None
    total = 0.0
    for product, ns in zip(wide, before, strict=True):
        moved = CAST_TRAFFIC * _cast_bytes(product)
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


def _likely_streamed(case: Case, wide: Sequence[Product], every: Sequence[Product]) -> float:
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
    """Return the float32 operators of forward and backward that are no products."""
    multiplying = {id(p.site) for p in every}
    return tuple(
        site
        for site in case.sites.ops
        if site.phase in ("forward", "backward")
        and id(site) not in multiplying
        and dtype_of(site) in ("float32", "")
        and (site.device_ns or not case.on_gpu)
        and not any("HtoD" in k.name or "DtoH" in k.name for k in site.kernels)
    )


def _main_arithmetic(wide: Sequence[Product]) -> str:
    tf32 = sum(p.ns for p in wide if p.arithmetic == "tf32")
    return "tf32" if 2 * tf32 >= sum(p.ns for p in wide) else "float32"


def _evidence(
    case: Case,
    wide: Sequence[Product],
    to: Ceiling,
    in_products: float,
    streamed: float,
    by_tf32: float,
) -> list[Evidence]:
    text = f"{percent(in_products)} of the step in products"
    if streamed >= MIN_CLAIMED_SHARE / 10:
        text += f", {percent(streamed)} in operators between them, half of their time"
    if by_tf32 >= MIN_CLAIMED_SHARE:
        text += ", beyond what TF32 saves"
    facts = [derived("goes at most", text, 100 * (in_products + streamed))]
    if rate := flop_rate(wide):
        own = peak_of(case, _main_arithmetic(wide))
        text = flops(rate) + (f" of {flops(own.value)}" if own is not None else "")
        text += f"; the {to.dtype} peak is {flops(to.value)} ({to.source})"
        facts.append(measured("their rate", text, rate))
    flags = case.capture.flags if case.capture is not None else None
    if flags is not None:
        facts.append(read("autocast", ", ".join(flags.autocast) or "not seen around the forward"))
    return facts


def _change(case: Case, place: Place | None, to: Ceiling) -> str:
    device = "cuda" if case.on_gpu else "cpu"
    fix = "autocast" if to.dtype == "bfloat16" else "autocast-fp16"
    if code := fix_code(case, place, *autocast(case, fix, to.dtype)):
        return code
    written = statement_at(case, place) or "loss = criterion(model(inputs), targets)"
    if written.startswith("return "):
        written = "outputs = model(inputs)"
    change = f'with torch.autocast("{device}", dtype=torch.{to.dtype}):\n    {written}'
    trains = any(site.phase in ("backward", "optimizer") for site in case.sites.ops)
    if to.dtype == "float16" and trains:
        return (
            'scaler = torch.amp.GradScaler("cuda")  # once, before the loop\n\n'
            f"# in each step:\n{change}\n"
            "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
        )
    return change
