"""A profiler for students and scripts: TinyTorch's API on torch modules and on NumPy objects.

Importing it, and profiling NumPy objects with it, needs NumPy alone.
"""

from ridgeline.profiler.clock import Timer
from ridgeline.profiler.core import Profiler
from ridgeline.profiler.memory import MemoryProfiler, profile_memory
from ridgeline.profiler.quick import quick_profile
from ridgeline.profiler.units import BYTES_PER_FLOAT32, KB_TO_BYTES, MB_TO_BYTES, rng
from ridgeline.profiler.weights import analyze_weight_distribution

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
