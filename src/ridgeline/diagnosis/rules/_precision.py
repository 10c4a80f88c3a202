"""Matrix products of a step: the arithmetic each ran in, and how long it would take in another."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.records.machine import Ceiling
from ridgeline.records.op_site import OpSite, SiteKernel
from ridgeline.records.trace import Category
from ridgeline.trace.analyses.categories import category_of
from ridgeline.trace.analyses.tensor_cores import uses_tensor_cores

HALF = ("bfloat16", "float16")
KINDS: tuple[Category, ...] = ("matmul", "convolution", "attention")
ATTAINED = 0.8
"""Of a datasheet's peak: what a large product reaches where nothing is known of it; cuBLAS on an
H200 was seen at 0.79 in bfloat16 and at 0.81 in TF32."""

MOST_GONE = 0.9
"""Of the device's busy time: beyond it, what remains is noise."""
BUSY_TRACED = 0.6
"""Of a step traced with stacks, which lengthens a host-bound one by half and more."""

_TYPES = {
    "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8", "signed char": "int8",
}  # fmt: skip
_NAMED = tuple(
    (re.compile(pattern, re.IGNORECASE), dtype)
    for pattern, dtype in (
        (r"tf32|nvjet_(?:sm\d+_)?s(?!m\d)|s1688(?!\w*(?:bf16|f16))", "tf32"),
        (r"bf16|BFloat16|nvjet_(?:sm\d+_)?t|_BBS_|_BSS_|_B_", "bfloat16"),
        (r"[hs]884|h1688|[hs]16816|fp16|f16|Half|nvjet_(?:sm\d+_)?h|_HHS_|_HSS_", "float16"),
        (r"sgemm|scudnn|f32f32|<float|simt_s|_SB_|_S_B_|engine<float", "float32"),
    )
)
"""Of kernels whose operator was recorded without types; the first that matches."""
_NOT_ONE = re.compile(r"gemv|gemvx|dot_kernel|splitKreduce|gemmSN|reduce_kernel", re.IGNORECASE)
"""Products of a vector, and what follows a product: they wait for memory in any arithmetic."""
_PLAIN_CHIPS = ("sm_3", "sm_5", "sm_6")
"""Without tensor cores."""


class Product(Struct, frozen=True):
    site: OpSite
    kind: Category
    arithmetic: str
    """float32, tf32, bfloat16, float16 …; "" where nothing tells."""
    ns: float
    """A step, where it runs: on the device, else on the host."""


def products(case: Case) -> tuple[Product, ...]:
    """Those of the sites, and kernels of replayed graphs, which no operator launched."""
    found = [_product(case, site) for site in case.sites.ops]
    return tuple(one for one in (*found, *_unlaunched(case)) if one is not None)


def least_ns(case: Case, product: Product, dtype: str, width: float = 1.0) -> float:
    """How long it would take in another arithmetic at least: by the device's peak and bandwidth
    where its FLOPs are known, else by the ratio of the peaks. `width`: of an item, to now's."""
    now, peak = product.ns, peak_of(case, dtype)
    if peak is None:
        return now
    if product.site.flops:
        memory = case.device.ceiling("copy") if case.device is not None else None
        moved = product.site.bytes * width / memory.value if memory is not None else 0.0
        return min(max(product.site.flops / peak.value, moved) * 1e9, now)
    before = peak_of(case, product.arithmetic)
    return min(now * ATTAINED * before.value / peak.value, now) if before is not None else now


def likely_ns(case: Case, product: Product, dtype: str, width: float = 1.0) -> float:
    """Likewise, as products go: they reach ATTAINED of a peak, or what this one reaches now."""
    peak, now = peak_of(case, dtype), peak_of(case, product.arithmetic)
    least = least_ns(case, product, dtype, width)
    if peak is None or not product.site.flops:
        return least
    rate = product.site.flops / product.ns * 1e9
    reached = min(rate / now.value, ATTAINED) if now is not None else ATTAINED
    return min(max(product.site.flops / peak.value / max(reached, 0.05) * 1e9, least), product.ns)


def peak_of(case: Case, dtype: str) -> Ceiling | None:
    return case.device.ceiling("matmul", dtype) if case.device is not None else None


def share(case: Case, sites: Iterable[OpSite], ns: float) -> float:
    """Of the step: `ns` saved in these sites, as far as their time is exposed."""
    every = tuple(sites)
    whole = sum(site.device_ns if case.on_gpu else site.host_ns for site in every)
    if not whole:
        return 0.0
    exposed = case.device_share(whole) if slowed(case) else case.exposed(*every)
    return exposed * min(ns / whole, 1.0)


def slowed(case: Case) -> bool:
    """A trace alone, whose Python stacks slowed the host: its critical path runs over a host that
    is faster without, and the busy device is what the step waits for then."""
    busy = case.busy or 0.0
    return case.kind == "trace" and case.sites.stacks and BUSY_TRACED <= busy < SATURATED


