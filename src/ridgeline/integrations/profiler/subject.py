"""The course's units, and the values it exports. "MB" in its names is 1024 × 1024 bytes."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, Protocol

import numpy as np

BYTES_PER_FLOAT32 = 4
KB_TO_BYTES = 1024
MB_TO_BYTES = 1024 * 1024

rng = np.random.default_rng(7)

Shape = tuple[int, ...]


def as_mb(size_bytes: float) -> float:
    return size_bytes / MB_TO_BYTES


def one_sample(shape: Shape, sample_dims: int) -> Shape:
    """The shape of one sample, its batch dimension kept as 1: dimension 0 is the batch where the
    input has more dimensions than a sample needs."""
    return (1, *shape[1:]) if len(shape) > sample_dims else shape


def batch_of(shape: Shape, sample_dims: int) -> int:
    return prod(shape[:1]) if len(shape) > sample_dims else 1


Source = Literal["measured", "estimated"]


@dataclass(frozen=True, slots=True)
class Work:
    """One forward pass on `batch` samples."""

    flops: int
    products: int
    """The part of `flops` in matrix products, convolutions and attention."""
    bytes: int
    batch: int
    ops: dict[str, int] = field(default_factory=dict)
    """FLOPs by operator (torch) or by layer type (arrays)."""

    @property
    def flops_per_sample(self) -> int:
        return round(self.flops / self.batch)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one forward pass. `peak_bytes` has everything in it: parameters and input too."""

    parameter_bytes: int
    activation_bytes: int
    peak_bytes: int
    source: Source


@dataclass(frozen=True, slots=True)
class Backward:
    """Work and time of the backward pass on the whole batch. `flops` None: the rule of two."""

    forward_ms: float
    backward_ms: float
    flops: int | None = None


@dataclass(frozen=True, slots=True)
class Roof:
    """What the machine can do at most, for the arithmetic that the subject uses."""

    flops_per_s: float
    bytes_per_s: float
    source: str
    limit: str = ""
    """compute, memory or overhead, where the roofline was drawn operator by operator."""

    @property
    def ridge(self) -> float:
        """FLOP per byte at which both ceilings bind."""
        return self.flops_per_s / self.bytes_per_s


class Subject(Protocol):
    def parameter_count(self) -> int: ...

    def parameter_bytes(self) -> int: ...

    def gradient_bytes(self) -> int: ...

    def example(self, shape: Shape) -> Any:
        """An input of this shape, of the kind the subject takes."""

    def forward(self, example: Any) -> Callable[[], Any]:
        """A call that runs one forward pass, as inference."""

    def time_forward(self, example: Any, warmup: int, iterations: int) -> tuple[float, ...]:
        """Milliseconds of each pass."""

    def count_shape(self, shape: Shape) -> Work:
        """The work on an input of this shape, on one sample of it where that can be had."""

    def count_input(self, example: Any) -> Work:
        """The work of this very input."""

    def footprint(self, example: Any) -> Footprint: ...

    def time_backward(
        self, example: Any, loss: Callable[..., Any] | None, warmup: int, iterations: int
    ) -> Backward | None:
        """None where the subject has no backward pass to time."""

    def roof(self, example: Any) -> Roof: ...


def subject_of(model: Any) -> Subject:
    # A torch module can only exist once torch has been imported, so asking sys.modules is enough
    # and keeps torch out of processes that never needed it.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from ridgeline.integrations.profiler.torch_subject import TorchSubject

        return TorchSubject(model)
    from ridgeline.integrations.profiler.array_subject import ArraySubject

    return ArraySubject(model)


def apply_loss(loss: Callable[..., Any], output: Any, zeros: Callable[[Any], Any]) -> Any:
    """The loss of the output; against zeros where it will not do without a target."""
    try:
        return loss(output)
    except TypeError:
        return loss(output, zeros(output))


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
