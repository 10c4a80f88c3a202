"""A profiler for students: the API of the TinyTorch course, for torch modules and NumPy objects.

It needs only NumPy, unless a torch module is profiled.
"""

from ridgeline.integrations.profiler.profiler import (
    Profiler,
    analyze_weight_distribution,
    quick_profile,
)
from ridgeline.integrations.profiler.subject import (
    BYTES_PER_FLOAT32,
    KB_TO_BYTES,
    MB_TO_BYTES,
    MemoryProfiler,
    Timer,
    profile_memory,
    rng,
)

__all__ = [
    "BYTES_PER_FLOAT32",
    "KB_TO_BYTES",
    "MB_TO_BYTES",
    "MemoryProfiler",
    "Profiler",
    "Timer",
    "analyze_weight_distribution",
    "profile_memory",
    "quick_profile",
    "rng",
]
