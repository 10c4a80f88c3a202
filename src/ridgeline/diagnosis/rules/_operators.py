"""Operators of a step: the arithmetic each matrix product ran in and its time in another, attention
whose scores are a tensor of their own, and convolutions."""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import gain_without
from ridgeline.diagnosis.rules._user_code import as_traced, models
from ridgeline.records.machine import Ceiling
from ridgeline.records.sites import OpSite, SiteKernel
from ridgeline.records.trace import Category
from ridgeline.source.models import ModelMade, model_made
from ridgeline.trace.analyses.kernels import category_of, uses_tensor_cores

HALF = ("bfloat16", "float16")
PRODUCT_CATEGORIES: tuple[Category, ...] = ("matmul", "convolution", "attention")
USUAL_PEAK_SHARE = 0.8
"""Share of a datasheet's peak that a large product is assumed to reach if nothing else is known.
cuBLAS on an H200 reached 0.79 in bfloat16 and 0.81 in TF32."""
MIN_PEAK_SHARE = 0.05
"""A product is assumed to reach at least this share of a peak, however slow it is now."""
MAX_SAVED_BUSY_SHARE = 0.9
"""Largest share of the device's busy time that a bound assumes to go. What remains beyond it is
noise."""
MIN_BUSY_WITH_STACKS = 0.6
"""A device that is busy for this share of a step traced with Python stacks is taken to be saturated
without them: stacks lengthen a host-bound step by half and more."""
MIN_HALF_SPEEDUP = 1.5
"""A 16-bit type is used where its peak is at least this many times that of float32."""
MIN_TF32_SPEEDUP = 1.2
"""Ratio of the peaks of TF32 and float32 from which a switch to TF32 pays: on a GeForce card the
two are equal."""
MIN_PLAIN_CONVOLUTION_SHARE = 0.9
"""Share of a trace's convolution time without tensor cores from which a switch is taken to be the
reason, and not the shape of a few convolutions."""
CPU_CAST_FACTOR = 1.5
"""On a CPU a needless cast costs this many times its own time, because its copy has to be freed and
pushes other data out of the cache. Of a step of 41 ms, 12 ms were in needless casts, and 18 ms went
with them."""

_TYPES = {
    "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8", "signed char": "int8",
}  # fmt: skip
_DTYPE_CODES = {"5": "float16", "6": "float32", "7": "float64", "15": "bfloat16"}
"""torch's numbers of types, as a trace writes a dtype argument."""
_FLOATING = ("float32", "bfloat16", "float16", "float64")
_KERNEL_ARITHMETIC = tuple(
    (re.compile(pattern, re.IGNORECASE), dtype)
    for pattern, dtype in (
        (r"tf32|nvjet_(?:sm\d+_)?s(?!m\d)|s1688(?!\w*(?:bf16|f16))", "tf32"),
        (r"bf16|BFloat16|nvjet_(?:sm\d+_)?t|_BBS_|_BSS_|_B_", "bfloat16"),
        (r"[hs]884|h1688|[hs]16816|fp16|f16|Half|nvjet_(?:sm\d+_)?h|_HHS_|_HSS_", "float16"),
        (r"sgemm|scudnn|f32f32|<float|simt_s|_SB_|_S_B_|engine<float", "float32"),
    )
)
"""Arithmetic by the name of a kernel whose operator was recorded without types. The first pattern
that matches counts."""
_MEMORY_BOUND = re.compile(r"gemv|gemvx|dot_kernel|splitKreduce|gemmSN|reduce_kernel", re.I)
"""Kernels that multiply by a vector or finish a product. They wait for memory in any arithmetic."""
_NO_TENSOR_CORES = ("sm_3", "sm_5", "sm_6")
_CAST_OPS = ("aten::_to_copy", "aten::copy_")
_CAST_KERNEL = re.compile(
    r"b?float16_copy_kernel|direct_copy_kernel.*WithCast|WithCast.*copy_kernel"
)
_TRANSFER_KERNEL = re.compile(r"HtoD|DtoH|Host|PtoP")
Dims = tuple[int, ...]


