"""What work, time and memory say together: rates, efficiency, and what holds the pass back."""

from typing import Any

from ridgeline.integrations.profiler.subject import Roof
from ridgeline.integrations.profiler.units import MB_TO_BYTES

COURSE_ROOF = Roof(100e9, 10_000 * MB_TO_BYTES, "the course's assumption")
"""100 GFLOP/s, and 100 MB/s for each GFLOP/s: what the course's own rules assume of a machine. Its
ridge is 9.5 FLOP per byte, near that of many CPUs."""

OVERHEAD_SHARE = 0.1
"""Below this share of either ceiling, neither arithmetic nor memory is what takes the time."""

_SHORTEST_S = 1e-6


def rates(flops: float, latency_ms: float, moved_mb: float, roof: Roof) -> dict[str, float]:
    seconds = max(latency_ms / 1e3, _SHORTEST_S)
    gflops_per_second = flops / 1e9 / seconds
    return {
        "gflops_per_second": gflops_per_second,
        "memory_bandwidth_mbs": moved_mb / seconds,
        "computational_efficiency": min(gflops_per_second * 1e9 / roof.flops_per_s, 1.0),
    }


def bottleneck(gflops_per_second: float, memory_bandwidth_mbs: float, roof: Roof) -> dict[str, Any]:
    """Memory where the pass does fewer FLOPs per byte than the ridge."""
    memory = memory_bandwidth_mbs * MB_TO_BYTES * roof.ridge > gflops_per_second * 1e9
    return {
        "is_memory_bound": memory,
        "is_compute_bound": not memory,
        "bottleneck": "memory" if memory else "compute",
    }


def roofline(gflops_per_second: float, memory_bandwidth_mbs: float, roof: Roof) -> dict[str, Any]:
    """The share of the nearer ceiling that was reached; far from both it is neither, whatever the
    FLOPs per byte say: the time goes to interpreter, dispatch or launches."""
    of_compute = gflops_per_second * 1e9 / roof.flops_per_s
    of_memory = memory_bandwidth_mbs * MB_TO_BYTES / roof.bytes_per_s
    share = max(of_compute, of_memory)
    nearer = "memory" if of_memory > of_compute else "compute"
    return {
        "roofline_bottleneck": roof.limit or ("overhead" if share < OVERHEAD_SHARE else nearer),
        "roofline_share": min(share, 1.0),
        "roof_source": roof.source,
    }
