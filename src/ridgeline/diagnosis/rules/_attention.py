"""Attention whose scores are a tensor of their own: which operators touch them, and what a fused
operator would need instead."""

import ast
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE
from ridgeline.records.finding import Source as Told
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import all_calls, calls_at, start_of_statement
from ridgeline.source.file import parsed_expression

PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::matmul")
SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
REACHED, REACHED_CPU = 0.75, 0.5
"""Of the matmul ceiling: fused attention on a GPU at its best (FlashAttention-3's forward), on a
CPU usually (0.38 and 0.64 were measured)."""
BEST_CPU = 0.8
"""The same, for the bound."""
AGAIN = 7 / 6
"""Products of a fused operator against those written out: the scores once more in the backward."""
_MASKING = ("masked_fill", "where", "tril", "triu")
_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}


class Scores(Struct, frozen=True):
    """[batch and heads, rows, columns]"""

    batch: int
    rows: int
    columns: int

    @property
    def numel(self) -> int:
        return self.batch * self.rows * self.columns

    def are(self, dims: Any) -> bool:
        """Whether a recorded size is theirs, as they are or transposed."""
        return (
            _sizes(dims)
            and len(dims) >= 3
            and tuple(dims[-2:]) in ((self.rows, self.columns), (self.columns, self.rows))
            and prod(dims) == self.numel
        )

    def touched(self, site: OpSite) -> bool:
        return any(self.are(dims) for dims in site.dims) or self.made(site)

    def made(self, site: OpSite) -> bool:
        """By a product of this site."""
        sizes = [dims for dims in site.dims if _sizes(dims) and len(dims) >= 3]
        if site.op not in PRODUCTS or len(sizes) < 2:
            return False
        left, right = sizes[-2:]
        return self.are([*left[:-1], right[-1]]) and prod(left[:-2]) == self.batch


def scores_of(dims: Any) -> Scores | None:
    if not _sizes(dims) or len(dims) < 3 or min(dims) < 1:
        return None
    return Scores(prod(dims[:-2]), dims[-2], dims[-1])


def products(sites: Iterable[OpSite], scores: Scores) -> tuple[list[OpSite], list[OpSite]]:
    """Those that make scores, those that read them."""
    made, read = [], []
    for site in sites:
        if site.op in PRODUCTS:
            if scores.made(site):
                made.append(site)
            if any(scores.are(dims) for dims in site.dims):
                read.append(site)
    return made, read


def fused_ns(case: Case, sites: Sequence[OpSite], reached_cpu: float = REACHED_CPU) -> float:
    """What one fused operator needs at least for all that these sites' products compute; 0 where
    no ceiling is known. A causal one skips half."""
    total = 0.0
    masked = any(word in site.op for site in sites for word in _MASKING)
    for site in sites:
        if site.op in PRODUCTS and site.flops:
            rate = _rate(case, site.dtype) * (REACHED if case.on_gpu else reached_cpu)
            total += site.flops / rate * 1e9 if rate else 0.0
    again = AGAIN if any(site.phase == "backward" for site in sites) else 1.0
    return total * again * (0.5 if masked else 1.0)


def saved_bytes(sites: Sequence[OpSite], scores: Scores) -> float:
    """Scores kept for the backward: the softmax's result, and what a product reads of it where
    that has another type (a copy autocast made)."""
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
    return calls * scores.numel * sum(_BYTES.get(kind, 4) for kind in kinds | reads)


def most_gained(case: Case, sites: Sequence[OpSite]) -> float:
    """The bound, by the best fused operator."""
    goes = without_scores(case, sites, BEST_CPU) * (1 + SHARE_TOLERANCE)
    return 1 / (1 - min(goes, MAX_SHARE))


def without_scores(case: Case, sites: Sequence[OpSite], reached_cpu: float = REACHED_CPU) -> float:
    """Of the step: exposed time a fused operator would take away."""
    spent = sum(site.work_ns if case.on_gpu else site.host_ns for site in sites)
    if spent <= 0:
        return 0.0
    return case.exposed(*sites) * max(1 - fused_ns(case, sites, reached_cpu) / spent, 0.0)


def peak_bytes(case: Case) -> float:
    """0: not known. A trace counts a host's memory only from its own beginning."""
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
    return max((one.value for one in found if one is not None), default=0.0)


def _sizes(dims: Any) -> bool:
    return isinstance(dims, list | tuple) and all(isinstance(size, int) for size in dims)


MOST_HEAD = 256
"""Head size flash kernels take."""
_OFF = ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp")


class Reason(Struct, frozen=True, kw_only=True):
    text: str
    change: str
    source: Told = "measured"
    changes_results: bool = False