class Product(Struct, frozen=True):
    site: OpSite
    kind: Category
    arithmetic: str
    """float32, tf32, bfloat16, float16 …; "" if it is not known."""
    ns: float
    """Time of a step where the product runs: on the device, else on the host."""


class Cast(Struct, frozen=True):
    site: OpSite
    ns: float
    before: str = ""
    """Type before the cast; "" if it was not recorded."""
    after: str = ""
    dims: Dims = ()

    @property
    def narrows(self) -> bool:
        return self.before == "float32" and self.after in HALF

    @property
    def by_hand(self) -> bool:
        """Whether the program asked for the cast, and not autocast inside a product or a norm."""
        return all(name == "aten::to" for name in self.site.within)


def spent_ns(case: Case, sites: Iterable[OpSite]) -> float:
    """Return the time of operators: of the device on a GPU, of the host on a CPU."""
    return sum(site.device_ns if case.on_gpu else site.host_ns for site in sites)


def products(case: Case) -> tuple[Product, ...]:
    """Return the products of operators, and of kernels of replayed graphs, which no operator
    launched."""
    found = [_product(case, site) for site in case.sites.ops]
    return tuple(one for one in (*found, *_unlaunched(case)) if one is not None)


def least_ns(case: Case, product: Product, dtype: str, width: float = 1.0) -> float:
    """Return the least time that a product takes in another arithmetic: by the device's peak and
    bandwidth if its FLOPs are known, else by the ratio of the peaks. `width` is the size of an
    element in proportion to now."""
    now, peak = product.ns, peak_of(case, dtype)
    if peak is None:
        return now
    if product.site.flops:
        memory = case.device.ceiling("copy") if case.device is not None else None
        moved = product.site.bytes * width / memory.value if memory is not None else 0.0
        return min(max(product.site.flops / peak.value, moved) * 1e9, now)
    before = peak_of(case, product.arithmetic)
    ratio = USUAL_PEAK_SHARE * before.value / peak.value if before is not None else 1.0
    return min(now * ratio, now)


def likely_ns(case: Case, product: Product, dtype: str, width: float = 1.0) -> float:
    """Return the likely time of a product in another arithmetic, if it reaches the same share of
    the peak as now."""
    peak, now = peak_of(case, dtype), peak_of(case, product.arithmetic)
    least = least_ns(case, product, dtype, width)
    if peak is None or not product.site.flops:
        return least
    rate = product.site.flops / product.ns * 1e9
    reached = min(rate / now.value, USUAL_PEAK_SHARE) if now is not None else USUAL_PEAK_SHARE
    likely = product.site.flops / peak.value / max(reached, MIN_PEAK_SHARE) * 1e9
    return min(max(likely, least), product.ns)


def flop_rate(found: Sequence[Product]) -> float:
    """Return FLOP/s over the products whose FLOPs are known; 0 if there are none."""
    counted = [product for product in found if product.site.flops]
    spent = sum(product.ns for product in counted)
    return sum(product.site.flops for product in counted) / spent * 1e9 if spent else 0.0


def peak_of(case: Case, dtype: str) -> Ceiling | None:
    return case.device.ceiling("matmul", dtype) if case.device is not None else None


def share(case: Case, sites: Iterable[OpSite], ns: float) -> float:
    """Return the share of the step that goes if `ns` are saved in these sites, as far as their time
    is exposed."""
    every = tuple(sites)
    whole = spent_ns(case, every)
    if not whole:
        return 0.0
    exposed = case.device_share(whole) if slowed(case) else case.exposed(*every)
    return exposed * min(ns / whole, 1.0)


def exposed_work(case: Case, *sites: OpSite) -> float:
    """Return the share of the step that goes without these operators."""
    return share(case, sites, spent_ns(case, sites))


