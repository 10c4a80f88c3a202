"""What a model costs before it runs: parameters, FLOPs, bytes, memory by phase and module."""

from ridgeline.cost.counting.count import Account, count
from ridgeline.cost.counting.joined import join

__all__ = ["Account", "count", "join"]
