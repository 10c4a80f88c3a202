"""What a set of numbers says: summary, steady state, cost law, comparison.

numpy only. Knows no clock and no torch: samples come in as numbers in the order they were taken,
records go out. The names load when first touched, so that importing the package costs no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Analysis": "ridgeline.statistics.rounds",
    "Looks": "ridgeline.statistics.looks",
    "RoundTable": "ridgeline.statistics.rounds",
    "analyse": "ridgeline.statistics.rounds",
    "classify": "ridgeline.statistics.outliers",
    "estimate": "ridgeline.statistics.paired",
    "fit_law": "ridgeline.statistics.law",
    "lag1_correlation": "ridgeline.statistics.correlation",
    "plan_looks": "ridgeline.statistics.looks",
    "predict": "ridgeline.statistics.law",
    "sequential_samples": "ridgeline.statistics.noise",
    "simulated_rounds": "ridgeline.statistics.noise",
    "steady_start": "ridgeline.statistics.steady",
    "summarize": "ridgeline.statistics.summary",
    "welch_p_value": "ridgeline.statistics.welch",
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
    from ridgeline.statistics.correlation import lag1_correlation
    from ridgeline.statistics.law import fit_law, predict
    from ridgeline.statistics.looks import Looks, plan_looks
    from ridgeline.statistics.noise import sequential_samples, simulated_rounds
    from ridgeline.statistics.outliers import classify
    from ridgeline.statistics.paired import estimate
    from ridgeline.statistics.rounds import Analysis, RoundTable, analyse
    from ridgeline.statistics.steady import steady_start
    from ridgeline.statistics.summary import summarize
    from ridgeline.statistics.welch import welch_p_value


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline.statistics' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