def exposed_casts(case: Case, *sites: OpSite) -> float:
    """Return the share of the step that goes without these casts."""
    return exposed_work(case, *sites) * (1.0 if case.on_gpu else CPU_CAST_FACTOR)


def slowed(case: Case) -> bool:
    """Return whether this is a trace alone whose Python stacks slowed the host. Its critical path
    runs over a host that is faster without them; the step then waits for the busy device."""
    busy = case.busy or 0.0
    return case.kind == "trace" and case.sites.stacks and MIN_BUSY_WITH_STACKS <= busy < SATURATED


def gain_bound(case: Case, part: float) -> float | None:
    """Return the bound for a trace whose stacks slowed the host: without them the step may be as
    short as the device is busy, so `part` of the traced step is a larger part of it. Return None
    for any other case: the share then gives the bound."""
    if not slowed(case) or not case.busy:
        return None
    return 1 / (1 - min(part / case.busy, MAX_SAVED_BUSY_SHARE))


def with_stacks(case: Case, doubt: str) -> str:
    """Return the doubt, and why share and bound differ if stacks slowed the trace."""
    why = "stacks slowed this trace: the bound is of the time the device is busy"
    return "; ".join(part for part in (doubt, why if slowed(case) else "") if part)


def architecture(case: Case) -> str:
    """Return sm_90, gfx942 …, or "" if it is not known."""
    seen = case.capture.device.architecture if case.capture is not None else ""
    return seen or (case.device.architecture if case.device is not None else "")


def has_tensor_cores(case: Case) -> bool:
    return case.on_gpu and not architecture(case).startswith(_NO_TENSOR_CORES)


def sixteen_bit(case: Case) -> Ceiling | None:
    """Return the peak of the 16-bit arithmetic to use here: bfloat16 if the device has it, else
    float16. Return None if the device gains nothing by either."""
    full = peak_of(case, "float32")
    for dtype in HALF if case.on_gpu else HALF[:1]:
        peak = peak_of(case, dtype)
        if peak is not None and peak.native and dtype not in emulated(case):
            pays = full is None or peak.value >= MIN_HALF_SPEEDUP * full.value
            return peak if pays else None
    return None


def emulated(case: Case) -> tuple[str, ...]:
    """Return the 16-bit types that the device has no instructions for."""
    if not case.on_gpu:
        if case.work is not None and case.work.device != "cpu":
            return ()
        ceilings = case.device.ceilings if case.device is not None else ()
        slow = {ceiling.dtype for ceiling in ceilings if not ceiling.native}
        return tuple(d for d in HALF if d in slow or d in case.emulated)
    sm = re.match(r"sm_(\d+)", architecture(case))
    old = sm is not None and int(sm[1]) < 80
    # V100 and T4 are listed with a float16 peak and none for bfloat16.
    unlisted = peak_of(case, "float16") is not None and peak_of(case, "bfloat16") is None
    return ("bfloat16",) if old or unlisted else ()


def dtype_of(site: OpSite) -> str:
    """Return the floating type of an operator's first tensor; "" if it was not recorded."""
    return next((_TYPES[kind] for kind in site.types if kind in _TYPES), "")


def costliest(found: Sequence[Product]) -> Product:
    """Return the product with the most time. Forward products come before backward ones, which have
    the forward's place but other shapes."""
    forward = [product for product in found if product.site.phase == "forward"]
    return max(forward or found, key=lambda product: product.ns)


def plain_products(case: Case, every: Sequence[Product]) -> tuple[Product, ...]:
    """Return the float32 products that a switch would run in TF32."""
    full, tf32 = peak_of(case, "float32"), peak_of(case, "tf32")
    if full is None or tf32 is None or _is_amd(case):
        return ()
    if tf32.value < MIN_TF32_SPEEDUP * full.value:
        return ()
    kinds = _switchable(case, every)
    known = case.capture is not None
    return tuple(
        p for p in every if p.arithmetic == "float32" and p.kind in kinds and (known or _plain(p))
    )


