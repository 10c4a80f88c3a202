"""Products in float32 or TF32 where the device runs 16-bit ones at a multiple."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._precision import (
    Product,
    costliest,
    dtype_of,
    least_ns,
    likely_ns,
    peak_of,
    products,
    share,
    sixteen_bit,
    slowed,
)
from ridgeline.diagnose.rules._precision_plain import plain_products
from ridgeline.diagnose.rules._precision_source import At, model_call, statement
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.machine import Ceiling
from ridgeline.records.op_site import OpSite
from ridgeline.units import flops, percent, seconds, significant

RULE = Rule(
    id="autocast-missing",
    family="precision",
    title="Products run in float32 where 16 bits would run at a multiple",
    budget="work",
    needs=("sites",),
    looks_at="Matrix products, convolutions and attention with float32 inputs, on a device whose "
    "16-bit peak is at least 1.5 × its float32 one; what they would take there, by their FLOPs and "
    "bytes.",
    threshold="15 % of the step would go by the products alone, casts counted: mixed precision is "
    "a change of the training recipe, worth trying only where it pays clearly. What TF32 would "
    "save already (tf32-off) is not counted again.",
    why="Tensor cores multiply 16-bit numbers at twice the rate of TF32, and at 8 to 16 times that "
    "of plain float32; and a tensor of half the width takes half the time to read and write. "
    "Autocast runs the products in 16 bits, keeps the weights in float32, and leaves what needs "
    "the range or the mantissa (norms, softmax, losses) in float32.",
    fix="Put the forward pass and the loss under autocast:\n\n"
    "```python\n"
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
    "    loss = criterion(model(inputs), targets)\n"
    "loss.backward()\n"
    "```\n\n"
    "bfloat16 has float32's range and needs nothing else. GPUs before Ampere (V100, T4) have only "
    "float16, whose small gradients vanish without a scaler:\n\n"
    "```python\n"
    'scaler = torch.amp.GradScaler("cuda")\n'
    "scaler.scale(loss).backward()\n"
    "scaler.step(optimizer)\n"
    "scaler.update()\n"
    "```",
    wrong_when="The computation needs float32 (some physics, some losses, second derivatives), or "
    "the products are so small that casting costs more than it saves.",
)
WORTH = 0.15
"""Of the step, after TF32: likely saved by the products alone."""
STREAMED = 0.5
"""Of the time of operators between products: what their tensors at half the width save at most."""
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
    if share(case, sites, gone) < WORTH * (1 - already):
        return
    saved = sum(
        max(ns - least_ns(case, p, to.dtype, 0.5), 0.0) for p, ns in zip(wide, before, strict=True)
    )
    between = _between(case, every)
    part = share(case, sites, saved) + STREAMED * case.exposed(*between)
    yield _finding(case, wide, to, part, already)


def _before(case: Case, wide: Sequence[Product], every: Sequence[Product]) -> list[float]:
    """What each takes once TF32 is on, where it is off."""
    plain = {id(p) for p in plain_products(case, every)}
    return [likely_ns(case, p, "tf32") if id(p) in plain else p.ns for p in wide]


def _after(case: Case, wide: Sequence[Product], before: Sequence[float], to: Ceiling) -> float:
    """Their time in 16 bits as products go, with a cast of each input; never above `before`."""
    memory = case.device.ceiling("copy") if case.device is not None else None
    total = 0.0
    for product, ns in zip(wide, before, strict=True):
        # of a product's three tensors two are cast in the forward; in the backward the gradient
        # of the weight is cast back
        part = 1 / 3 if product.site.phase == "backward" else 2 / 3
        moved = product.site.bytes * CASTS * part
        cast = moved / memory.value * 1e9 if memory is not None else 0.0
        total += min(likely_ns(case, product, to.dtype, 0.5) + cast, ns)
    return total


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


def _finding(
    case: Case, wide: Sequence[Product], to: Ceiling, part: float, already: float
) -> Finding:
    now = sum(p.ns for p in wide)
    taken = case.device_share(now) if case.on_gpu else case.host_share(now)
    dtype = _most(wide)
    name = {"tf32": "TF32", "float32": "float32"}[dtype]
    at = model_call(case, costliest(wide).site)
    flags = case.capture.flags if case.capture is not None else None
    outside = " outside autocast" if flags is not None and flags.autocast else ""
    peak = peak_of(case, dtype)
    times = f" {significant(to.value / peak.value, 2)} × as fast" if peak is not None else " faster"
    after = " (beyond what TF32 saves)" if already >= 0.01 else ""
    return found(
        RULE,
        claim=f"{name} products{outside} take {percent(taken)} of the step; tensor cores run "
        f"{to.dtype} ones{times}{after}"
        if case.on_gpu
        else f"float32 products{outside} take {percent(taken)} of the step; this processor runs "
        f"{to.dtype} ones{times}",
        share=part,
        place=at.place,
        line=at.line,
        module=costliest(wide).site.module,
        confidence="low" if slowed(case) else "medium",
        evidence=_evidence(case, wide, to, now, taken),
        change=_change(case, at, to, _trains(case)),
        doubt="results change by rounding: compare losses" if to.dtype == "bfloat16"
        else "float16 needs a gradient scaler in training; compare losses",
    )  # fmt: skip


def _most(wide: Sequence[Product]) -> str:
    tf32 = sum(p.ns for p in wide if p.arithmetic == "tf32")
    return "tf32" if 2 * tf32 >= sum(p.ns for p in wide) else "float32"


def _trains(case: Case) -> bool:
    return any(site.phase in ("backward", "optimizer") for site in case.sites.ops)


def _evidence(
    case: Case, wide: Sequence[Product], to: Ceiling, now: float, taken: float
) -> tuple[Evidence, ...]:
    told = [
        Evidence(
            what="products with float32 inputs",
            text=f"{seconds(now / 1e9)} a step, {percent(taken)} of it",
            value=now / 1e6,
        )
    ]
    counted = [p for p in wide if p.site.flops]
    if counted:
        rate = sum(p.site.flops for p in counted) / sum(p.ns for p in counted) * 1e9
        text = f"{flops(rate)}; {to.dtype} peak here {flops(to.value)} ({to.source})"
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
        change += (
            '\nscaler = torch.amp.GradScaler("cuda")  # once, before the loop\n'
            "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
        )
    return change
