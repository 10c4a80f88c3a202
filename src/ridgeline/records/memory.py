"""Where a model's memory goes, predicted or measured."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.cost import Backend


class LiveTensor(Struct, frozen=True, kw_only=True):
    """One allocation alive at the peak."""

    kind: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes by what they are for. `activations` is what forward leaves alive for backward;
    `temporaries` is what else was alive at the peak; `peak` counts everything at once."""

    mode: Literal["inference", "training"]
    source: Literal["predicted", "measured"]
    backend: Backend
    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    peak_bytes: int
    optimizer: str = ""
    peak_phase: str = ""
    peak_op: str = ""
    peak_module: str = ""
    at_peak: dict[str, int] = {}
    """Bytes by kind at the peak."""
    largest_at_peak: tuple[LiveTensor, ...] = ()
    activations_by_module: dict[str, int] = {}
    notes: tuple[str, ...] = ()


class MeasuredPeak(Struct, frozen=True, kw_only=True):
    """The peak of a real run, as the allocator saw it."""

    mode: Literal["inference", "training"]
    peak_bytes: int
    static_bytes: int
    """Alive before the step began: parameters, buffers, inputs, optimizer state."""
    method: str
    reserved_bytes: int | None = None
    """GPU only: what the caching allocator held."""
