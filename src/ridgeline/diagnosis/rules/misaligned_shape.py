"""Products whose sizes tensor cores cannot read in whole pieces."""

import ast
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._operators import (
    Product,
    costliest,
    flop_rate,
    has_tensor_cores,
    peak_of,
    products,
    share,
)
from ridgeline.diagnosis.rules._user_code import (
    files_of,
    located,
    model_call,
    statement_at,
    user_sources,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.units import flops, percent, seconds, significant

RULE = Rule(
    id="misaligned-shape", family="precision", budget="work", needs=("sites", "shapes", "gpu")
)
MIN_SHARE = 0.01
MIN_SLOWDOWN = 1.25
"""How many times as long a product must take as a padded one. Below it, its rate is what products
of that size reach anyway."""
ROW_ALIGNMENT_BYTES = 16
TILE_ELEMENTS = 64
"""Large sizes are padded to a multiple of this, which is a whole number of tiles on every GPU so
far. The first multiple above 50,257 is 50,304."""
SMALL_SIZE = 256
"""Sizes below this are padded to the alignment only: a whole tile would add too much."""
MAX_PEAK_SHARE = 0.9
"""Largest share of a datasheet's peak that a padded product may reach, so that the bound holds: an
H200 reached 0.79. A measured ceiling may be reached whole."""
MIN_TELLING_FLOPS = 1e9
"""Aligned products with fewer FLOPs a call say nothing of the rate that can be reached."""
_ITEM = {"bfloat16": 2, "float16": 2, "tf32": 4, "float32": 4, "float8": 1, "int8": 1}
_ALIGNED = re.compile(r"_?align(\d+)")


class _Misaligned(Struct, frozen=True):
    product: Product
    size: int
    need: int
    """The number of elements that its rows should be a multiple of."""
    padded: float
    """Arithmetic of the padded size in proportion to now."""


def look(case: Case) -> Iterator[Finding]:
    if not has_tensor_cores(case):
        return
    every = [p for p in products(case) if p.arithmetic in _ITEM and p.arithmetic != "float32"]
    bad = [found for p in every if (found := _misaligned(p)) is not None]
    for size in sorted({found.size for found in bad}):
        group = [found for found in bad if found.size == size]
        answer = _finding(case, group, every)
        if answer is not None:
            yield answer


def _misaligned(product: Product) -> _Misaligned | None:
    need = max(ROW_ALIGNMENT_BYTES // _ITEM[product.arithmetic], 1)
    sizes = [size for size in _row_lengths(product) if size % need]
    alignment = _kernel_alignment(product)
    if not sizes or (alignment is not None and alignment >= need):
        return None
    size = max(sizes)
    return _Misaligned(product, size, need, padded_size(size, need) / size)


def padded_size(size: int, need: int) -> int:
    to = need if size < SMALL_SIZE else TILE_ELEMENTS
    return -(-size // to) * to


def _row_lengths(product: Product) -> list[int]:
    """Return for each matrix how many elements its rows are apart in memory."""
    site = product.site
    if product.kind == "convolution":
        return _channels(product)
    found = []
    for i, dims in enumerate(site.dims):
        if not isinstance(dims, list | tuple) or len(dims) < 2 or not _sizes(dims):
            continue
        if site.types[i : i + 1] == ("Scalar",) or 1 in dims[-2:]:
            continue
        strides: Sequence[int] = site.strides[i] if i < len(site.strides) else ()
        if len(strides) == len(dims) and 1 in strides[-2:]:
            found.append(max(strides[-2:]) if strides[-1] == 1 else strides[-1])
        elif product.kind == "matmul":
            found += [dims[-1]]
    if product.kind == "matmul" and found:
        found += _results(site.dims)
    return found


def _results(every: Sequence[object]) -> list[int]:
    """Return the length of the result's rows: the last dimension of the last matrix."""
    matrices = [d for d in every if isinstance(d, list | tuple) and len(d) >= 2 and _sizes(d)]
    return [int(matrices[-1][-1])] if matrices and 1 not in matrices[-1][-2:] else []


def _channels(product: Product) -> list[int]:
    """Return the channels of input and result of a convolution in one group. The few channels of an
    image are left out, because libraries treat them specially."""
    shaped = [d for d in product.site.dims if isinstance(d, list | tuple) and len(d) >= 4]
    if len(shaped) < 2 or not all(_sizes(d) for d in shaped):
        return []
    weight = shaped[-1] if product.site.op.endswith("convolution_backward") else shaped[1]
    whole = any(d[1] == weight[1] for d in shaped if d is not weight)
    return [c for c in weight[:2] if c > 4] if whole else []


def _sizes(dims: Sequence[object]) -> bool:
    return all(isinstance(size, int) and size > 0 for size in dims)


def _kernel_alignment(product: Product) -> int | None:
    """Return the smallest alignment in elements that the names of its kernels state, or None."""
    found = [_ALIGNED.search(kernel.name) for kernel in product.site.kernels]
    return min((int(match[1]) for match in found if match is not None), default=None)


def _finding(case: Case, group: Sequence[_Misaligned], every: Sequence[Product]) -> Finding | None:
    now = saved = 0.0
    for found in group:
        reach = _padded_ns(case, found, every)
        if found.product.ns >= MIN_SLOWDOWN * reach:
            now += found.product.ns
            saved += found.product.ns - reach
    part = share(case, [found.product.site for found in group], saved)
    if part < MIN_SHARE:
        return None
    size, need = group[0].size, group[0].need
    better = padded_size(size, need)
    most = costliest([found.product for found in group])
    place, written = _size_written_at(case, group, most)
    alignment = _kernel_alignment(most)
    return make_finding(
        RULE,
        claim=f"products with a size of {size}, no multiple of {need}, take "
        f"{percent(case.device_share(now))} of the step; {better} would be aligned",
        share=part,
        place=place,
        module=most.site.module or str(size),
        confidence="high" if alignment is not None and alignment < need else "medium",
        evidence=_evidence(case, [found.product for found in group], every, now),
        change=_change(written, size, better),
        doubt="the rate of the padded size is estimated",
    )


def _padded_ns(case: Case, found: _Misaligned, every: Sequence[Product]) -> float:
    product = found.product
    rate, memory = _rate(case, product, every), None
    if case.device is not None:
        memory = case.device.ceiling("copy")
    if not rate or not product.site.flops:
        return product.ns
    moved = product.site.bytes / memory.value if memory is not None else 0.0
    return max(product.site.flops * found.padded / rate, moved) * 1e9


def _rate(case: Case, product: Product, every: Sequence[Product]) -> float:
    """Return the FLOP/s that an aligned product could reach: the best of the step, or the usual
    share of the peak."""
    alike = [
        p.site.flops / p.ns * 1e9
        for p in every
        if p.arithmetic == product.arithmetic
        and _misaligned(p) is None
        and p.ns
        and p.site.flops >= MIN_TELLING_FLOPS * p.site.calls
    ]
    peak = peak_of(case, product.arithmetic)
    usual = 0.0
    if peak is not None:
        usual = peak.value * (1.0 if peak.source == "measured" else MAX_PEAK_SHARE)
    return max([usual, *alike])


def _size_written_at(
    case: Case, group: Sequence[_Misaligned], most: Product
) -> tuple[Place | None, str]:
    """Return the line with the size as a number, and its statement; else the call of the model."""
    size = group[0].size
    written = []
    for source in user_sources(case, files_of(found.product.site for found in group)):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Constant) and node.value == size:
                named = any(isinstance(up, ast.Assign | ast.AnnAssign) for up in _up(source, node))
                written.append((not named, node.lineno, source))
    if not written:
        return model_call(case, most.site), ""
    _, line, source = min(written, key=lambda entry: entry[:2])
    place = located(case, source.file, line)
    return place, statement_at(case, place)


def _up(source: SourceFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node stands in, up to its statement."""
    for parent in source.parents(node):
        yield parent
        if isinstance(parent, ast.stmt):
            return


def _change(written: str, size: int, better: int) -> str:
    if written:
        return re.sub(rf"(?<!\d){size}(?!\d)", str(better), written) + f"  # {size}, padded"
    return f"size = {better}  # {size}, padded to a multiple of {TILE_ELEMENTS}"


def _evidence(
    case: Case, group: Sequence[Product], every: Sequence[Product], now: float
) -> list[Evidence]:
    most = max(group, key=lambda p: p.ns)
    text = f"{seconds(now / 1e9)} a step, {percent(case.device_share(now))} of it"
    facts = [measured("products of that size", text, now / 1e6)]
    if rate := flop_rate(group):
        reach = _rate(case, most, every)
        text = f"{flops(rate)}, {significant(reach / rate, 2)} × below {flops(reach)}"
        facts.append(measured("their rate", text, rate))
    if most.site.kernels:
        facts.append(measured("costliest kernel", most.site.kernels[0].name[:100]))
    return facts
