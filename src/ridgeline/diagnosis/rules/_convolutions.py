"""Convolutions of a step: their sites, what they need at least, and the model they are in."""

from collections.abc import Iterable

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import as_traced, models
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
