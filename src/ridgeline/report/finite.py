"""Numbers that JSON has words for."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same document, with null for what is infinite or no number: a loss can be either."""
    if isinstance(value, dict):
        return {key: finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
