"""Convolutions of a step: their sites, what they need at least, and the model they are in."""

from collections.abc import Iterable

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.sites import OpSite
from ridgeline.source.models import ModelMade, model_made

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
    """By the roofline: its arithmetic at the ceiling, or its bytes; 0 where neither is known."""
    if case.device is None:
        return 0.0
    rate = case.device.ceiling("matmul", site.dtype) if site.dtype else None
    moving = case.device.ceiling("triad") or case.device.ceiling("copy")
    compute = site.flops / rate.value * 1e9 if rate is not None else 0.0
    return max(compute, site.bytes / moving.value * 1e9 if moving is not None else 0.0)


def weight_of(site: OpSite) -> tuple[int, ...]:
    """Sizes of the weight: the second tensor forward, the third backward."""
    tensors = [d for d in site.dims if d and all(isinstance(size, int) for size in d)]
    at = 2 if site.op == "aten::convolution_backward" else 1
    found = [d for d in tensors if len(d) >= 3]
    return tuple(found[at]) if len(found) > at else ()


def the_model(case: Case) -> ModelMade | None:
    """Where the model with most parameters is made, of those that were called."""
    modules = case.capture.modules if case.capture is not None else ()
    called = [m for m in modules if m.place and not m.loss and m.parameters]
    for one in sorted(called, key=lambda m: -m.parameters):
        if (made := model_made(case.sources, one.place)) is not None:
            return replace(made, file=as_traced(case, made.file))
    return None


def as_traced(case: Case, file: str) -> str:
    """The file by the name that the trace has for it."""
    names = {site.place.file for site in case.sites.ops if site.place is not None}
    same = [name for name in names if file.endswith(f"/{name}")]
    return max(same, key=len, default=file)


def exposed_part(case: Case, sites: Iterable[OpSite]) -> float:
    """Of these sites' device time: the part that the step waits for."""
    sites = tuple(sites)
    whole = case.device_share(sum(site.device_ns for site in sites))
    return case.exposed(*sites) / whole if whole else 0.0
