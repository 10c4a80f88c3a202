"""Statistics of timings: summary, steady state, cost laws, and the comparison of variants.

The package uses numpy only, no clock and no torch. Samples come in as numbers in the order they
were taken, and records go out. Names are loaded at first use, so that importing the package does
not import numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Analysis": "ridgeline.statistics.analysis",
    "Looks": "ridgeline.statistics.significance",
    "RoundTable": "ridgeline.statistics.analysis",
    "analyse": "ridgeline.statistics.analysis",
    "classify": "ridgeline.statistics.samples",
    "estimate": "ridgeline.statistics.paired",
    "fit_law": "ridgeline.statistics.law",
    "lag1_correlation": "ridgeline.statistics.samples",
    "plan_looks": "ridgeline.statistics.significance",
    "predict": "ridgeline.statistics.law",
    "sequential_samples": "ridgeline.statistics.simulation",
    "simulated_rounds": "ridgeline.statistics.simulation",
    "steady_start": "ridgeline.statistics.samples",
    "summarize": "ridgeline.statistics.samples",
    "welch_p_value": "ridgeline.statistics.significance",
}

__all__ = [
    "Analysis",
    "Looks",
    "RoundTable",
    "analyse",
    "classify",
    "estimate",
    "fit_law",
    "lag1_correlation",
    "plan_looks",
    "predict",
    "sequential_samples",
    "simulated_rounds",
    "steady_start",
    "summarize",
    "welch_p_value",
]

if TYPE_CHECKING:
    from ridgeline.statistics.analysis import Analysis, RoundTable, analyse
    from ridgeline.statistics.law import fit_law, predict
    from ridgeline.statistics.paired import estimate
    from ridgeline.statistics.samples import classify, lag1_correlation, steady_start, summarize
    from ridgeline.statistics.significance import Looks, plan_looks, welch_p_value
    from ridgeline.statistics.simulation import sequential_samples, simulated_rounds


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline.statistics' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
