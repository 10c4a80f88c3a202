"""Element-wise operators in a row, each of which passes over memory."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import by_function, kernels
from ridgeline.diagnosis.rules._operators import (
    PRODUCT_CATEGORIES,
    exposed_work,
    gain_bound,
    slowed,
    spent_ns,
    with_stacks,
)
from ridgeline.diagnosis.rules._user_code import model_call
from ridgeline.records.finding import Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.trace.analyses.kernels import category_of

RULE = Rule(id="fusable-chain", family="launch", budget="work", needs=("sites",))

MIN_CHAIN_LENGTH = 4
"""Operators of a chain in the forward. A fused kernel saves little of two or three."""
MIN_SHARE = 0.2
"""Share of the step that advice must save if it changes how a program is run."""
MIN_CALL_NS = {True: 20_000.0, False: 100_000.0}
"""Shortest call that counts, on a GPU and on a CPU. Starting an operator is a part of the time of a
shorter one."""
FUSED_CALLS = 2.0
"""A fused forward and backward move at least as much memory as this many calls: forward reads one
tensor and writes one, backward reads two and writes one; a call moves two or three."""
_NAMES = frozenset(f"aten::{name}{end}" for end in ("", "_") for name in (
    "mul", "add", "sub", "div", "pow", "tanh", "exp", "sigmoid", "neg", "sqrt", "rsqrt", "square",
    "where", "clamp", "abs", "log", "log1p", "expm1", "reciprocal", "maximum", "minimum", "erf",
    "cos", "sin", "masked_fill", "lerp", "addcmul", "addcdiv", "rsub", "sign", "clamp_min",
    "clamp_max", "gt", "lt", "ge", "le", "eq", "ne", "logical_and", "logical_not", "bitwise_and",
    "softplus", "relu", "silu", "bernoulli", "true_divide",
))  # fmt: skip
_BACKWARD = frozenset(f"aten::{name}_backward" for name in (
    "tanh", "sigmoid", "threshold", "softplus", "silu",
))  # fmt: skip
_MERGED_KINDS = ("elementwise", "norm", "reduction")
_CASTS = ("aten::copy_", "aten::_to_copy")
_KEPT_WHOLE = "pool"
"""A word in the names of pooling operators. Pooling reads neighbouring elements, so that a compiler
starts a kernel of its own for it."""
MIN_MERGED_KERNEL_NS = 5_000.0
"""Shorter kernels on a GPU are not limited by memory: the smallest kernel takes 2 µs whatever it
moves, and 38 MB take 8 µs at 4.8 TB/s."""
MIN_WHOLE_STEP_SHARE = 0.12
"""Share of the step that merging must save where no single function is to blame: compiling a whole
model must pay. A GPT of 124 million parameters gains a fifth of its step (H200)."""
_NOT_TRIED = "what a compiler makes of it was not tried"
_ATTENTION = ("aten::_softmax", "aten::softmax")
_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::matmul")


class _Chain(Struct, frozen=True):
    place: Place
    sites: tuple[OpSite, ...]
    length: float
    """Operators in the forward for each call of the function."""
    whole: float
    """The same with those of the backward."""


def look(case: Case) -> Iterator[Finding]:
    phases = ("forward", "backward", "other")
    watched = [site for site in case.sites.ops if site.phase in phases]
    found_any = False
    for group in by_function(watched).values():
        chain = _chain(case, group)
        if chain is None:
            continue
        taken = exposed_work(case, *chain.sites)
        share = taken * max(1 - FUSED_CALLS / chain.whole, 0.0)
        if share >= MIN_SHARE:
            found_any = True
            yield _finding(case, chain, share, taken)
    if not found_any and case.on_gpu and not _compiled(case):
        yield from _between_products(case, watched)


def _between_products(case: Case, watched: list[OpSite]) -> Iterator[Finding]:
    """Yield a finding for chains that go through many functions, as in a transformer: a norm, a
    cast, a product, an activation, a sum. The operators are taken to be spread evenly: the chain
    between two products is as long as the number of operators for each product."""
    products = sum(site.calls for site in watched if _is_product(site))
    fusable = [site for site in watched if _is_fusable(site)]
    calls = sum(site.calls for site in fusable)
    if not products or calls <= products:
        return
    taken = exposed_work(case, *fusable)
    share = taken * (1 - products / calls)
    if share < MIN_WHOLE_STEP_SHARE:
        return
    yield make_finding(
        RULE,
        claim=f"{units.count(round(calls))} element-wise operators, norms and casts a step pass "
        f"over memory one by one between {units.count(round(products))} products: "
        f"{units.percent(taken)} of the step",
        share=share,
        bound=gain_bound(case, taken) or gain_without(taken),
        evidence=[
            of_step("between products", taken),
            measured("calls a step", units.count(round(calls)), calls),
        ],
        place=model_call(case, max(fusable, key=lambda site: site.device_ns)),
        fix="compile",
        change="model = torch.compile(model)",
        confidence="low" if slowed(case) else "medium",
        doubt=with_stacks(case, _NOT_TRIED),
    )


def _is_product(site: OpSite) -> bool:
    kernel = site.kernels[0].name if site.kernels else ""
    return bool(site.device_ns) and category_of(kernel, site.op) in PRODUCT_CATEGORIES


def _is_fusable(site: OpSite) -> bool:
    """Return whether a compiler would merge a site's kernels with their neighbours, and whether the
    kernels are long enough to be limited by memory. The category decides, because operators' names
    change between versions of torch: a cast is `aten::copy_` in one and `aten::_to_copy` in
    another."""
    if any("Memcpy" in kernel.name or "Memset" in kernel.name for kernel in site.kernels):
        return False
    kernel = site.kernels[0].name if site.kernels else ""
    kind = category_of(kernel, site.op)
    merged = kind in _MERGED_KINDS and _KEPT_WHOLE not in site.op
    count = kernels([site])
    long = bool(count) and site.device_ns / count >= MIN_MERGED_KERNEL_NS
    return long and (merged or (kind == "copy" and site.op in _CASTS))


def _compiled(case: Case) -> bool:
    seen = case.capture is not None and bool(case.capture.compilations)
    return seen or any(kernel.name.startswith("triton_") for kernel in case.kernels)


def _chain(case: Case, group: list[OpSite]) -> _Chain | None:
    ops = {site.op for site in group}
    if ops & set(_ATTENTION) and ops & set(_PRODUCTS):
        return None  # written-out attention has a fused operator of its own
    large = [s for s in group if s.op in _NAMES | _BACKWARD and _long(case, s)]
    # A function is called once in each module in most programs; else the chain is shorter.
    ahead: dict[str, float] = defaultdict(float)
    back: dict[str, float] = defaultdict(float)
    for site in large:
        (back if site.phase == "backward" else ahead)[site.module] += site.calls
    if not ahead:
        return None
    # A module calls the function as often as the function's rarest operator.
    forward = [site.calls for site in large if site.phase != "backward"]
    times = max(min(forward, default=1.0), 1.0)
    length, behind = max(ahead.values()) / times, max(back.values(), default=0.0) / times
    place = next(site.place for site in group)
    if length < MIN_CHAIN_LENGTH or place is None:
        return None
    return _Chain(place, tuple(large), length, length + behind)


def _long(case: Case, site: OpSite) -> bool:
    return bool(site.calls) and spent_ns(case, [site]) / site.calls >= MIN_CALL_NS[case.on_gpu]


def _finding(case: Case, chain: _Chain, share: float, taken: float) -> Finding:
    source = case.sources.get(chain.place.file)
    statement = _densest(source, chain.place) if source is not None else None
    calls = sum(site.calls for site in chain.sites)
    moved = sum(site.bytes for site in chain.sites)
    name = chain.place.function
    return make_finding(
        RULE,
        claim=f"{name}() passes over memory with {round(chain.length)} element-wise operators in a "
        f"row, {round(chain.whole)} with their backward: {units.percent(taken)} of the step",
        share=share,
        bound=gain_bound(case, taken) or gain_without(taken),
        evidence=[
            of_step("element-wise time", taken),
            measured("calls a step", units.count(round(calls)), calls),
            *([derived("memory moved a step", units.bytes_(moved), moved)] if moved else ()),
        ],
        place=chain.place,
        line=statement,
        module=max(chain.sites, key=lambda site: site.work_ns).module,
        change=_change(source, chain.place),
        confidence="medium",
        doubt=_NOT_TRIED,
    )


def _densest(source: SourceFile, place: Place) -> int | None:
    """Return the line with the most arithmetic, or None if no line stands out."""
    scope = source.scope(place.line)
    counts = []
    for node in source.walk(scope):
        if isinstance(node, ast.Assign | ast.Return | ast.AugAssign | ast.AnnAssign | ast.Expr):
            made = sum(isinstance(n, ast.BinOp | ast.Call) for n in ast.walk(node))
            counts.append((-made, node.lineno))
    most = min(counts, default=(0, 0))
    return most[1] if -most[0] >= MIN_CHAIN_LENGTH - 1 else None


def _change(source: SourceFile | None, place: Place) -> str:
    scope = source.scope(place.line) if source is not None else None
    given = [one.arg for one in scope.args.args] if isinstance(scope, ast.FunctionDef) else []
    given = given[1:] if given[:1] == ["self"] else given
    if source is None or not isinstance(scope, ast.FunctionDef) or not given:
        return f"@torch.compile\ndef {place.function or 'function'}(…): …"
    text = ast.unparse(scope)
    if "0.04471" in text and "tanh" in text:  # the constant of GELU's approximation
        return f'return F.gelu({given[0]}, approximate="tanh")  # one operator'
    return f"@torch.compile\n{source.line(scope.lineno)}"
