"""Attention whose scores are a tensor of their own: which operators touch the scores, and what a
fused operator would need instead."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import SHARE_TOLERANCE, gain_without
from ridgeline.diagnosis.rules._precision import spent_ns
from ridgeline.records.sites import OpSite

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


def products(sites: Iterable[OpSite], scores: Scores) -> tuple[list[OpSite], list[OpSite]]:
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
    return gain_without(without_scores(case, sites, MAX_FUSED_PEAK_SHARE_CPU), SHARE_TOLERANCE)


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
