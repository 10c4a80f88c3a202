"""The cost of a model before it runs: parameters, FLOPs, bytes, and memory by phase and module."""

from ridgeline.cost.counting.account import Account, count, join

__all__ = ["Account", "count", "join"]