def casts(case: Case) -> tuple[Cast, ...]:
    """Return the casts between floating types."""
    found = (_cast(case, site) for site in case.sites.ops if site.op in _CAST_OPS)
    return tuple(cast for cast in found if cast is not None)


def sizes_of(site: OpSite, index: int = 0) -> Dims:
    """Return the recorded sizes of an argument; () if it is no tensor or was not recorded."""
    sizes = site.dims[index] if len(site.dims) > index else ()
    whole = isinstance(sizes, list | tuple) and all(isinstance(size, int) for size in sizes)
    return tuple(sizes) if whole else ()


def _is_amd(case: Case) -> bool:
    name = case.device.name if case.device is not None else ""
    return architecture(case).startswith("gfx") or "Instinct" in name or name.startswith("MI")


def _product(case: Case, site: OpSite) -> Product | None:
    named = [kernel.name for kernel in site.kernels]
    kernel = next(
        (name for name in named if category_of(name, site.op) in PRODUCT_CATEGORIES),
        named[0] if named else "",
    )
    if case.on_gpu and not site.device_ns:
        return None
    kind = category_of(kernel, site.op)
    # `aten::linear` around an `aten::addmm` has no work of its own on a CPU.
    idle = not site.flops and (_MEMORY_BOUND.search(kernel) or not site.device_ns)
    if kind not in PRODUCT_CATEGORIES or idle:
        return None
    return Product(site, kind, _arithmetic(site, kernel), spent_ns(case, [site]))


def _arithmetic(site: OpSite, kernel: str) -> str:
    dtype = dtype_of(site)
    if dtype not in ("float32", ""):
        return dtype
    on_tensor_cores = uses_tensor_cores(kernel) if kernel else False
    if dtype:
        return "tf32" if on_tensor_cores or site.dtype == "tf32" else "float32"
    by_name = next((d for pattern, d in _KERNEL_ARITHMETIC if pattern.search(kernel)), "")
    return "float32" if not by_name and on_tensor_cores is False and kernel else by_name


def _unlaunched(case: Case) -> Iterator[Product | None]:
    if case.study is None or not case.on_gpu:
        return
    steps = max(case.study.window.steps, 1)
    for row in case.kernels:
        if not row.op and row.category in PRODUCT_CATEGORIES:
            ns = row.total_ns / steps
            kernel = SiteKernel(name=row.name, count=row.count / steps, ns=ns)
            site = OpSite(op="", device_ns=ns, exposed_ns=ns, calls=kernel.count, kernels=(kernel,))
            yield _product(case, site)


def _switchable(case: Case, every: Sequence[Product]) -> tuple[str, ...]:
    """Return the kinds of products whose switch is off: matmul and convolution each have one."""
    flags = case.capture.flags if case.capture is not None else None
    kinds = []
    if flags is None or flags.matmul_tf32 is not True:
        kinds.append("matmul")
    if flags is not None and flags.cudnn_tf32 is not None:
        off = not flags.cudnn_tf32
    else:
        convolutions = [p for p in every if p.kind == "convolution"]
        plain = sum(p.ns for p in convolutions if p.arithmetic == "float32" and _plain(p))
        off = plain >= MIN_PLAIN_CONVOLUTION_SHARE * sum(p.ns for p in convolutions)
    return (*kinds, "convolution") if off else tuple(kinds)


def _plain(product: Product) -> bool:
    """Return whether the names of a product's kernels say that they use no tensor cores."""
    known = [uses_tensor_cores(kernel.name) for kernel in product.site.kernels]
    return False in known and True not in known


