"""What a model costs before it runs: parameters, FLOPs, bytes, memory by phase and module."""

from ridgeline.cost.counting.account import Account, count, join

__all__ = ["Account", "count", "join"]
