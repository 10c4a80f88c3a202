"""What a model costs before it runs: parameters, FLOPs, bytes, memory by phase and module."""

from ridgeline.account.count import Account, count
from ridgeline.account.joined import join

__all__ = ["Account", "count", "join"]
