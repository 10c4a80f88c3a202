"""How a model's weights are spread, by magnitude."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ridgeline.integrations.profiler.arrays import array_of

_THRESHOLDS = {"0001": 0.001, "001": 0.01, "01": 0.1}


def analyze_weight_distribution(
    model: Any, percentiles: Sequence[float] = (10, 25, 50, 75, 90)
) -> dict[str, Any]:
    """Statistics of the absolute weights; `below_threshold_*` are percentages. From `parameters()`,
    else from `.weight` alone, as in the course; `{"error": …}` where there are none."""
    if callable(getattr(model, "parameters", None)):
        held = list(model.parameters())
    else:
        held = [model.weight] if hasattr(model, "weight") else []
    arrays = [array for array in map(array_of, held) if array is not None and array.size]
    if not arrays:
        return {"error": "No weights found"}
    size = np.abs(np.concatenate([array.ravel() for array in arrays]).astype(np.float64))
    return {
        "total_weights": int(size.size),
        "mean": float(size.mean()),
        "std": float(size.std()),
        "min": float(size.min()),
        "max": float(size.max()),
        **{f"percentile_{p}": float(np.percentile(size, p)) for p in percentiles},
        **{
            f"below_threshold_{name}": float(np.mean(size < limit) * 100)
            for name, limit in _THRESHOLDS.items()
        },
    }
