"""16-bit arithmetic on a device that has no instructions for it."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, work_time
from ridgeline.diagnosis.rules._operators import (
    Cast,
    Product,
    casts,
    costliest,
    emulated,
    flop_rate,
    least_ns,
    peak_of,
    products,
    share,
)
from ridgeline.diagnosis.rules._user_code import (
    files_of,
    located,
    located_call,
    model_call,
    user_calls,
    user_sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, with_argument
from ridgeline.units import flops, percent, seconds, significant

RULE = Rule(id="emulated-bf16", family="precision", budget="work", needs=("sites",))
MIN_SHARE = 0.02
SLOWEST_EMULATION = 0.05
"""Rate of the slowest emulation known, as a share of the float32 rate: 20 × slower."""
_CASTS = ("autocast", "to", "bfloat16", "half", "set_default_dtype")


def look(case: Case) -> Iterator[Finding]:
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
    if part < MIN_SHARE:
        return
    place, call = _asked_at(case, slow, dtype)
    taken = case.device_share(now) if case.on_gpu else case.host_share(now)
    where = "this GPU" if case.on_gpu else "this processor"
    yield make_finding(
        RULE,
        claim=f"{dtype} products take {percent(taken)} of the step: {where} has no {dtype} "
        "instructions and emulates them",
        share=part,
        place=place,
        module=costliest(slow).site.module,
        confidence="high" if peak_of(case, dtype) is not None or case.emulated else "medium",
        evidence=_evidence(case, slow, dtype, to, cast),
        change=_change(case, call, dtype, to),
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


def _evidence(
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


def _change(case: Case, call: SourceCall | None, dtype: str, to: str) -> str:
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