def _cast(case: Case, site: OpSite) -> Cast | None:
    ns = spent_ns(case, [site])
    if not ns or any(_TRANSFER_KERNEL.search(kernel.name) for kernel in site.kernels):
        return None
    if not site.types:
        named = any(_CAST_KERNEL.search(kernel.name) for kernel in site.kernels)
        return Cast(site, ns) if named else None
    if site.op == "aten::copy_":
        after, before = (_TYPES.get(kind, "") for kind in (*site.types[:2], "")[:2])
    else:
        before = dtype_of(site)
        after = next((_DTYPE_CODES[c] for c in site.concrete[1:2] if c in _DTYPE_CODES), "")
    if before == after or before not in _FLOATING or after not in _FLOATING:
        return None
    return Cast(site, ns, before, after, sizes_of(site))


PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::matmul")
SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
FUSED_PEAK_SHARE, FUSED_PEAK_SHARE_CPU = 0.75, 0.5
"""Share of the matmul ceiling that fused attention reaches: on a GPU at its best (the forward of
FlashAttention-3), on a CPU usually (0.38 and 0.64 were measured)."""
MAX_FUSED_PEAK_SHARE_CPU = 0.8
"""The same at most on a CPU, for the bound."""
FUSED_PRODUCTS_FACTOR = 7 / 6
"""Products of a fused operator, as a multiple of those written out: the backward computes the
scores once more."""
_MASKING = ("masked_fill", "where", "tril", "triu")
TYPE_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}
"""Bytes of an element, by torch's names of types."""


class Scores(Struct, frozen=True):
    """The sizes of a tensor of scores."""

    batch: int
    """Batch entries times heads."""
    rows: int
    columns: int

    @property
    def numel(self) -> int:
        return self.batch * self.rows * self.columns

    def are(self, dims: Any) -> bool:
        """Return whether a recorded size is that of the scores, as they are or transposed."""
        return (
            _sizes(dims)
            and len(dims) >= 3
            and tuple(dims[-2:]) in ((self.rows, self.columns), (self.columns, self.rows))
            and prod(dims) == self.numel
        )

    def touched(self, site: OpSite) -> bool:
        return any(self.are(dims) for dims in site.dims) or self.made(site)

    def made(self, site: OpSite) -> bool:
        """Return whether a product of this site makes the scores."""
        sizes = [dims for dims in site.dims if _sizes(dims) and len(dims) >= 3]
        if site.op not in PRODUCTS or len(sizes) < 2:
            return False
        left, right = sizes[-2:]
        return self.are([*left[:-1], right[-1]]) and prod(left[:-2]) == self.batch


def scores_of(dims: Any) -> Scores | None:
    if not _sizes(dims) or len(dims) < 3 or min(dims) < 1:
        return None
    return Scores(prod(dims[:-2]), dims[-2], dims[-1])


def score_products(sites: Iterable[OpSite], scores: Scores) -> tuple[list[OpSite], list[OpSite]]:
    """Return the products that make the scores, and those that read them."""
    made, read = [], []
    for site in sites:
        if site.op in PRODUCTS:
            if scores.made(site):
                made.append(site)
            if any(scores.are(dims) for dims in site.dims):
                read.append(site)
    return made, read


def fused_ns(case: Case, sites: Sequence[OpSite], reached_cpu: float) -> float:
    """Return the least time that one fused operator needs for all that these products compute; 0 if
    no ceiling is known. A causal operator skips half."""
    total = 0.0
    masked = any(word in site.op for site in sites for word in _MASKING)
    for site in sites:
        if site.op in PRODUCTS and site.flops:
            rate = _rate(case, site.dtype) * (FUSED_PEAK_SHARE if case.on_gpu else reached_cpu)
            total += site.flops / rate * 1e9 if rate else 0.0
    again = FUSED_PRODUCTS_FACTOR if any(site.phase == "backward" for site in sites) else 1.0
    return total * again * (0.5 if masked else 1.0)


