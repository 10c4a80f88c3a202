"""16-bit arithmetic on a device that has no instructions for it."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import (
    At,
    Cast,
    Product,
    at_call,
    at_line,
    calls,
    casts,
    costliest,
    emulated,
    least_ns,
    model_call,
    peak_of,
    products,
    share,
    sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.calls import SourceCall
from ridgeline.units import flops, percent, seconds, significant

RULE = Rule(id="emulated-bf16", family="precision", budget="work", needs=("sites",))
LEAST = 0.02
SLOWEST = 0.05
"""Of the float32 rate: the slowest emulation known (20 × slower)."""
_CASTS = ("autocast", "to", "bfloat16", "half", "set_default_dtype")


def look(case: Case) -> Iterator[Finding]:
    types = emulated(case)
    slow = [p for p in products(case) if p.arithmetic in types]
    if not slow:
        return
    dtype = max(types, key=lambda t: sum(p.ns for p in slow if p.arithmetic == t))
    to = _instead(case)
    now = sum(p.ns for p in slow)
    saved = now - sum(_needed(case, p, to) for p in slow)
    cast = casts(case) if to == "float32" else ()
    part = share(case, (p.site for p in slow), saved) + case.exposed(*(c.site for c in cast))
    if part < LEAST:
        return
    at, call = _at(case, slow, dtype)
    taken = case.device_share(now) if case.on_gpu else case.host_share(now)
    where = "this GPU" if case.on_gpu else "this processor"
    yield make_finding(
        RULE,
        claim=f"{dtype} products take {percent(taken)} of the step: {where} has no {dtype} "
        "instructions and emulates them",
        share=part,
        place=at.place,
        line=at.line,
        module=costliest(slow).site.module,
        confidence="high" if peak_of(case, dtype) is not None or case.emulated else "medium",
        evidence=_evidence(case, slow, dtype, to, cast),
        change=_change(case, call, dtype, to),
        doubt="16 bits also save memory",
    )


def _instead(case: Case) -> str:
    return "float16" if case.on_gpu and peak_of(case, "float16") is not None else "float32"


def _needed(case: Case, product: Product, to: str) -> float:
    """At least, in the type the device has: by measured rates of both where there are."""
    own, other = peak_of(case, product.arithmetic), peak_of(case, to)
    if own is not None and other is not None:
        return product.ns * min(own.value / other.value, 1.0)
    width = 2.0 if to == "float32" else 1.0
    known = other is not None and product.site.flops > 0
    least = least_ns(case, product, to, width) if known else 0.0
    return max(least, SLOWEST * product.ns)


def _at(case: Case, slow: Sequence[Product], dtype: str) -> tuple[At, SourceCall | None]:
    """The line that asks for the type: a call with it, any autocast, its name in the source; else
    where the model is called."""
    sites = [p.site for p in slow]
    short = {"bfloat16": "bfloat16", "float16": "half"}[dtype]
    every = calls(case, sites, _CASTS)
    named = [c for c in every if dtype in c.text or c.name == short]
    written = named or [c for c in every if c.name == "autocast"]
    if written:
        chosen = min(written, key=lambda call: _CASTS.index(call.name))
        return at_call(case, chosen), chosen
    for source in sources(case, sites):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Attribute) and node.attr in (dtype, short):
                return at_line(case, source.file, node.lineno), None
    return model_call(case, costliest(slow).site), None


def _evidence(
    case: Case, slow: Sequence[Product], dtype: str, to: str, cast: Sequence[Cast]
) -> tuple[Evidence, ...]:
    now = sum(p.ns for p in slow)
    text = f"{seconds(case.work_s(now))} a step"
    counted = [p for p in slow if p.site.flops]
    if counted:
        rate = sum(p.site.flops for p in counted) / sum(p.ns for p in counted) * 1e9
        text += f", at {flops(rate)}"
    told = [Evidence(what=f"{dtype} products", text=text, value=1e3 * case.work_s(now))]
    own, other = peak_of(case, dtype), peak_of(case, to)
    if own is not None and other is not None:
        ratio = significant(own.value / other.value, 2)
        text = f"{dtype} {flops(own.value)}, {to} {flops(other.value)}: {ratio} ×"
        told.append(Evidence(what=f"peaks ({own.source})", text=text))
    elif other is not None:
        told.append(Evidence(what=f"{to} peak ({other.source})", text=flops(other.value)))
    if cast:
        spent = case.work_s(sum(c.ns for c in cast))
        told.append(Evidence(what="casts", text=f"{seconds(spent)} a step", value=1e3 * spent))
    return tuple(told)


def _change(case: Case, call: SourceCall | None, dtype: str, to: str) -> str:
    if to == "float16":
        text = call.text if call is not None else 'torch.autocast("cuda", dtype=torch.bfloat16)'
        return f"{text.replace('bfloat16', 'float16')}  # with torch.amp.GradScaler"
    if call is None:
        return f"torch.float32  # not torch.{dtype} on this processor"
    if call.name == "autocast":
        return f"with {call.text[:-1]}, enabled=False):  # or without it"
    source = case.sources.get(call.file)
    line = source.line(call.line).partition("  #")[0] if source is not None else ""
    if call.name in ("to", "set_default_dtype") and dtype in call.text and not _alone(call, dtype):
        plain = call.text.replace(dtype, "float32")  # with what else it is asked for
    else:
        plain = call.on
    if call.text not in line:  # over several lines
        return f"{plain}  # not {call.text}"
    if line == call.text and plain == call.on:  # a line of its own: nothing of it is left
        return f"# without {call.text}"
    return f"{line.replace(call.text, plain, 1)}  # not {dtype} on this processor"


def _alone(call: SourceCall, dtype: str) -> bool:
    """The type is all the call asks for, so that without it there is nothing to call."""
    return call.name == "to" and call.text.endswith((f".to(torch.{dtype})", f".to({dtype})",
                                                     f".to(dtype=torch.{dtype})"))  # fmt: skip
