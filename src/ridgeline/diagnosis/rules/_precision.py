"""Matrix products of a step: the arithmetic each ran in, and how long it would take in another."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.records.machine import Ceiling
from ridgeline.records.sites import OpSite, SiteKernel
from ridgeline.records.trace import Category, Place
from ridgeline.source.calls import SourceCall, all_calls, calls_at, line_of
from ridgeline.source.file import SourceFile
from ridgeline.trace.analyses.kernels import category_of, uses_tensor_cores

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


_CODES = {"5": "float16", "6": "float32", "7": "float64", "15": "bfloat16"}
"""torch's ScalarType, as a trace writes a dtype argument."""
_FLOATING = ("float32", "bfloat16", "float16", "float64")
_OPS = ("aten::_to_copy", "aten::copy_")
_KERNEL = re.compile(r"b?float16_copy_kernel|direct_copy_kernel.*WithCast|WithCast.*copy_kernel")
_LINKED = re.compile(r"HtoD|DtoH|Host|PtoP")
BESIDE = 1.5
"""On a CPU, of a cast's own time: with the freeing of the copy and what it pushes out of the cache.
Of a step of 41 ms 12 were in needless casts, and 18 went with them."""
Dims = tuple[int, ...]


class Cast(Struct, frozen=True):
    site: OpSite
    ns: float
    before: str = ""
    """Its type; "" where not recorded."""
    after: str = ""
    dims: Dims = ()

    @property
    def narrows(self) -> bool:
        return self.before == "float32" and self.after in ("bfloat16", "float16")

    @property
    def by_hand(self) -> bool:
        """Asked for by the program, not by autocast inside a product or a norm."""
        return all(name == "aten::to" for name in self.site.within)


def casts(case: Case) -> tuple[Cast, ...]:
    found = (_cast(case, site) for site in case.sites.ops if site.op in _OPS)
    return tuple(one for one in found if one is not None)


def exposed(case: Case, *sites: OpSite) -> float:
    """Of the step: what goes with these casts."""
    return exposed_work(case, *sites) * (1.0 if case.on_gpu else BESIDE)


def exposed_work(case: Case, *sites: OpSite) -> float:
    """Likewise of other operators; of a trace whose stacks slowed the host, their device time."""
    whole = sum(site.device_ns if case.on_gpu else site.host_ns for site in sites)
    return share(case, sites, whole)


def parameters(case: Case) -> dict[Dims, float]:
    """Parameters by shape that a step gives gradients to, once for each backward."""
    counted: dict[Dims, float] = {}
    for site in case.sites.ops:
        if site.op.endswith("AccumulateGrad") and not site.op.startswith("autograd::"):
            dims = _dims(site)
            counted[dims] = counted.get(dims, 0.0) + site.calls
    return counted


def _cast(case: Case, site: OpSite) -> Cast | None:
    ns = site.device_ns if case.on_gpu else site.host_ns
    if not ns or any(_LINKED.search(kernel.name) for kernel in site.kernels):
        return None
    if not site.types:
        named = any(_KERNEL.search(kernel.name) for kernel in site.kernels)
        return Cast(site, ns) if named else None
    if site.op == "aten::copy_":
        after, before = (dtype_of(OpSite(op="", types=site.types[i : i + 1])) for i in (0, 1))
    else:
        before = dtype_of(site)
        after = next((_CODES[c] for c in site.concrete[1:2] if c in _CODES), "")
    if before == after or before not in _FLOATING or after not in _FLOATING:
        return None
    return Cast(site, ns, before, after, _dims(site))


def _dims(site: OpSite) -> Dims:
    first = site.dims[0] if site.dims else []
    return tuple(first) if all(isinstance(size, int) for size in first) else ()


WRITTEN = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
WIDER = 0.5
"""Of the operators between a cast to a wider type and the cast back: twice the bytes, and on a CPU
twice the time of a product."""
_WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_DTYPE_WORDS = ("float", "half", "double", "dtype")


class ByHand(Struct, frozen=True):
    """Casts of one function that could be left out."""

    share: float
    ns: float
    calls: float
    """Times a step: of pairs where they go there and back."""
    call: SourceCall
    place: Place
    loop: bool = False
    """The same tensor in every turn of a loop; else there and back."""
    through: str = ""
    """The type a pair goes to and comes back from."""


def by_hand(case: Case, every: Sequence[Cast]) -> ByHand | None:
    """The costliest function with such casts; only where its source shows them."""
    places = {c.site.place for c in every if c.by_hand and c.site.place is not None}
    found = [
        one
        for place in places
        for one in (_loop(case, place, every), _back_and_forth(case, place, every))
        if one is not None
    ]
    return max(found, key=lambda one: one.share, default=None)


def written_at(case: Case, place: Place) -> list[SourceCall]:
    """Casts written in a function, those in the innermost loop first."""
    return [call for call in calls_at(case.sources, place, WRITTEN) if is_cast(call)]