def why_math(case: Case, site: OpSite) -> Reason | None:
    return _of_inputs(case, site) or _of_settings(case, site)


def _of_inputs(case: Case, site: OpSite) -> Reason | None:
    q, k, v = _names(case, site)
    sizes = [dims for dims in site.dims[:3] if dims]
    if len(sizes) < 3:
        return None
    dropout = _number(site, 4)
    if not case.on_gpu and dropout:
        return Reason(
            text=f"the CPU's fused kernel has no dropout, and dropout_p is {dropout:g}",
            change=_dropped_after(case, site, f"{dropout:g}"),
            changes_results=True,
        )
    if "double" in site.types[:3]:
        if case.on_gpu:
            return Reason(
                text="its inputs are float64",
                change=f"{q}, {k}, {v} = {q}.float(), {k}.float(), {v}.float()",
            )
    elif len(set(site.types[:3])) > 1:
        return Reason(
            text=f"its inputs have different types, {', '.join(sorted(set(site.types[:3])))}",
            change=f"{k}, {v} = {k}.to({q}.dtype), {v}.to({q}.dtype)",
        )
    if any(len(dims) != 4 for dims in sizes):
        ranks = len(sizes[0])
        return Reason(
            text=f"its inputs have {ranks} dimensions, fused kernels take 4",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}[:, None], "
            f"{k}[:, None], {v}[:, None])[:, 0]",
        )
    strides = [s for s in site.strides[:3] if s]
    if any(s[-1] != 1 for s in strides):
        return Reason(
            text=f"the last dimension is not contiguous (stride {strides[0][-1]})",
            change=f"{q}, {k}, {v} = {q}.contiguous(), {k}.contiguous(), {v}.contiguous()",
        )
    if sizes[0][-1] != sizes[2][-1]:
        return Reason(
            text=f"the heads' sizes differ: {sizes[0][-1]} of the query, {sizes[2][-1]} of the "
            "value",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}, {k}, "
            f"F.pad({v}, (0, {q}.shape[-1] - {v}.shape[-1])))[..., :{v}.shape[-1]]",
        )
    return None


def _of_settings(case: Case, site: OpSite) -> Reason | None:
    source = case.sources.get(site.place.file) if site.place is not None else None
    if source is not None:
        for call in all_calls(source, ("sdpa_kernel", *_OFF)):
            if (call.name == "sdpa_kernel" and "MATH" in call.text) or "False" in call.text:
                return Reason(
                    text=f"`{call.text}` in line {call.line} allows no other",
                    change=f"# line {call.line}: without {call.text}", source="read",
                )  # fmt: skip
    if site.dims and len(site.dims) > 3 and site.dims[3] and case.on_gpu:
        q, k, v = _names(case, site)
        return Reason(
            text="with this mask no fused kernel takes it",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}, {k}, {v}, "
            "is_causal=True)"
            "  # where the mask is causal",
        )
    if site.dims and site.dims[0] and case.on_gpu and site.dims[0][-1] > MOST_HEAD:
        return Reason(
            text=f"a head has {site.dims[0][-1]} channels, flash kernels take {MOST_HEAD}",
            change="# more heads, each smaller: head size ≤ 256",
        )
    return None


def _names(case: Case, site: OpSite) -> tuple[str, str, str]:
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    for call in calls:
        inner = call.text[call.text.find("(") + 1 :].rstrip(")")
        parts = [part.strip() for part in inner.split(",")]
        if len(parts) >= 3 and all(part.isidentifier() for part in parts[:3]):
            return parts[0], parts[1], parts[2]
    return "q", "k", "v"


def _begins(case: Case, site: OpSite) -> str:
    """How the program's own statement begins; where the call is a part of one, it is replaced."""
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    return start_of_statement(case.sources, calls[0]) if calls else "out = "


def _dropped_after(case: Case, site: OpSite, dropout: str) -> str:
    start, plain = _begins(case, site), _without_dropout(case, site)
    name = start.removesuffix(" = ")
    why = "# of its result, not its weights"
    if name != start:
        return f"{start}{plain}\n{start}F.dropout({name}, {dropout}, self.training)  {why}"
    return f"{start}F.dropout({plain}, {dropout}, self.training)  {why}"


def _without_dropout(case: Case, site: OpSite) -> str:
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    node = parsed_expression(calls[0].text) if calls else None
    if not isinstance(node, ast.Call):
        return "F.scaled_dot_product_attention(q, k, v)"
    node.keywords = [k for k in node.keywords if k.arg != "dropout_p"]
    return ast.unparse(node)


def _number(site: OpSite, index: int) -> float:
    try:
        return float(site.concrete[index])
    except (IndexError, ValueError):
        return 0.0
