"""Products whose sizes tensor cores cannot read in whole pieces."""

import ast
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import (
    At,
    Product,
    at_line,
    costliest,
    has_tensor_cores,
    model_call,
    peak_of,
    products,
    share,
    sources,
    statement,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.file import SourceFile
from ridgeline.units import flops, percent, seconds, significant

RULE = Rule(
    id="misaligned-shape", family="precision", budget="work", needs=("sites", "shapes", "gpu")
)
LEAST = 0.01
SLOWER = 1.25
"""Than padded: below it the rate is what products of such a size reach anyway."""
ROW_BYTES = 16
PADDED_TO = 64
"""Elements: whole tiles on every GPU so far (50,304 is the first above 50,257)."""
SMALL = 256
"""Sizes below it are padded to the alignment only: a tile of 64 would add too much."""
REACHED = 0.9
"""Of a datasheet's peak, so that the bound holds: 0.79 was seen on an H200. All of a measured."""
LARGE = 1e9
"""FLOPs of a call: aligned products below it say nothing of the rate that can be reached."""
_ITEM = {"bfloat16": 2, "float16": 2, "tf32": 4, "float32": 4, "float8": 1, "int8": 1}
_ALIGNED = re.compile(r"_?align(\d+)")


class _Bad(Struct, frozen=True):
    product: Product
    size: int
    need: int
    """Elements its rows should be a multiple of."""
    padded: float
    """To now, how much more arithmetic the padded size has."""


def look(case: Case) -> Iterator[Finding]:
    if not has_tensor_cores(case):
        return
    every = [p for p in products(case) if p.arithmetic in _ITEM and p.arithmetic != "float32"]
    bad = [one for p in every if (one := _bad(p)) is not None]
    for size in sorted({one.size for one in bad}):
        group = [one for one in bad if one.size == size]
        answer = _finding(case, group, every)
        if answer is not None:
            yield answer


def _bad(product: Product) -> _Bad | None:
    need = max(ROW_BYTES // _ITEM[product.arithmetic], 1)
    sizes = [size for size in _row_lengths(product) if size % need]
    told = _told_alignment(product)
    if not sizes or (told is not None and told >= need):
        return None
    size = max(sizes)
    return _Bad(product, size, need, padded_size(size, need) / size)


def padded_size(size: int, need: int) -> int:
    to = need if size < SMALL else PADDED_TO
    return -(-size // to) * to


def _row_lengths(product: Product) -> list[int]:
    """Of each matrix: how far apart its rows are in memory, in elements."""
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
    """The length of the result's rows: the last matrix's last dimension."""
    matrices = [d for d in every if isinstance(d, list | tuple) and len(d) >= 2 and _sizes(d)]
    return [int(matrices[-1][-1])] if matrices and 1 not in matrices[-1][-2:] else []


def _channels(product: Product) -> list[int]:
    """Of input and result, of a convolution in one group; the few of an image are the library's
    own special case."""
    shaped = [d for d in product.site.dims if isinstance(d, list | tuple) and len(d) >= 4]
    if len(shaped) < 2 or not all(_sizes(d) for d in shaped):
        return []
    weight = shaped[-1] if product.site.op.endswith("convolution_backward") else shaped[1]
    whole = any(d[1] == weight[1] for d in shaped if d is not weight)
    return [c for c in weight[:2] if c > 4] if whole else []


def _sizes(dims: Sequence[object]) -> bool:
    return all(isinstance(size, int) and size > 0 for size in dims)


def _told_alignment(product: Product) -> int | None:
    """The least its kernels' names say, in elements; None where they say none."""
    found = [_ALIGNED.search(kernel.name) for kernel in product.site.kernels]
    told = [int(match[1]) for match in found if match is not None]
    return min(told) if told else None


def _finding(case: Case, group: Sequence[_Bad], every: Sequence[Product]) -> Finding | None:
    now = saved = 0.0
    for one in group:
        reach = _padded_ns(case, one, every)
        if one.product.ns >= SLOWER * reach:
            now += one.product.ns
            saved += one.product.ns - reach
    sites = [one.product.site for one in group]
    part = share(case, sites, saved)
    if part < LEAST:
        return None
    size, need = group[0].size, group[0].need
    better = padded_size(size, need)
    most = costliest([one.product for one in group])
    at, written = _at(case, group, most)
    told = _told_alignment(most)
    return make_finding(
        RULE,
        claim=f"products with a size of {size}, no multiple of {need}, take "
        f"{percent(case.device_share(now))} of the step; {better} would be aligned",
        share=part,
        place=at.place,
        line=at.line,
        module=most.site.module or str(size),
        confidence="high" if told is not None and told < need else "medium",
        evidence=_evidence(case, [one.product for one in group], every, now),
        change=_change(written, size, better),
        doubt="the rate of the padded size is estimated",
    )


def _padded_ns(case: Case, one: _Bad, every: Sequence[Product]) -> float:
    product = one.product
    rate, memory = _rate(case, product, every), None
    if case.device is not None:
        memory = case.device.ceiling("copy")
    if not rate or not product.site.flops:
        return product.ns
    moved = product.site.bytes / memory.value if memory is not None else 0.0
    return max(product.site.flops * one.padded / rate, moved) * 1e9


def _rate(case: Case, product: Product, every: Sequence[Product]) -> float:
    """FLOP/s an aligned product could reach: the best of the step, or the peak's usual part."""
    alike = [
        p.site.flops / p.ns * 1e9
        for p in every
        if p.arithmetic == product.arithmetic and _bad(p) is None and p.ns
        and p.site.flops >= LARGE * p.site.calls
    ]  # fmt: skip
    peak = peak_of(case, product.arithmetic)
    usual = 0.0
    if peak is not None:
        usual = peak.value * (1.0 if peak.source == "measured" else REACHED)
    return max([usual, *alike])


def _at(case: Case, group: Sequence[_Bad], most: Product) -> tuple[At, str]:
    """Where the size is written, as a number; else where the model is called."""
    size = group[0].size
    written = []
    for source in sources(case, [one.product.site for one in group]):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Constant) and node.value == size:
                named = any(isinstance(up, ast.Assign | ast.AnnAssign) for up in _up(source, node))
                written.append((not named, node.lineno, source))
    if not written:
        return model_call(case, most.site), ""
    _, line, source = min(written, key=lambda entry: entry[:2])
    at = at_line(case, source.file, line)
    return at, statement(case, at)


def _up(source: SourceFile, node: ast.AST) -> Iterator[ast.AST]:
    """What a node stands in, up to its statement."""
    for parent in source.parents(node):
        yield parent
        if isinstance(parent, ast.stmt):
            return


def _change(written: str, size: int, better: int) -> str:
    if written:
        return re.sub(rf"(?<!\d){size}(?!\d)", str(better), written) + f"  # {size}, padded"
    return f"size = {better}  # {size}, padded to a multiple of {PADDED_TO}"


def _evidence(
    case: Case, group: Sequence[Product], every: Sequence[Product], now: float
) -> tuple[Evidence, ...]:
    most = max(group, key=lambda p: p.ns)
    told = [
        Evidence(
            what="products of that size",
            text=f"{seconds(now / 1e9)} a step, {percent(case.device_share(now))} of it",
            value=now / 1e6,
        )
    ]
    counted = [p for p in group if p.site.flops]
    if counted:
        rate = sum(p.site.flops for p in counted) / sum(p.ns for p in counted) * 1e9
        reach = _rate(case, most, every)
        text = f"{flops(rate)}, {significant(reach / rate, 2)} × below {flops(reach)}"
        told.append(Evidence(what="their rate", text=text, value=rate))
    if most.site.kernels:
        told.append(Evidence(what="costliest kernel", text=most.site.kernels[0].name[:100]))
    return tuple(told)
