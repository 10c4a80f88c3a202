"""What a set of numbers says: summary, steady state, cost law.

numpy only. Knows no clock and no torch: samples come in as numbers in the order they were taken,
records go out. The names load when first touched, so that importing the package costs no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "fit_law": "ridgeline.statistics.law",
    "lag1_correlation": "ridgeline.statistics.correlation",
    "predict": "ridgeline.statistics.law",
    "steady_start": "ridgeline.statistics.steady",
    "summarize": "ridgeline.statistics.summary",
}

__all__ = ["fit_law", "lag1_correlation", "predict", "steady_start", "summarize"]

if TYPE_CHECKING:
    from ridgeline.statistics.correlation import lag1_correlation
    from ridgeline.statistics.law import fit_law, predict
    from ridgeline.statistics.steady import steady_start
    from ridgeline.statistics.summary import summarize


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline.statistics' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