def gain_bound(case: Case, part: float) -> float | None:
    """Of a trace whose stacks slowed the host: without them the step may be as short as the device
    is busy, of which `part` of the traced step is more. None: 1 / (1 - part), as ever."""
    if not slowed(case) or not case.busy:
        return None
    return 1 / (1 - min(part / case.busy, MOST_GONE))


def with_stacks(case: Case, doubt: str) -> str:
    """The doubt, and why share and bound differ where stacks slowed the trace."""
    why = "stacks slowed this trace: the bound is of the time the device is busy"
    return "; ".join(part for part in (doubt, why if slowed(case) else "") if part)


def architecture(case: Case) -> str:
    """sm_90, gfx942; "" where nobody says."""
    seen = case.capture.device.architecture if case.capture is not None else ""
    return seen or (case.device.architecture if case.device is not None else "")


def is_amd(case: Case) -> bool:
    name = case.device.name if case.device is not None else ""
    return architecture(case).startswith("gfx") or "Instinct" in name or name.startswith("MI")


def has_tensor_cores(case: Case) -> bool:
    return case.on_gpu and not architecture(case).startswith(_PLAIN_CHIPS)


def sixteen_bit(case: Case) -> Ceiling | None:
    """The 16-bit arithmetic to use here: bfloat16 where the device has it, else float16; None where
    the device gains nothing by either."""
    full = peak_of(case, "float32")
    for dtype in HALF if case.on_gpu else HALF[:1]:
        peak = peak_of(case, dtype)
        if peak is not None and peak.native and dtype not in emulated(case):
            return peak if full is None or peak.value >= 1.5 * full.value else None
    return None


def emulated(case: Case) -> tuple[str, ...]:
    """16-bit types the device has no instructions for."""
    if not case.on_gpu:
        if case.work is not None and case.work.device != "cpu":
            return ()
        told = {c.dtype for c in (case.device.ceilings if case.device else ()) if not c.native}
        return tuple(d for d in HALF if d in told or d in case.emulated)
    sm = re.match(r"sm_(\d+)", architecture(case))
    old = sm is not None and int(sm[1]) < 80
    # V100 and T4 are listed with a float16 peak and none for bfloat16.
    unlisted = peak_of(case, "float16") is not None and peak_of(case, "bfloat16") is None
    return ("bfloat16",) if old or unlisted else ()


def dtype_of(site: OpSite) -> str:
    """The floating type of its first tensor, by torch's own words; "" where not recorded."""
    return next((_TYPES[kind] for kind in site.types if kind in _TYPES), "")


def costliest(found: Sequence[Product]) -> Product:
    """Forward before backward, whose place is the forward's but whose shapes are not."""
    forward = [one for one in found if one.site.phase == "forward"]
    return max(forward or found, key=lambda one: one.ns)


def _product(case: Case, site: OpSite) -> Product | None:
    kernel = _main_kernel(site)
    if case.on_gpu and not site.device_ns:
        return None
    kind = category_of(kernel, site.op)
    if kind not in KINDS or (not site.flops and (_NOT_ONE.search(kernel) or not _works(site))):
        return None
    ns = site.device_ns if case.on_gpu else site.host_ns
    return Product(site, kind, _arithmetic(site, kernel), ns)


def _works(site: OpSite) -> bool:
    """It has work of its own: `aten::linear` around an `aten::addmm` has none on a CPU."""
    return bool(site.device_ns)


def _main_kernel(site: OpSite) -> str:
    """The costliest kernel that is a product, else the costliest."""
    named = [kernel.name for kernel in site.kernels]
    return next((n for n in named if category_of(n, site.op) in KINDS), named[0] if named else "")


def _arithmetic(site: OpSite, kernel: str) -> str:
    told = dtype_of(site)
    if told == "float32" or not told:
        on_tensor_cores = uses_tensor_cores(kernel) if kernel else False
        by_name = next((dtype for pattern, dtype in _NAMED if pattern.search(kernel)), "")
        if told:
            return "tf32" if on_tensor_cores or site.dtype == "tf32" else "float32"
        return "float32" if not by_name and on_tensor_cores is False and kernel else by_name
    return told


def _unlaunched(case: Case) -> Iterator[Product | None]:
    window = case.study.window if case.study is not None else None
    if window is None or case.study is None or not case.on_gpu:
        return
    steps = max(window.steps, 1)
    for row in case.kernels:
        if not row.op and row.category in KINDS:
            ns = row.total_ns / steps
            kernel = SiteKernel(name=row.name, count=row.count / steps, ns=ns)
            site = OpSite(op="", device_ns=ns, exposed_ns=ns, calls=kernel.count, kernels=(kernel,))
            yield _product(case, site)