def is_cast(call: SourceCall) -> bool:
    """`.to` and `.type` also move; only with a type in the brackets are they casts."""
    arguments = call.text.rpartition("(")[2]
    return call.name not in ("to", "type") or any(word in arguments for word in _DTYPE_WORDS)


def _loop(case: Case, place: Place, every: Sequence[Cast]) -> ByHand | None:
    source, written = case.sources.get(place.file), written_at(case, place)
    calls = [c for c in written if source and _constant(source, c)]
    # once a step may be any of the casts written: all of them have to be of the same tensor
    always = len(calls) == len(written) and all(source and _constant(source, c, -1) for c in calls)
    here = [c for c in every if c.site.place == place and c.by_hand
            and c.site.phase != "backward" and (always or c.site.calls >= 2)]  # fmt: skip
    if not calls or not here:
        return None
    most = max(here, key=lambda c: c.ns)
    part = sum((1 - (not always) / c.site.calls) * exposed(case, c.site) for c in here)
    part += exposed(case, *_backward(every, place, {c.dims for c in here}))
    ns = sum(c.ns for c in here)
    return ByHand(part, ns, most.site.calls, calls[0], place, loop=True)


def _constant(source: SourceFile, call: SourceCall, which: int = 0) -> bool:
    """What is cast is not assigned in the loop around it: the innermost, or (-1) the outermost."""
    for node in ast.walk(source.module):
        if isinstance(node, ast.Call) and ast.get_source_segment(source.text, node) == call.text:
            loops = [p for p in source.parents(node) if isinstance(p, ast.For | ast.While)]
            if loops and (node.func.end_lineno or node.lineno) == call.line:
                return bool(call.on) and not _assigned(loops[which], call.on)
    return False


def _assigned(loop: ast.AST, name: str) -> bool:
    """`name`, as written, or what it is part of is stored to in the loop."""
    stored = {
        ast.unparse(node)
        for node in ast.walk(loop)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
    }
    parts = {ast.unparse(n) for n in ast.walk(ast.parse(name)) if isinstance(n, ast.expr)}
    return bool(stored & parts) or "(" in name


def _back_and_forth(case: Case, place: Place, every: Sequence[Cast]) -> ByHand | None:
    here = [c for c in every if c.site.place == place and c.site.phase != "backward"]
    pairs: list[Cast] = []
    for c in here:
        there = _WIDTH.get(c.before, 0) < _WIDTH.get(c.after, 0)
        if c.by_hand and there and len(c.dims) > 1:
            back = [b for b in here if b.dims == c.dims and b.before == c.after
                    and b.after == c.before]  # fmt: skip
            if back:
                pairs += [c, *(b for b in back if b not in pairs)]
    written = written_at(case, place)
    if not pairs or not written:
        return None
    sizes = {c.dims for c in pairs}
    wide = {c.after for c in pairs if _WIDTH[c.after] > _WIDTH[c.before]}
    part = exposed(case, *(c.site for c in pairs), *_backward(every, place, sizes))
    part += WIDER * case.exposed(*_between(case, place, sizes, wide))
    times = sum(c.site.calls for c in pairs if c.after in wide)
    call = min(written, key=lambda c: c.line)
    through = max(wide, key=lambda name: _WIDTH[name])
    return ByHand(part, sum(c.ns for c in pairs), times, call, place, through=through)


def _backward(every: Sequence[Cast], place: Place, sizes: set[Dims]) -> list[OpSite]:
    return [c.site for c in every if c.site.place == place and c.site.phase == "backward"
            and c.dims in sizes]  # fmt: skip


def _between(case: Case, place: Place, sizes: set[Dims], wide: set[str]) -> list[OpSite]:
    """Operators of the function on tensors of these shapes, in the wider type."""
    return [
        site
        for site in case.sites.ops
        if site.place == place
        and site.op not in ("aten::_to_copy", "aten::copy_")
        and dtype_of(site) in wide
        and any(isinstance(dims, list) and tuple(map(str, dims)) in _texts(sizes)
                for dims in site.dims)
    ]  # fmt: skip


def _texts(sizes: set[Dims]) -> set[tuple[str, ...]]:
    return {tuple(map(str, dims)) for dims in sizes}


FASTER = 1.2
"""Least ratio of the two peaks: on a GeForce card they are equal."""
ALL_PLAIN = 0.9
"""Of a trace's convolution time: on plain units, from which on a switch is the reason, not the
shape of a few of them."""


def plain_products(case: Case, every: Sequence[Product]) -> tuple[Product, ...]:
    full, tf32 = peak_of(case, "float32"), peak_of(case, "tf32")
    if full is None or tf32 is None or tf32.value < FASTER * full.value or is_amd(case):
        return ()
    kinds = _kinds(case, every)
    told = case.capture is not None
    return tuple(
        p for p in every if p.arithmetic == "float32" and p.kind in kinds and (told or _plainly(p))
    )


