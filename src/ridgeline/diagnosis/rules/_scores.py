"""Attention whose scores are a tensor of their own: which operators touch them, and what a fused
operator would need instead."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import KNOWN, MOST_SHARE
from ridgeline.records.op_site import OpSite

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
    goes = without_scores(case, sites, BEST_CPU) * (1 + KNOWN)
    return 1 / (1 - min(goes, MOST_SHARE))


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
