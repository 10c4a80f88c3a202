"""Ridgeline finds what holds a PyTorch program back, fixes it, and proves the fix.

The public names are loaded when first touched, so that `import ridgeline` costs no torch import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.version import __version__ as __version__

_HOME = {
    "MemoryProfiler": "ridgeline.integrations.profiler",
    "Profiler": "ridgeline.integrations.profiler",
    "RidgelineError": "ridgeline.errors",
    "Timer": "ridgeline.integrations.profiler",
    "analyze_weight_distribution": "ridgeline.integrations.profiler",
    "benchmark": "ridgeline.comparison.api",
    "compare": "ridgeline.comparison.api",
    "formula": "ridgeline.cost.formulas",
    "load_ipython_extension": "ridgeline.integrations.block",
    "optimize": "ridgeline.optimization.function",
    "profile": "ridgeline.integrations.block",
    "profile_memory": "ridgeline.integrations.profiler",
    "quick_profile": "ridgeline.integrations.profiler",
    "read_trace": "ridgeline.integrations.trace_reading",
    "region": "ridgeline.harness.capture.live",
    "step": "ridgeline.harness.capture.live",
}

__all__ = [
    "Profiler",
    "RidgelineError",
    "benchmark",
    "compare",
    "formula",
    "optimize",
    "profile",
    "read_trace",
    "region",
    "step",
]
"""Ten names. `Timer`, `MemoryProfiler`, `profile_memory`, `quick_profile` and
`analyze_weight_distribution` are there too, for those who know them from the course."""

if TYPE_CHECKING:
    from ridgeline.comparison.api import benchmark, compare
    from ridgeline.cost.formulas import formula
    from ridgeline.errors import RidgelineError
    from ridgeline.harness.capture.live import region, step
    from ridgeline.integrations.block import profile
    from ridgeline.integrations.profiler import MemoryProfiler as MemoryProfiler
    from ridgeline.integrations.profiler import Profiler
    from ridgeline.integrations.profiler import Timer as Timer
    from ridgeline.integrations.profiler import (
        analyze_weight_distribution as analyze_weight_distribution,
    )
    from ridgeline.integrations.profiler import profile_memory as profile_memory
    from ridgeline.integrations.profiler import quick_profile as quick_profile
    from ridgeline.integrations.trace_reading import read_trace
    from ridgeline.optimization.function import optimize


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
