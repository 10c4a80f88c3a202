"""float32 products without tensor cores on a device that could run them in TF32."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._operators import (
    Product,
    costliest,
    flop_rate,
    least_ns,
    peak_of,
    plain_products,
    products,
    share,
    slowed,
)
from ridgeline.diagnosis.rules._user_code import (
    files_of,
    fix_code,
    located,
    located_call,
    model_call,
    setting,
    user_calls,
    user_sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Category, Place
from ridgeline.units import flops, percent, seconds

RULE = Rule(id="tf32-off", family="precision", budget="work", needs=("sites", "gpu"))
MIN_SHARE = 0.01


def look(case: Case) -> Iterator[Finding]:
    slow = plain_products(case, products(case))
    if not slow:
        return
    now = sum(product.ns for product in slow)
    saved = now - sum(least_ns(case, product, "tf32") for product in slow)
    part = share(case, (product.site for product in slow), saved)
    if part < MIN_SHARE:
        return
    place, written = _switched_off_at(case, slow)
    flags = case.capture.flags if case.capture is not None else None
    off = flags is not None and False in (flags.matmul_tf32, flags.cudnn_tf32)
    what = "matrix products" if any(p.kind == "matmul" for p in slow) else "convolutions"
    yield make_finding(
        RULE,
        claim=f"float32 {what} take {percent(case.device_share(now))} of the step on plain units, "
        "because TF32 is off",
        share=part,
        place=place,
        module=costliest(slow).site.module,
        confidence="low" if slowed(case) else "high" if off else "medium",
        evidence=_evidence(case, slow, now),
        fix="tf32",
        change=_change(case, place, slow, written),
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


def _change(case: Case, place: Place | None, slow: Sequence[Product], written: str) -> str:
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


def _evidence(case: Case, slow: Sequence[Product], now: float) -> list[Evidence]:
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