def _kinds(case: Case, every: Sequence[Product]) -> tuple[str, ...]:
    """matmul and convolution each have their switch."""
    flags = case.capture.flags if case.capture is not None else None
    kinds = []
    if flags is None or flags.matmul_tf32 is not True:
        kinds.append("matmul")
    unknown = flags is None or flags.cudnn_tf32 is None
    if (flags is not None and flags.cudnn_tf32 is False) or (unknown and _convolutions(every)):
        kinds.append("convolution")
    return tuple(kinds)


def _plainly(product: Product) -> bool:
    """Without flags, by the names of kernels alone."""
    told = [uses_tensor_cores(kernel.name) for kernel in product.site.kernels]
    return False in told and True not in told


def _convolutions(every: Sequence[Product]) -> bool:
    ours = [p for p in every if p.kind == "convolution"]
    plain = sum(p.ns for p in ours if p.arithmetic == "float32" and _plainly(p))
    return plain >= ALL_PLAIN * sum(p.ns for p in ours)


_PRODUCTS = frozenset({
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "scaled_dot_product_attention",
})  # fmt: skip


class At(Struct, frozen=True):
    place: Place | None
    line: int | None = None


def sources(case: Case, sites: Iterable[OpSite] = ()) -> Iterator[SourceFile]:
    """The user's files that are known: of these sites, of the run's records, the script itself."""
    names = [site.place.file for site in sites if site.place is not None]
    if case.capture is not None:
        seen = [one.place for one in case.capture.modules]
        seen += [one.place for one in case.capture.optimizers]
        names += [place.rpartition(":")[0] for place in seen if place]
    if case.run is not None and case.run.target.kind == "script":
        names.append(case.run.target.name)
    read: set[str] = set()
    for name in names:
        source = case.sources.get(name) if name else None
        if source is not None and source.text not in read:  # one file by two names
            read.add(source.text)
            yield source


def calls(case: Case, sites: Iterable[OpSite], names: Collection[str]) -> tuple[SourceCall, ...]:
    """In all of the user's files that are known."""
    return tuple(call for source in sources(case, sites) for call in all_calls(source, names))


def at_call(case: Case, call: SourceCall) -> At:
    return at_line(case, call.file, call.line)


def at_line(case: Case, file: str, line: int) -> At:
    source = case.sources.get(file)
    function = getattr(source.scope(line), "name", "") if source is not None else ""
    return At(Place(file=file, line=line, function=function), line)


def model_call(case: Case, site: OpSite) -> At:
    """Where the model is called: as the run saw it, else the product's own line in the function
    that was measured."""
    modules = case.capture.modules if case.capture is not None else ()
    called = [m for m in modules if m.place and not m.loss and m.parameters]
    if called:
        most = max(called, key=lambda m: m.parameters * (m.calls + m.evaluation_calls))
        file, _, line = most.place.rpartition(":")
        if line.isdigit():
            return at_line(case, _as_measured(case, file, site), int(line))
    place = site.place
    source = case.sources.get(place.file) if place is not None else None
    if place is None or source is None:
        return At(place)
    for wanted in (_is_product, _calls_variable(source)):
        line_found = line_of(case.sources, place, wanted)
        if line_found is not None:
            return At(place, line_found)
    return At(place)


def _as_measured(case: Case, file: str, site: OpSite) -> str:
    """The name a trace has for a file the run names by its whole path."""
    if site.place is None:
        return file
    one, other = case.sources.get(file), case.sources.get(site.place.file)
    same = one is not None and other is not None and one.text == other.text
    return site.place.file if same else file


def statement(case: Case, at: At) -> str:
    """The line's own text, without its comment; "" where it cannot be read or goes on."""
    source = case.sources.get(at.place.file) if at.place is not None else None
    if source is None or at.line is None:
        return ""
    for node in ast.walk(source.module):
        whole = isinstance(node, ast.Assign | ast.Expr | ast.Return | ast.AugAssign)
        if whole and node.lineno == at.line == node.end_lineno:  # type: ignore[attr-defined]
            return ast.get_source_segment(source.text, node) or ""
    return ""


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        own = isinstance(called.value, ast.Name) and called.value.id == "self"
        return called.attr in _PRODUCTS or own
    return isinstance(called, ast.Name) and called.id in _PRODUCTS


def _calls_variable(source: SourceFile) -> Callable[[ast.AST], bool]:
    """A call of something that was assigned or passed, not defined or imported: of a module."""
    assigned = {
        node.id
        for node in ast.walk(source.module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assigned |= {node.arg for node in ast.walk(source.module) if isinstance(node, ast.arg)}
    return lambda node: (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in assigned
    )
