"""One call, six lines."""

from typing import Any

from ridgeline.integrations.profiler.core import Profiler


def quick_profile(
    model: Any, input_tensor: Any, profiler: Profiler | None = None
) -> dict[str, Any]:
    """Profiles one forward pass, prints the main figures and returns all of them."""
    profile = (profiler or Profiler()).profile_forward_pass(model, input_tensor)
    print(f"Parameters: {profile['parameters']:,}")
    print(f"FLOPs:      {profile['flops']:,} per sample")
    print(f"Latency:    {profile['latency_ms']:.3f} ms")
    print(f"Memory:     {profile['peak_memory_mb']:.2f} MB peak")
    print(f"Bottleneck: {profile['bottleneck']}")
    print(f"Efficiency: {profile['computational_efficiency'] * 100:.1f}%")
    return profile
