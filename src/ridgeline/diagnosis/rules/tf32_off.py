"""float32 products on plain units, beside tensor cores that could run them in TF32."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import (
    At,
    Product,
    at_line,
    calls,
    costliest,
    least_ns,
    model_call,
    peak_of,
    plain_products,
    products,
    share,
    slowed,
    sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Category
from ridgeline.units import flops, percent, seconds

RULE = Rule(id="tf32-off", family="precision", budget="work", needs=("sites", "gpu"))
LEAST = 0.01
SETTINGS = ("set_float32_matmul_precision",)


def look(case: Case) -> Iterator[Finding]:
    slow = plain_products(case, products(case))
    if not slow:
        return
    now = sum(one.ns for one in slow)
    saved = now - sum(least_ns(case, one, "tf32") for one in slow)
    part = share(case, (one.site for one in slow), saved)
    if part < LEAST:
        return
    at, written = _at(case, slow)
    what = "matrix products" if any(p.kind == "matmul" for p in slow) else "convolutions"
    yield make_finding(
        RULE,
        claim=f"float32 {what} take {percent(case.device_share(now))} of the step on plain units, "
        "because TF32 is off",
        share=part,
        place=at.place,
        line=at.line,
        module=costliest(slow).site.module,
        confidence="low" if slowed(case) else "high" if _off(case) else "medium",
        evidence=_evidence(case, slow, now),
        change=_change(slow, written),
        doubt="rounding of products changes from 23 bits of mantissa to 10",
    )


def _off(case: Case) -> bool:
    flags = case.capture.flags if case.capture is not None else None
    return flags is not None and False in (flags.matmul_tf32, flags.cudnn_tf32)


def _at(case: Case, slow: Sequence[Product]) -> tuple[At, str]:
    """The line that switches it off, with its text; else where the model is called."""
    sites = [one.site for one in slow]
    for source in sources(case, sites):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Assign) and _switches_off(node, {p.kind for p in slow}):
                return at_line(case, source.file, node.lineno), source.line(node.lineno)
    for call in calls(case, sites, SETTINGS):
        if "highest" in call.text:
            return at_line(case, call.file, call.line), call.text
    return model_call(case, costliest(slow).site), ""


def _switches_off(node: ast.Assign, kinds: set[Category]) -> bool:
    """`torch.backends.cuda.matmul.allow_tf32 = False`, cuDNN's, or either's in the newer words."""
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    for target in node.targets:
        written = ast.unparse(target)
        of = "convolution" if "cudnn" in written else "matmul"
        old = written.endswith("allow_tf32") and value is False
        new = written.endswith("fp32_precision") and value == "ieee"
        if of in kinds and (old or new):
            return True
    return False


def _change(slow: Sequence[Product], written: str) -> str:
    if written.startswith("torch.backends") or ".allow_tf32" in written:
        return written.partition("#")[0].strip().replace("False", "True").replace("ieee", "tf32")
    if "highest" in written:
        return written.replace("highest", "high")
    lines = ["# at the start of the program"]
    if any(p.kind == "matmul" for p in slow):
        lines.append('torch.set_float32_matmul_precision("high")')
    if any(p.kind == "convolution" for p in slow):
        lines.append("torch.backends.cudnn.allow_tf32 = True")
    return "\n".join(lines)


def _evidence(case: Case, slow: Sequence[Product], now: float) -> tuple[Evidence, ...]:
    full, tf32 = peak_of(case, "float32"), peak_of(case, "tf32")
    flags = case.capture.flags if case.capture is not None else None
    counted = [p for p in slow if p.site.flops]
    most = costliest(slow)
    told = [
        Evidence(
            what="float32 products on plain units",
            text=f"{seconds(now / 1e9)} a step, {percent(case.device_share(now))} of it",
            value=now / 1e6,
        )
    ]
    if counted and full is not None and tf32 is not None:
        rate = sum(p.site.flops for p in counted) / sum(p.ns for p in counted) * 1e9
        told.append(
            Evidence(
                what="their rate",
                text=f"{flops(rate)}; peaks here: float32 {flops(full.value)}, "
                f"TF32 {flops(tf32.value)} ({tf32.source})",
                value=rate,
            )
        )
    if most.site.kernels:
        told.append(Evidence(what="costliest kernel", text=most.site.kernels[0].name[:100]))
    if flags is not None:
        text = f"matmul {_on(flags.matmul_tf32)}, cuDNN {_on(flags.cudnn_tf32)}"
        told.append(Evidence(what="TF32 allowed", text=text, source="read"))
    return tuple(told)


def _on(flag: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[flag]
