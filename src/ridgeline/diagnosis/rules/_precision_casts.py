"""Casts between floating types in a step: which they are, and of which tensors."""

import re

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._precision import dtype_of, share
from ridgeline.records.op_site import OpSite

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
