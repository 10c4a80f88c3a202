"""What a set of numbers says: summary, steady state, cost law, comparison.

numpy only. Knows no clock and no torch: samples come in as numbers in the order they were taken,
records go out. The names load when first touched, so that importing the package costs no numpy.
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
    "sequential_samples": "ridgeline.statistics.noise",
    "simulated_rounds": "ridgeline.statistics.noise",
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
    from ridgeline.statistics.noise import sequential_samples, simulated_rounds
    from ridgeline.statistics.paired import estimate
    from ridgeline.statistics.samples import classify, lag1_correlation, steady_start, summarize
    from ridgeline.statistics.significance import Looks, plan_looks, welch_p_value


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline.statistics' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