def saved_bytes(sites: Sequence[OpSite], scores: Scores) -> float:
    """Return the bytes of scores kept for the backward: the softmax's result, and what a product
    reads of it if that has another type (a copy that autocast made)."""
    softmax = [s for s in sites if s.op in SOFTMAX and scores.touched(s)]
    if not any(site.phase == "backward" for site in sites):
        return 0.0
    calls = sum(site.calls for site in softmax)
    kinds = {s.types[0] for s in softmax if s.types}
    reads = {
        kind
        for s in sites
        if s.op in PRODUCTS and s.phase == "forward"
        for dims, kind in zip(s.dims, s.types, strict=False)
        if scores.are(dims)
    }
    return calls * scores.numel * sum(TYPE_BYTES.get(kind, 4) for kind in kinds | reads)


def most_gained(case: Case, sites: Sequence[OpSite]) -> float:
    """Return the bound, by the best fused operator."""
    return gain_without(without_scores(case, sites, MAX_FUSED_PEAK_SHARE_CPU))


def without_scores(
    case: Case, sites: Sequence[OpSite], reached_cpu: float = FUSED_PEAK_SHARE_CPU
) -> float:
    """Return the share of the step that a fused operator would take away."""
    spent = spent_ns(case, sites)
    if spent <= 0:
        return 0.0
    return case.exposed(*sites) * max(1 - fused_ns(case, sites, reached_cpu) / spent, 0.0)


def peak_bytes(case: Case) -> float:
    """Return the peak of memory; 0 if it is not known. A trace counts a host's memory only from its
    own beginning."""
    if not case.on_gpu:
        return float(case.memory.host_peak_bytes or 0)
    return float(case.memory.device_peak_bytes or traced_peak(case, "cuda"))


def traced_peak(case: Case, device: str) -> float:
    curves = case.study.memory if case.study is not None else ()
    return float(max((c.peak_bytes for c in curves if c.device.startswith(device)), default=0))


def _rate(case: Case, dtype: str) -> float:
    if case.device is None:
        return 0.0
    names = ("tf32", "float32") if case.on_gpu and dtype == "float32" else (dtype or "float32",)
    found = [case.device.ceiling("matmul", name) for name in names]
    return max((ceiling.value for ceiling in found if ceiling is not None), default=0.0)


def _sizes(dims: Any) -> bool:
    return isinstance(dims, list | tuple) and all(isinstance(size, int) for size in dims)


KERNELS = (
    "aten::cudnn_convolution", "aten::miopen_convolution", "aten::cudnn_convolution_transpose",
    "aten::convolution_backward", "aten::cudnn_convolution_backward",
    "aten::cudnn_convolution_backward_input", "aten::cudnn_convolution_backward_weight",
    "aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu",
)  # fmt: skip
"""Operators in which the library chooses a kernel."""


def convolutions(case: Case) -> list[OpSite]:
    return [site for site in case.sites.ops if site.op in KERNELS and site.device_ns]


def needed_ns(case: Case, site: OpSite) -> float:
    """Return the least time by the roofline: the arithmetic at the ceiling, or the bytes; 0 if
    neither is known."""
    if case.device is None:
        return 0.0
    rate = case.device.ceiling("matmul", site.dtype) if site.dtype else None
    moving = case.device.ceiling("triad") or case.device.ceiling("copy")
    compute = site.flops / rate.value * 1e9 if rate is not None else 0.0
    return max(compute, site.bytes / moving.value * 1e9 if moving is not None else 0.0)


def the_model(case: Case) -> ModelMade | None:
    """Return where the model with the most parameters is made."""
    for module in models(case):
        if (made := model_made(case.sources, module.place)) is not None:
            return replace(made, file=as_traced(case, made.file))
    return None


def exposed_part(case: Case, sites: Iterable[OpSite]) -> float:
    """Return the part of these sites' device time that the step waits for."""
    sites = tuple(sites)
    whole = case.device_share(sum(site.device_ns for site in sites))
    return case.exposed(*sites) / whole if whole else 0.0
