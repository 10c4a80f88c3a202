"""A profiler for students and scripts: TinyTorch's API on torch modules and on NumPy objects.

Importing it, and profiling NumPy objects with it, needs NumPy alone.
"""

from ridgeline.integrations.profiler.clock import Timer
from ridgeline.integrations.profiler.core import Profiler
from ridgeline.integrations.profiler.memory import MemoryProfiler, profile_memory
from ridgeline.integrations.profiler.quick import quick_profile
from ridgeline.integrations.profiler.units import BYTES_PER_FLOAT32, KB_TO_BYTES, MB_TO_BYTES, rng
from ridgeline.integrations.profiler.weights import analyze_weight_distribution

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
