"""What is profiled: a torch module, or any object with `.forward` over NumPy arrays, seen alike.

The records are plain dataclasses: profiling NumPy objects needs NumPy and nothing else.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ridgeline.integrations.profiler.units import Shape

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
