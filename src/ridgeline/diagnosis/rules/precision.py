"""Products in a slower precision than the device offers, and a loss scale that never settles."""

import ast
import math
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import (
    Rule,
    derived,
    gain_without,
    make_finding,
    measured,
    read,
    work_time,
)
from ridgeline.diagnosis.rules._operators import (
    Cast,
    Product,
    casts,
    costliest,
    dtype_of,
    emulated,
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
from ridgeline.diagnosis.rules._user_code import (
    autocast,
    files_of,
    fix_code,
    located,
    located_call,
    model_call,
    place_at,
    setting,
    statement_at,
    user_calls,
    user_sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.machine import Ceiling
from ridgeline.records.run import Step
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Category, Place
from ridgeline.source.calls import SourceCall, with_argument
from ridgeline.units import flops, percent, seconds, significant

AUTOCAST_MISSING = Rule(id="autocast-missing", family="precision", budget="work", needs=("sites",))
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


def autocast_missing(case: Case) -> Iterator[Finding]:
    """Products in float32 or TF32 on a device that runs 16-bit products several times as fast."""
    to = sixteen_bit(case)
    every = products(case)
    wide = [p for p in every if p.arithmetic in ("float32", "tf32")]
    if to is None or not wide:
        return
    plain = {id(p) for p in plain_products(case, every)}
    # the time of each product once TF32 is on
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
        AUTOCAST_MISSING,
        claim=f"{name} products{outside} take {percent(taken)} of the step: "
        f"{seconds(case.work_s(now))}{tf32}, and {seconds(case.work_s(after))} or more in "
        f"{to.dtype}{half}",
        share=in_products + streamed,
        bound=_bound(case, share(case, sites, now - after) + streamed),
        place=place,
        module=most.site.module,
        confidence="low" if slowed(case) else "medium",
        evidence=_autocast_evidence(case, wide, to, in_products, streamed, by_tf32),
        fix="autocast" if to.dtype == "bfloat16" else "autocast-fp16",
        change=_autocast_change(case, place, to),
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


def _autocast_evidence(
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


def _autocast_change(case: Case, place: Place | None, to: Ceiling) -> str:
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


EMULATED_BF16 = Rule(id="emulated-bf16", family="precision", budget="work", needs=("sites",))
MIN_BF16_SHARE = 0.02
SLOWEST_EMULATION = 0.05
"""Rate of the slowest emulation known, as a share of the float32 rate: 20 × slower."""
_CASTS = ("autocast", "to", "bfloat16", "half", "set_default_dtype")


def emulated_bf16(case: Case) -> Iterator[Finding]:
    """16-bit arithmetic on a device that has no instructions for it."""
    types = emulated(case)
    slow = [p for p in products(case) if p.arithmetic in types]
    if not slow:
        return
    dtype = max(types, key=lambda t: sum(p.ns for p in slow if p.arithmetic == t))
    to = "float16" if case.on_gpu and peak_of(case, "float16") is not None else "float32"
    now = sum(p.ns for p in slow)
    saved = now - sum(_needed_ns(case, p, to) for p in slow)
    cast = casts(case) if to == "float32" else ()
    part = share(case, (p.site for p in slow), saved) + case.exposed(*(c.site for c in cast))
    if part < MIN_BF16_SHARE:
        return
    place, call = _asked_at(case, slow, dtype)
    taken = case.device_share(now) if case.on_gpu else case.host_share(now)
    where = "this GPU" if case.on_gpu else "this processor"
    yield make_finding(
        EMULATED_BF16,
        claim=f"{dtype} products take {percent(taken)} of the step: {where} has no {dtype} "
        "instructions and emulates them",
        share=part,
        place=place,
        module=costliest(slow).site.module,
        confidence="high" if peak_of(case, dtype) is not None or case.emulated else "medium",
        evidence=_bf16_evidence(case, slow, dtype, to, cast),
        change=_bf16_change(case, call, dtype, to),
        doubt="16 bits also save memory",
    )


def _needed_ns(case: Case, product: Product, to: str) -> float:
    """Return the least time in a type that the device has: by measured rates of both types if they
    are known."""
    own, other = peak_of(case, product.arithmetic), peak_of(case, to)
    if own is not None and other is not None:
        return product.ns * min(own.value / other.value, 1.0)
    width = 2.0 if to == "float32" else 1.0
    known = other is not None and product.site.flops > 0
    least = least_ns(case, product, to, width) if known else 0.0
    return max(least, SLOWEST_EMULATION * product.ns)


def _asked_at(
    case: Case, slow: Sequence[Product], dtype: str
) -> tuple[Place | None, SourceCall | None]:
    """Return the line that asks for the type: a call with it, else any autocast, else a line with
    its name, else the call of the model."""
    files = files_of(p.site for p in slow)
    short = {"bfloat16": "bfloat16", "float16": "half"}[dtype]
    every = user_calls(case, _CASTS, files)
    named = [c for c in every if dtype in c.argument_names or c.name in (dtype, short)]
    written = named or [c for c in every if c.name == "autocast"]
    if written:
        chosen = min(written, key=lambda call: _CASTS.index(call.name))
        return located_call(case, chosen), chosen
    for source in user_sources(case, files):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Attribute) and node.attr in (dtype, short):
                return located(case, source.file, node.lineno), None
    return model_call(case, costliest(slow).site), None


def _bf16_evidence(
    case: Case, slow: Sequence[Product], dtype: str, to: str, cast: Sequence[Cast]
) -> list[Evidence]:
    now = case.work_s(sum(p.ns for p in slow))
    rate = f", at {flops(flop_rate(slow))}" if flop_rate(slow) else ""
    facts = [measured(f"{dtype} products", f"{seconds(now)} a step{rate}", 1e3 * now)]
    own, other = peak_of(case, dtype), peak_of(case, to)
    if own is not None and other is not None:
        ratio = significant(own.value / other.value, 2)
        text = f"{dtype} {flops(own.value)}, {to} {flops(other.value)}: {ratio} ×"
        facts.append(measured(f"peaks ({own.source})", text))
    elif other is not None:
        facts.append(measured(f"{to} peak ({other.source})", flops(other.value)))
    if cast:
        facts.append(work_time(case, "casts", sum(c.ns for c in cast)))
    return facts


def _bf16_change(case: Case, call: SourceCall | None, dtype: str, to: str) -> str:
    if to == "float16":
        text = call.text if call is not None else 'torch.autocast("cuda", dtype=torch.bfloat16)'
        return f"{text.replace('bfloat16', 'float16')}  # with torch.amp.GradScaler"
    if call is None:
        return f"torch.float32  # not torch.{dtype} on this processor"
    if call.name == "autocast":
        return f"with {with_argument(call.text, 'enabled=False')}:  # or without it"
    source = case.sources.get(call.file)
    line = source.line(call.line).partition("  #")[0] if source is not None else ""
    given = call.name in ("to", "set_default_dtype") and dtype in call.argument_names
    kept = call.text.replace(dtype, "float32")  # with what else the call asks for
    plain = kept if given and not _asks_only_for(call, dtype) else call.on
    if call.text not in line:  # over several lines
        return f"{plain}  # not {call.text}"
    if line == call.text and plain == call.on:  # a line of its own: nothing of it remains
        return f"# without {call.text}"
    return f"{line.replace(call.text, plain, 1)}  # not {dtype} on this processor"


def _asks_only_for(call: SourceCall, dtype: str) -> bool:
    """Return whether the type is all that the call asks for."""
    only = call.argument_count == 1 and call.argument_names <= {dtype, "torch", "dtype"}
    return call.name == "to" and only


TF32_OFF = Rule(id="tf32-off", family="precision", budget="work", needs=("sites", "gpu"))
MIN_TF32_SHARE = 0.01


def tf32_off(case: Case) -> Iterator[Finding]:
    """float32 products without tensor cores on a device that could run them in TF32."""
    slow = plain_products(case, products(case))
    if not slow:
        return
    now = sum(product.ns for product in slow)
    saved = now - sum(least_ns(case, product, "tf32") for product in slow)
    part = share(case, (product.site for product in slow), saved)
    if part < MIN_TF32_SHARE:
        return
    place, written = _switched_off_at(case, slow)
    flags = case.capture.flags if case.capture is not None else None
    off = flags is not None and False in (flags.matmul_tf32, flags.cudnn_tf32)
    what = "matrix products" if any(p.kind == "matmul" for p in slow) else "convolutions"
    yield make_finding(
        TF32_OFF,
        claim=f"float32 {what} take {percent(case.device_share(now))} of the step on plain units, "
        "because TF32 is off",
        share=part,
        place=place,
        module=costliest(slow).site.module,
        confidence="low" if slowed(case) else "high" if off else "medium",
        evidence=_tf32_evidence(case, slow, now),
        fix="tf32",
        change=_tf32_change(case, place, slow, written),
        doubt="rounding of products changes from 23 bits of mantissa to 10",
    )


def _switched_off_at(case: Case, slow: Sequence[Product]) -> tuple[Place | None, str]:
    """Return the line that switches TF32 off, with its text; else the call of the model and ""."""
    files = files_of(product.site for product in slow)
    for source in user_sources(case, files):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Assign) and _switches_off(node, {p.kind for p in slow}):
                return located(case, source.file, node.lineno), source.line(node.lineno)
    for call in user_calls(case, ("set_float32_matmul_precision",), files):
        if "highest" in call.text:
            return located_call(case, call), call.text
    return model_call(case, costliest(slow).site), ""


def _switches_off(node: ast.Assign, kinds: set[Category]) -> bool:
    """Return whether an assignment is `torch.backends.cuda.matmul.allow_tf32 = False`, cuDNN's, or
    either of them under its newer name."""
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    for target in node.targets:
        written = ast.unparse(target)
        of = "convolution" if "cudnn" in written else "matmul"
        old = written.endswith("allow_tf32") and value is False
        new = written.endswith("fp32_precision") and value == "ieee"
        if of in kinds and (old or new):
            return True
    return False


def _tf32_change(case: Case, place: Place | None, slow: Sequence[Product], written: str) -> str:
    if written.startswith("torch.backends") or ".allow_tf32" in written:
        return written.partition("#")[0].strip().replace("False", "True").replace("ieee", "tf32")
    if "highest" in written:
        return written.replace("highest", "high")
    matrices = all(p.kind == "matmul" for p in slow)
    if matrices and (code := fix_code(case, place, setting("tf32"))):
        return code
    lines = ["# at the start of the program"]
    if any(p.kind == "matmul" for p in slow):
        lines.append('torch.set_float32_matmul_precision("high")')
    if any(p.kind == "convolution" for p in slow):
        lines.append("torch.backends.cudnn.allow_tf32 = True")
    return "\n".join(lines)


def _tf32_evidence(case: Case, slow: Sequence[Product], now: float) -> list[Evidence]:
    full, tf32 = peak_of(case, "float32"), peak_of(case, "tf32")
    flags = case.capture.flags if case.capture is not None else None
    most = costliest(slow)
    text = f"{seconds(now / 1e9)} a step, {percent(case.device_share(now))} of it"
    facts = [measured("float32 products on plain units", text, now / 1e6)]
    rate = flop_rate(slow)
    if rate and full is not None and tf32 is not None:
        text = f"{flops(rate)}; peaks here: float32 {flops(full.value)}, "
        facts.append(
            measured("their rate", f"{text}TF32 {flops(tf32.value)} ({tf32.source})", rate)
        )
    if most.site.kernels:
        facts.append(measured("costliest kernel", most.site.kernels[0].name[:100]))
    if flags is not None:
        text = f"matmul {_on(flags.matmul_tf32)}, cuDNN {_on(flags.cudnn_tf32)}"
        facts.append(read("TF32 allowed", text))
    return facts


def _on(flag: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[flag]


LOSS_SCALE_THRASH = Rule(
    id="loss-scale-thrash", family="precision", budget="work", needs=("capture",)
)
MIN_SKIPPED_SHARE = 0.05
MIN_SKIPPED_STEPS = 3
MAX_FIRST_SKIPS = 24
"""Steps that a run may skip in a row at its beginning: it takes so many to go from the default
scale of 65,536 down to 2 ** -8."""
MIN_STEPS = 20
"""With fewer steps a share of them says little."""
_OWN_SETTINGS = ("init_scale", "growth_interval", "growth_factor", "backoff_factor")


def loss_scale_thrash(case: Case) -> Iterator[Finding]:
    """A gradient scaler that throws steps away."""
    every = [step for step in case.steps if step.optimizer_steps or step.skipped]
    steps = _settled(every)
    skipped = sum(step.skipped for step in steps)
    least = max(MIN_SKIPPED_STEPS, MIN_SKIPPED_SHARE * len(steps))
    if len(steps) < MIN_STEPS or skipped < least:
        return
    part = skipped / len(steps)
    files = files_of(case.sites.ops[:200])
    call = next(iter(user_calls(case, ("GradScaler",), files)), None)
    all_skipped = skipped == len(steps)
    in_row = _longest_run(steps)
    yield make_finding(
        LOSS_SCALE_THRASH,
        claim=f"the gradient scaler threw away {skipped} of {len(steps)} steps: their gradients "
        f"{'are infinite at any scale' if all_skipped else 'overflow float16'}",
        share=part,
        place=located_call(case, call) or _optimizer_step(case),
        confidence="medium" if all_skipped else "high",
        evidence=(
            measured("skipped steps", f"{skipped} of {len(steps)}, {percent(part)}", skipped),
            measured("in a row at most", str(in_row), in_row),
            *([read("the scaler", call.text)] if call is not None else ()),
        ),
        change=_loss_scale_change(case, call),
        doubt="a step takes as long as before: what is gained is that each one counts",
    )


def _settled(every: Sequence[Step]) -> list[Step]:
    """Return the steps without the skipped ones at the beginning, unless those are more than a
    search for a scale needs."""
    first = next((i for i, step in enumerate(every) if not step.skipped), len(every))
    return list(every[first:] if first <= MAX_FIRST_SKIPS else every)


def _longest_run(steps: Sequence[Step]) -> int:
    longest = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        longest = max(longest, run)
    return longest


def _optimizer_step(case: Case) -> Place | None:
    optimizers = case.capture.optimizers if case.capture is not None else ()
    place = place_at(next((o.place for o in optimizers if o.anchor and o.place), ""))
    return located(case, place.file, place.line) if place is not None else None


def _loss_scale_change(case: Case, call: SourceCall | None) -> str:
    if call is not None and call.keywords:
        return f"{call.without(*_OWN_SETTINGS)}  # its own settings: growth after 2,000 good steps"
    if "bfloat16" in emulated(case):
        return "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    return 'with torch.autocast("cuda", dtype=torch.bfloat16):  # no scaler needed\n    …'
