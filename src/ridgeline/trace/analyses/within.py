"""Which rows belong to a window: those that start in it."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Window
from ridgeline.trace.columns import Events


def within(table: Events, window: Window) -> NDArray[np.int64]:
    """Row numbers, in order; tables are ordered by start, so they are neighbours."""
    first, last = np.searchsorted(table.ts, [window.start_ns, window.end_ns], side="left")
    return np.arange(first, max(first, last), dtype=np.int64)
